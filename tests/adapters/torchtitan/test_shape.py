"""The model is torchtitan's: a config without a shape is given it, and another shape is refused."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.adapters.torchtitan.conftest import planned, their_model
from trivium.adapters.torchtitan import shape
from trivium.adapters.torchtitan.planned import checked
from trivium.config.load import load, read_tables
from trivium.errors import ConfigError
from trivium.model.spec import RopeSpec
from trivium.plan.make import make_plan


def test_a_config_without_a_shape_has_that_of_torchtitans_model(stages: Path) -> None:
    config = load("run.toml", shape.added(their_model(), read_tables(stages / "run.toml"))).config
    plan = make_plan(config).complete()
    assert list(shape.differences(their_model(), plan.model)) == []
    assert plan.model.norm_eps == 1e-5
    assert [stage.rope for stage in plan.stages] == [RopeSpec(), RopeSpec(theta=50_000), RopeSpec(theta=50_000)]


def test_a_shape_by_name_on_the_command_line_is_compared_too(stages: Path) -> None:
    overrides = ["model.size=tiny", "model.vocab=512"]
    tables = read_tables(stages / "run.toml")
    plan = make_plan(load("run.toml", [*shape.added(their_model(), tables, overrides), *overrides]).config).complete()
    assert [problem.where for problem in shape.differences(their_model(), plan.model)] == [
        "model.norm_eps",
        "model.heads",
        "model.kv_heads",
        "model.head_dim",
        "model.ffn",
    ]


def test_llamas_stretched_positions_are_ours_of_the_same_name(stages: Path) -> None:
    keys = {"scaling_factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    rope = SimpleNamespace(theta=500_000, scaling="llama", original_max_position_embeddings=8192, **keys)
    model = their_model(first_attention=SimpleNamespace(n_heads=4, n_kv_heads=2, head_dim=16, rope=rope))
    config = load("run.toml", shape.added(model, read_tables(stages / "run.toml"))).config
    assert make_plan(config).complete().model.rope == RopeSpec(500_000, "llama3", 8.0, 8192)


def test_all_that_is_wrong_with_model_and_stages_is_said_at_once(stages: Path) -> None:
    yarn = SimpleNamespace(theta=10_000, scaling="yarn", rope_factor=40.0)
    attention = SimpleNamespace(n_heads=4, n_kv_heads=2, head_dim=None, rope=yarn)
    layers = [SimpleNamespace(attention=attention, feed_forward=None, moe=object())] * 3
    model = their_model(layers=layers, first_attention=attention, max_seq_len=32)
    plan = planned("stages.2.tokens={ per_parameter = 0.01 }", "stages.2.kl={ beta = 0.1 }", "model.window=8")
    with pytest.raises(ConfigError) as caught:
        checked(plan, model)
    said = "Leave the shape out of [model], or write the same."
    assert str(caught.value).splitlines() == [
        f"model.layers: is 2, and torchtitan's model has 3. {said}",
        f"model.kv_heads: is 4, and torchtitan's model has 2. {said}",
        (
            "stages[2].kl: torchtitan has no frozen reference to compare the model with. "
            "Take it out, or train with `trivium train`."
        ),
        "model.ffn: is given, but the model is torchtitan's, and its config says how it is made. Leave it out.",
        "model.window: is given, but the model is torchtitan's, and its config says how it is made. Leave it out.",
        "stages[2].tokens: counts the matrices of a decoder without experts. Write a number of tokens.",
        (
            "stages[1].rope: is given, but torchtitan's model has rotary positions that a config cannot change: "
            "YaRN's, or none. Leave it out."
        ),
        "stages[1].seq_len: is 64, and torchtitan's model reads rows of 32. Write that or less.",
    ]
