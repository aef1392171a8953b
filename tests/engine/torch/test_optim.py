"""Groups, decay, momentum and clipping."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.support.batches import TINY, make_batch, settings_at
from trivium.engine.base import EngineSettings, OptimizerSettings
from trivium.engine.parameters import ParameterGroup, parameter_group
from trivium.engine.torch.engine import TorchEngine
from trivium.plan.rates import GROUPS

DEFAULT = OptimizerSettings().no_decay
GROUP_OF = {
    "embedding.weight": "embedding",
    "unembedding.weight": "unembedding",
    "layers.0.attention.query.weight": "matrix",
    "layers.1.feed_forward.down.weight": "matrix",
    "layers.0.attention_norm.weight": "rest",
    "layers.0.attention.query_norm.weight": "rest",
    "norm.weight": "rest",
}


def weights_of(engine: TorchEngine) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in engine.model.named_parameters()}


def engine_with(optimizer: OptimizerSettings, **spec: bool) -> TorchEngine:
    return TorchEngine(EngineSettings(replace(TINY, **spec), optimizer, device="cpu"))  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "group"), GROUP_OF.items())
def test_a_parameter_has_its_group_by_name(name: str, group: str) -> None:
    assert parameter_group(name, DEFAULT) == ParameterGroup(group, group in ("matrix", "unembedding"))


@pytest.mark.parametrize(
    "name",
    [
        "layers.0.attention.query.bias",
        "layers.0.attention.query_norm.weight",
        "layers.0.attention_post_norm.weight",
        "layers.0.feed_forward_post_norm.weight",
        "layers.0.feed_forward.activation.alpha_p",
    ],
)
def test_what_is_no_matrix_is_not_decayed_and_goes_with_adamw(name: str) -> None:
    assert parameter_group(name, DEFAULT) == ParameterGroup("rest", False)


def test_decay_spares_what_no_decay_names() -> None:
    assert parameter_group("norm.weight", ()) == ParameterGroup("rest", True)
    assert parameter_group("embedding.weight", ("norms",)) == ParameterGroup("embedding", True)
    assert parameter_group("layers.0.attention.query.bias", ("biases",)) == ParameterGroup("rest", False)


@pytest.mark.parametrize("name", ["adamw", "muon"])
@pytest.mark.parametrize("moving", GROUPS)
def test_each_group_moves_at_its_own_learning_rate(name: str, moving: str) -> None:
    engine = engine_with(OptimizerSettings(name), qk_norm=True)
    before = weights_of(engine)
    engine.step(make_batch(), settings_at(lr=0.0, by_group={moving: 1e-2}))
    moved = {name for name, weight in weights_of(engine).items() if not torch.equal(weight, before[name])}
    assert moved == {name for name in before if parameter_group(name, DEFAULT).name == moving}


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_decay_shrinks_matrices_and_spares_norms_and_the_embedding(name: str) -> None:
    plain, decayed = (engine_with(OptimizerSettings(name)) for _ in range(2))
    start = weights_of(plain)
    plain.step(make_batch(), settings_at(lr=0.1, weight_decay=0.0))
    decayed.step(make_batch(), settings_at(lr=0.1, weight_decay=0.5))
    for key, weight in weights_of(decayed).items():
        shrunk = start[key] * 0.05 if parameter_group(key, DEFAULT).decays else 0.0
        torch.testing.assert_close(weight, weights_of(plain)[key] - shrunk, rtol=1e-4, atol=1e-5)


def test_muon_takes_the_matrices_and_adamw_the_rest() -> None:
    engine = engine_with(OptimizerSettings("muon"))
    engine.step(make_batch(), settings_at())
    parts: dict[str, set[str]] = {}
    for key, _ in engine.optimizers.state():
        name, _, part = key.rpartition(":")
        parts.setdefault(name, set()).add(part)
    for name, kept in parts.items():
        by_muon = parameter_group(name, DEFAULT).name == "matrix"
        assert kept == ({"momentum_buffer"} if by_muon else {"step", "exp_avg", "exp_avg_sq"})


def test_momentum_is_the_steps_own() -> None:
    engine = engine_with(OptimizerSettings("muon"))
    engine.step(make_batch(), replace(settings_at(), momentum=0.5))
    (group,) = engine.optimizers.each[1].param_groups
    assert group["momentum"] == 0.5


def test_clipping_is_over_all_parameters_and_reports_the_norm_before() -> None:
    free, clipped = engine_with(OptimizerSettings(eps=1.0)), engine_with(OptimizerSettings(eps=1.0, grad_clip=1e-3))
    before = weights_of(free)
    one, other = (engine.step(make_batch(), settings_at(weight_decay=0.0)) for engine in (free, clipped))
    assert one.grad_norm == other.grad_norm > 1e-3
    moves = [
        sum((weights_of(engine)[name] - weight).square().sum().item() for name, weight in before.items()) ** 0.5
        for engine in (free, clipped)
    ]
    assert moves[1] < moves[0] / 100
