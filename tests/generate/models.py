"""A tiny model of bytes that knows its markers."""

from dataclasses import replace

from tests.engine.rows import TINY
from trivium.data.tokenizer import ByteTokenizer
from trivium.engine.base import EngineSettings
from trivium.engine.torch.engine import TorchEngine

BYTES = ByteTokenizer()
SPEC = replace(TINY, vocab=BYTES.vocab, max_seq_len=160)


def byte_model(seed: int = 1) -> TorchEngine:
    """Weights as the seed gives them."""
    return TorchEngine(EngineSettings(SPEC, device="cpu", seed=seed))
