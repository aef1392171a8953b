"""A reference is held and run where a stage asks for one, once, and nowhere else."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.engine.tiny import STAGE
from tests.support.batches import TINY, make_batch, settings_at
from trivium.engine.base import EngineSettings, KlSettings, Precision
from trivium.engine.torch.engine import TorchEngine
from trivium.engine.torch.layers import RMSNorm
from trivium.engine.torch.model import Decoder


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch, name: str) -> Iterator[list[Decoder]]:
    """Which decoders a method was called on, in order."""
    called: list[Decoder] = []
    inner = getattr(Decoder, name)

    def spy(self: Decoder, *args: object) -> object:
        called.append(self)
        return inner(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Decoder, name, spy)
        yield called


def saved(folder: Path, seed: int = 1) -> TorchEngine:
    engine = TorchEngine(EngineSettings(TINY, device="cpu", seed=seed))
    engine.save(folder).wait()
    return engine


def test_a_reference_runs_once_a_micro_batch_and_only_in_its_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, kl = saved(tmp_path), replace(STAGE, kl=KlSettings(0.1, tmp_path))
    for stage in (STAGE, kl, STAGE):
        engine.enter(stage)
        with counted(monkeypatch, "hidden") as called:
            engine.step(make_batch(), settings_at())
            engine.evaluate(make_batch())
        frozen = [each.model for each in engine.references.values()]
        assert called == [*frozen, engine.model, engine.model]
        assert len(frozen) == (stage.kl is not None)


def test_the_same_reference_is_not_loaded_twice_and_another_takes_its_place(tmp_path: Path) -> None:
    engine = saved(tmp_path / "first")
    saved(tmp_path / "other", seed=2)

    def hold(name: str, beta: float = 0.1) -> int:
        engine.enter(replace(STAGE, kl=KlSettings(beta, tmp_path / name)))
        held.append(engine.references["kl"])
        return held.index(engine.references["kl"])

    held: list[object] = []
    assert [hold("first"), hold("first", beta=0.5), hold("other"), hold("first")] == [0, 0, 2, 3]
    engine.enter(STAGE)
    assert not engine.references


def test_a_reference_is_frozen_and_as_large_as_the_model(tmp_path: Path) -> None:
    engine = saved(tmp_path)
    engine.enter(replace(STAGE, kl=KlSettings(0.1, tmp_path)))
    ours, theirs = (list(model.parameters()) for model in (engine.model, engine.references["kl"].model))
    assert [parameter.shape for parameter in theirs] == [parameter.shape for parameter in ours]
    assert not any(parameter.requires_grad for parameter in theirs)
    assert {id(parameter) for parameter in theirs}.isdisjoint(id(parameter) for parameter in engine.optimizers.names)


@pytest.mark.parametrize(
    ("engine_precision", "precision", "matrices"),
    [
        ("float32", None, torch.float32),
        ("float32", "bfloat16", torch.bfloat16),
        ("bfloat16", None, torch.bfloat16),
        ("bfloat16", "float32", torch.float32),
    ],
    ids=["float32", "bfloat16 in float32", "bfloat16", "float32 in bfloat16"],
)
def test_matrices_are_held_in_the_precision_and_norms_in_float32(
    engine_precision: Precision, precision: Precision | None, matrices: torch.dtype, tmp_path: Path
) -> None:
    saved(tmp_path)
    engine = TorchEngine(EngineSettings(TINY, device="cpu", precision=engine_precision, seed=2))
    engine.enter(replace(STAGE, kl=KlSettings(0.1, tmp_path, precision=precision)))
    model = engine.references["kl"].model
    assert model.precision == matrices
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            assert parameter.dtype == (torch.float32 if isinstance(module, RMSNorm) else matrices)
    assert engine.step(make_batch(), settings_at()).extra["kl"] > 0
