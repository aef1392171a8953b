"""A corpus that every loader can read: three sources of web-like documents, one token file each.

Tokens are uint16 and drawn at random; every document ends in the token 0, so that a loader which looks for
ends finds the same documents as one that is told. The same bytes carry three names: `.ds` with its index,
Megatron's `.bin` with `.idx`, and the bare array that OLMo-core reads.
"""

import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

ROWS, SEQ_LEN = 8, 2048
STEP_TOKENS = ROWS * SEQ_LEN
SHARES = {"web": 0.5, "code": 0.3, "books": 0.2}
VOCAB, EOS = 32_000, 0
MEGATRON_UINT16 = 8


def web_like_lengths(tokens: int, seed: int) -> NDArray[np.int64]:
    """Lengths of web documents, by and large, that add up to `tokens`: half are under 365, the mean is 668."""
    lengths = np.random.default_rng(seed).lognormal(5.9, 1.1, tokens // 300 + 100).astype(np.int64) + 1
    ends = np.cumsum(lengths)
    last = int(np.searchsorted(ends, tokens))
    lengths[last] -= ends[last] - tokens
    return lengths[: last + 1]


@dataclass(frozen=True, slots=True)
class Corpus:
    """Where a corpus is; `make` writes it unless it is there."""

    folder: Path
    tokens_each: int

    @property
    def cache(self) -> Path:
        """What trivium computes from it."""
        return self.folder / "cache"

    def ds(self, name: str) -> Path:
        """A source's tokens, with its index beside."""
        return self.folder / name / "000.ds"

    def megatron(self, name: str) -> Path:
        """A source's `.bin`, with its `.idx` beside."""
        return self.folder / "megatron" / f"{name}.bin"

    def tokens(self, name: str) -> NDArray[np.uint16]:
        """A source's tokens, mapped; a plain array, as a memmap's own class would slow every slice."""
        return np.memmap(self.ds(name), np.uint16, "r").view(np.ndarray)

    def ends(self, name: str) -> NDArray[np.int64]:
        """Where a source's documents end."""
        return np.fromfile(f"{self.ds(name)}.index", np.int64)

    def documents(self) -> int:
        """Documents of all sources."""
        return sum(len(self.ends(name)) for name in SHARES)

    def make(self) -> None:
        """Write what is not there yet."""
        for number, name in enumerate(SHARES):
            if not self.megatron(name).with_suffix(".idx").exists():
                self._write(name, number)

    def _write(self, name: str, seed: int) -> None:
        lengths = web_like_lengths(self.tokens_each, seed)
        ends = np.cumsum(lengths)
        tokens = np.random.default_rng(seed).integers(1, VOCAB, self.tokens_each, np.uint16)
        tokens[ends - 1] = EOS
        ds, megatron = self.ds(name), self.megatron(name)
        ds.parent.mkdir(parents=True, exist_ok=True)
        megatron.parent.mkdir(exist_ok=True)
        tokens.tofile(ds)
        ends.astype("<u8").tofile(f"{ds}.index")
        Path(f"{ds}.metadata").write_text(f"random|2\n{self.tokens_each}\n")
        megatron.unlink(missing_ok=True)
        megatron.symlink_to(ds.resolve())
        header = struct.pack("<9sQBQQ", b"MMIDIDX\x00\x00", 1, MEGATRON_UINT16, len(lengths), len(lengths) + 1)
        starts = (ends - lengths) * 2
        index = lengths.astype("<i4"), starts.astype("<i8"), np.arange(len(lengths) + 1, dtype="<i8")
        megatron.with_suffix(".idx").write_bytes(header + b"".join(part.tobytes() for part in index))
