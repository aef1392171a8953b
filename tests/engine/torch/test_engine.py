"""The torch engine keeps the contract; and what only it has: threads, compiled layers, exact mode."""

from pathlib import Path

import pytest
import torch

from tests.engine.contract import STAGE, EngineContract, hash_of
from tests.engine.rows import TINY, make_batch, settings_at
from trivium.engine.base import Engine, EngineSettings
from trivium.engine.torch.engine import TorchEngine


class TestTorchEngine(EngineContract):
    def make(self, settings: EngineSettings) -> Engine:
        return TorchEngine(settings)


def test_exact_mode_does_not_outlive_a_step() -> None:
    engine = TorchEngine(EngineSettings(TINY, device="cpu", deterministic=True))
    engine.step(make_batch(), settings_at())
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]


def test_the_padded_vocabulary_is_never_touched() -> None:
    engine = TorchEngine(EngineSettings(TINY, device="cpu"))
    for step in range(3):
        engine.step(make_batch(seed=step), settings_at(step))
    assert engine.model.last_matrix.weight.shape[0] == TINY.padded_vocab == 128
    for matrix in (engine.model.embedding, engine.model.last_matrix):
        assert not matrix.weight[TINY.vocab :].any()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch's compiler warns of torch's own ways
def test_compiled_layers_learn_the_same_and_repeat_their_bits(tmp_path: Path) -> None:
    eager, compiled, again = (
        TorchEngine(EngineSettings(TINY, device="cpu", compile=compiled)) for compiled in (False, True, True)
    )
    for step in range(4):
        batch = make_batch(seed=step)
        for engine in (eager, compiled, again):
            engine.enter(STAGE)
        loss = eager.step(batch, settings_at(step)).loss
        assert compiled.step(batch, settings_at(step)).loss == pytest.approx(loss, rel=1e-4)
        again.step(batch, settings_at(step))
    assert hash_of(compiled, tmp_path / "one") == hash_of(again, tmp_path / "two")
