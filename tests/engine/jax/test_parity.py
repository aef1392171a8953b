"""Both engines from the same weights: the same gradients, losses and KL, within the rounding of float32."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch

from tests.engine.jax.forms import engine_of
from tests.engine.tiny import DIRECTIONS, STAGE
from tests.support.batches import TINY, make_batch, settings_at
from tests.support.forms import TOGETHER
from trivium.engine.base import EngineSettings, KlSettings, OptimizerSettings, StageSettings
from trivium.engine.jax.engine import JaxEngine
from trivium.engine.jax.step import DeviceBatch
from trivium.engine.loss_weight import LossWeights
from trivium.engine.torch.engine import TorchEngine
from trivium.model.spec import ModelSpec, RopeSpec

pytestmark = pytest.mark.slow  # programs are compiled

TEACHER = replace(TINY, layers=3, width=48, heads=3, kv_heads=3, head_dim=16)
NORMED = replace(TINY, qk_norm=True, tied_embeddings=True, heads=4, kv_heads=4)


def both(folder: Path, spec: ModelSpec = TINY, **settings: Any) -> tuple[TorchEngine, JaxEngine]:
    """Two engines with the same weights."""
    asked = EngineSettings(spec, device="cpu", **settings)
    torch_engine, jax_engine = TorchEngine(asked), JaxEngine(asked)
    torch_engine.export(folder)
    jax_engine.start_from(folder)
    return torch_engine, jax_engine


def torch_gradients(engine: TorchEngine, seed: int) -> dict[str, np.ndarray]:
    batch = make_batch(seed=seed)
    engine._gradients(batch, 1 / batch.loss_tokens())
    gradients = {name: parameter.grad for name, parameter in engine.model.named_parameters()}
    return {name: gradient.numpy().copy() for name, gradient in gradients.items() if gradient is not None}


def jax_gradients(engine: JaxEngine, seed: int) -> Mapping[str, Any]:
    batch = make_batch(seed=seed)
    rows = DeviceBatch.of(batch, engine.settings.micro_batch_size, engine.mesh)
    compiled = jax.jit(engine.program._gradients)
    terms = engine.terms._replace(loss_weight=engine.stage.loss_weight.of_sources(batch.sources))
    with jax.set_mesh(engine.mesh):
        gradients, _, _ = compiled(engine.state.params, rows, np.float32(1 / batch.loss_tokens()), terms)
    return gradients


def test_both_engines_draw_the_same_weights() -> None:
    settings = EngineSettings(TINY, device="cpu", seed=3)
    ours, theirs = TorchEngine(settings).model.weights(), JaxEngine(settings).state.params
    assert ours.keys() == theirs.keys()
    assert all(np.array_equal(each.detach().numpy(), theirs[name]) for name, each in ours.items())


@pytest.mark.parametrize(
    ("spec", "stage"),
    [
        (TINY, STAGE),
        (NORMED, replace(STAGE, document_mask=False, z_loss=1e-2)),
        (replace(TINY, rope=RopeSpec(dropped=(1,))), STAGE),
        (TINY, replace(STAGE, z_loss=1e-2, loss_weight=LossWeights({"code": 0.25}))),
    ],
    ids=["llama", "qwen3", "smollm3", "weighted"],
)
def test_gradients_are_the_same_by_parameter(spec: ModelSpec, stage: StageSettings, tmp_path: Path) -> None:
    torch_engine, jax_engine = both(tmp_path, spec)
    for engine in (torch_engine, jax_engine):
        engine.enter(stage)
    refuse_other_gradients(torch_gradients(torch_engine, 0), jax_gradients(jax_engine, 0))


@pytest.mark.parametrize("form", TOGETHER)
def test_gradients_of_other_forms_are_the_same_by_parameter(form: str) -> None:
    """Of biases, norms and learnt numbers too, none of which is zero or one."""
    jax_engine, torch_engine = engine_of(TOGETHER[form]), TorchEngine(EngineSettings(TOGETHER[form], device="cpu"))
    held = {name: torch.from_numpy(np.array(each)) for name, each in jax_engine.state.params.items()}
    torch_engine.model.load_state_dict(held)
    for engine in (torch_engine, jax_engine):
        engine.enter(replace(STAGE, z_loss=1e-2))
    refuse_other_gradients(torch_gradients(torch_engine, 0), jax_gradients(jax_engine, 0))


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_kl_and_its_gradients_are_the_same(direction: Any, tmp_path: Path) -> None:
    """Each engine has moved away from the reference by itself, over three steps."""
    torch_engine, jax_engine = both(tmp_path)
    stage = replace(STAGE, kl=KlSettings(0.5, tmp_path, direction))
    figures = []
    for engine in (torch_engine, jax_engine):
        for step in range(3):
            engine.step(make_batch(seed=50 + step), settings_at(step))
        engine.enter(stage)
    refuse_other_gradients(torch_gradients(torch_engine, 3), jax_gradients(jax_engine, 3))
    torch_engine.optimizers.zero_grad()
    figures = [dict(engine.step(make_batch(seed=3), settings_at(3)).extra) for engine in (torch_engine, jax_engine)]
    assert figures[1] == pytest.approx(figures[0], rel=1e-4)
    assert abs(figures[0]["kl"]) > 0.01


@pytest.mark.parametrize("how", [{}, {"temperature": 2.0, "top_k": 5}], ids=["plain", "soft and few"])
def test_a_teachers_term_and_its_gradients_are_the_same(how: dict[str, Any], tmp_path: Path) -> None:
    """With frozen layers beside it: what is trained has the same gradients, the rest none."""
    torch_engine, jax_engine = both(tmp_path)
    TorchEngine(EngineSettings(TEACHER, seed=3, device="cpu")).export(tmp_path / "teacher")
    distill = KlSettings(0.6, tmp_path / "teacher", spec=TEACHER, **how)
    stage = replace(STAGE, distill=distill, freeze=("embedding", "layers.0"))
    for engine in (torch_engine, jax_engine):
        engine.enter(stage)
    found = [torch_gradients(torch_engine, 3), jax_gradients(jax_engine, 3)]
    assert found[0].keys() == found[1].keys()
    assert not any(name.startswith(("embedding", "layers.0.")) for name in found[0])
    refuse_other_gradients(*found)
    torch_engine.optimizers.zero_grad()
    figures = [dict(engine.step(make_batch(seed=3), settings_at(3)).extra) for engine in (torch_engine, jax_engine)]
    assert figures[1] == pytest.approx(figures[0], rel=1e-6)


def test_muon_makes_the_same_updates(tmp_path: Path) -> None:
    torch_engine, jax_engine = both(tmp_path, optimizer=OptimizerSettings("muon", grad_clip=1.0))
    for step in range(10):
        batch, now = make_batch(seed=step), settings_at(step)
        expected = torch_engine.step(batch, now)
        assert jax_engine.step(batch, now).loss == pytest.approx(expected.loss, rel=1e-3)


def test_ademamix_makes_the_same_updates(tmp_path: Path) -> None:
    torch_engine, jax_engine = both(tmp_path, optimizer=OptimizerSettings("ademamix", grad_clip=1.0))
    for step in range(10):
        batch = make_batch(seed=step)
        now = replace(settings_at(step), alpha=8 * (step + 1) / 10, beta3=1 - 0.1 / (step + 1) ** 3)
        expected = torch_engine.step(batch, now)
        assert jax_engine.step(batch, now).loss == pytest.approx(expected.loss, rel=1e-4)
    held = {name: weight.detach().numpy() for name, weight in torch_engine.model.weights().items()}
    refuse_other_gradients(held, jax_engine.state.params)


def refuse_other_gradients(expected: Mapping[str, np.ndarray], found: Mapping[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        difference = np.linalg.norm(np.asarray(found[name]) - gradient)
        assert difference <= 1e-4 * np.linalg.norm(gradient), name
