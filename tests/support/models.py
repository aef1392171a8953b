"""A tiny model of bytes that knows its markers."""

from dataclasses import replace

from tests.support.batches import TINY
from trivium.engine.base import EngineSettings
from trivium.engine.torch.engine import TorchEngine
from trivium.text.tokenizer import ByteTokenizer

BYTES = ByteTokenizer()
SPEC = replace(TINY, vocab=BYTES.vocab, max_seq_len=160)


def byte_model(seed: int = 1) -> TorchEngine:
    """Weights as the seed gives them."""
    return TorchEngine(EngineSettings(SPEC, device="cpu", seed=seed))
