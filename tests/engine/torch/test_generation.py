"""What only torch's generation has: room that grows."""

import numpy as np
import pytest

from tests.support.batches import SEQ_LEN, TINY, VOCAB
from tests.support.generated import log_probabilities, normalised
from trivium.engine.base import EngineSettings
from trivium.engine.torch import generation as generation_module
from trivium.engine.torch.engine import TorchEngine
from trivium.engine.torch.generation import TorchGeneration


def test_rows_outgrow_their_first_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generation_module, "FIRST_ROOM", 1)
    engine = TorchEngine(EngineSettings(TINY, device="cpu"))
    rows = np.random.default_rng(0).integers(0, VOCAB, (2, SEQ_LEN))
    generation = engine.generation([rows[0][:2], rows[1][:4]], SEQ_LEN - 4)
    assert isinstance(generation, TorchGeneration)
    for more in range(6):
        generation.append(np.array([rows[0][2 + more], rows[1][4 + more]]))
    generation.select(np.array([1, 0]))
    ended = [rows[1][:10], rows[0][:8]]
    expected = np.stack([log_probabilities(engine, row.tolist(), VOCAB)[-1] for row in ended])
    assert normalised(generation.logits()) == pytest.approx(expected, abs=1e-4)
    assert generation.cache.slots < generation.cache.limit


def test_more_than_was_asked_for_is_our_own_mistake() -> None:
    generation = TorchEngine(EngineSettings(TINY, device="cpu")).generation([np.array([1])], 1)
    generation.append(np.array([2]))
    with pytest.raises(AssertionError, match="more tokens than room was asked for"):
        generation.append(np.array([3]))
