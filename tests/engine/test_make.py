"""Configs -> engine settings."""

import subprocess
import sys
from pathlib import Path

import pytest

from trivium.config.schema import Config, Engine, Model, Optimizer, Run
from trivium.config.stages import Kl, Rope, Stage
from trivium.engine.base import EngineSettings, KlSettings, StageSettings
from trivium.engine.make import FrozenModel, engine_settings, join_ranks, make_engine, resolve_spec, stage_settings
from trivium.errors import ConfigError
from trivium.model.folder import write_spec
from trivium.model.spec import ModelSpec, RopeSpec

SPEC = ModelSpec(layers=1, width=64, heads=1, kv_heads=1, head_dim=64, ffn=192, vocab=256, max_seq_len=128)


def config(**keys: object) -> Config:
    return Config(stages=(Stage(name="a", seq_len=64), Stage(name="b", seq_len=128)), **keys)  # type: ignore[arg-type]


def test_the_longest_stage_gives_the_row_length() -> None:
    assert resolve_spec(config(model=Model(layers=1, width=64)), vocab=256) == SPEC


def test_a_folder_gives_its_shape_and_the_config_its_rotary_positions(tmp_path: Path) -> None:
    write_spec(tmp_path, SPEC)
    model = Model(init=str(tmp_path), rope=Rope(theta=5e5), max_seq_len=4096)
    spec = resolve_spec(config(model=model), vocab=200, init=tmp_path)
    assert spec.rope == RopeSpec(5e5, original_seq_len=4096)
    assert (spec.vocab, spec.layers, spec.max_seq_len) == (256, 1, 4096)


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(tmp_path: Path) -> None:
    write_spec(tmp_path, SPEC)
    with pytest.raises(ConfigError) as refusal:
        resolve_spec(config(model=Model(init=str(tmp_path))), vocab=50_257, init=tmp_path)
    assert str(refusal.value) == (
        "model.vocab: is 256, but the tokenizer has 50,257 tokens. Use the model's own tokenizer, or raise it."
    )


def test_settings_say_what_the_config_says() -> None:
    given = config(
        run=Run(name="small", seed=7),
        optimizer=Optimizer(name="muon", grad_clip=1.0, betas=(0.8, 0.9)),
        engine=Engine(device="cpu", micro_batch_size=2, activation_checkpointing=True, deterministic=False),
    )
    settings = engine_settings(given, SPEC)
    assert (settings.seed, settings.device, settings.micro_batch) == (7, "cpu", 2)
    assert (settings.optimizer.name, settings.optimizer.clip, settings.optimizer.betas) == ("muon", 1.0, (0.8, 0.9))
    assert settings.recompute_activations
    assert not settings.deterministic


def test_the_optimizer_is_reset_only_where_a_stage_begins() -> None:
    stage = Stage(name="long", seq_len=64, document_mask=False, z_loss=1e-4, reset_optimizer=True)
    expected = StageSettings(64, SPEC.rope, "joined", 1e-4, reset_optimizer=True)
    assert stage_settings(stage, SPEC, begins=True) == expected
    assert not stage_settings(stage, SPEC, begins=False).reset_optimizer


def test_kl_crosses_the_door_with_the_reference_that_was_found() -> None:
    stage = Stage(name="chat", kl=Kl(beta=0.1, direction="reverse", precision="bfloat16"))
    frozen = FrozenModel(Path("folder"), RopeSpec(5e5))
    expected = KlSettings(0.1, Path("folder"), "reverse", "bfloat16", RopeSpec(5e5))
    assert stage_settings(stage, SPEC, begins=True, reference=frozen).kl == expected
    assert stage_settings(stage, SPEC, begins=True).kl is None
    assert stage_settings(Stage(name="chat"), SPEC, begins=True, reference=frozen).kl is None


@pytest.mark.parametrize(("hidden", "what"), [(("flax",), "flax is"), (("jax", "optax"), "jax, optax are")])
def test_without_its_extra_the_jax_engine_says_how_to_get_it(
    hidden: tuple[str, ...], what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in hidden:
        monkeypatch.setitem(sys.modules, package, None)
    message = f"engine.name: is \"jax\", but {what} not installed. Get the extra: pip install 'trivium[jax]'"
    for ask in (lambda: make_engine(EngineSettings(SPEC), "jax"), lambda: join_ranks("jax")):
        with pytest.raises(ConfigError) as refusal:
            ask()
        assert str(refusal.value) == message


def test_no_framework_is_imported_before_an_engine_is_made() -> None:
    code = "import sys, trivium.engine.make; sys.exit(any(name in sys.modules for name in ('torch', 'jax')))"
    subprocess.run([sys.executable, "-c", code], check=True)
