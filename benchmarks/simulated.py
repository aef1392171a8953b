"""A source of any size whose documents are computed: as large as one likes, with no file behind it.

Lengths repeat every 4,000 documents, which hold 4 million tokens; so where a document starts is arithmetic, a
billion documents are a trillion tokens, and all tokens are read from one small array. Stretches that repeat
count as different files, so that no two documents look like neighbours.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trivium.config.load import validate
from trivium.config.schema import Config
from trivium.rows.blocks import FileTable, Spans
from trivium.rows.kernels import address_of, compiled
from trivium.rows.lengths import ALL_LENGTHS
from trivium.rows.piece import pack_word
from trivium.sources.open import OpenSource

Int64s = NDArray[np.int64]

PERIOD_DOCUMENTS, PERIOD_TOKENS = 4_000, 4_000_000
BLOCK_TOKENS, WINDOW_BLOCKS = 262_144, 64
FILES = 256


def period_ends() -> Int64s:
    """Ends of web-like documents: the mean is 1,000 tokens, half are under 500, one in nine is over 2,048."""
    drawn = np.cumsum(np.random.default_rng(0).lognormal(6.3, 1.1, PERIOD_DOCUMENTS))
    ends: Int64s = np.rint(drawn * (PERIOD_TOKENS / drawn[-1])).astype(np.int64)
    lengths = np.diff(ends, prepend=0)
    assert lengths.min() > 0, "no document is empty"
    assert lengths.max() <= BLOCK_TOKENS, "a document fits into a block"
    return ends


ENDS = period_ends()
TOKENS = np.random.default_rng(0).integers(1, 32_000, PERIOD_TOKENS + 1, np.uint16)


class SimulatedBlocks:
    """The blocks of so many documents."""

    def __init__(self, name: str, documents: int) -> None:
        self.name = name
        self.tokens = documents // PERIOD_DOCUMENTS * PERIOD_TOKENS
        self.num_blocks = -(-self.tokens // BLOCK_TOKENS)
        self.window_blocks = WINDOW_BLOCKS
        self.lengths = ALL_LENGTHS
        self.num_opened = FILES
        self.fingerprint = f"simulated, {documents} documents"
        self.table = FileTable(
            tokens=np.full(FILES, address_of(TOKENS)),
            itemsize=np.full(FILES, TOKENS.itemsize),
            loss=np.zeros(FILES, np.int64),
            num_ids=np.full(FILES, 2**16),
            ends=np.full(FILES, address_of(ENDS)),
            documents=np.zeros(FILES, np.int64),
        )

    def open_files(self, pieces: Int64s) -> None:
        """All are open."""

    def spans(self, blocks: Int64s, bands: Int64s | None = None) -> Spans:
        """The documents that start in these blocks."""
        assert bands is None, "it has no views"
        return Spans(_find_spans(blocks, ENDS, self.tokens))

    def in_bands(self, spans: Spans, mask: int) -> Spans:
        """All spans: there is one band."""
        return spans


@compiled
def _find_spans(blocks: Int64s, ends: Int64s, tokens: int) -> Int64s:
    """Two passes over the blocks: how many documents, then which."""
    count = 0
    for block in blocks:
        count += _first_from(ends, min((block + 1) * BLOCK_TOKENS, tokens)) - _first_from(ends, block * BLOCK_TOKENS)
    pieces = np.empty((count, 2), np.int64)
    place = 0
    for block in blocks:
        first, last = (
            _first_from(ends, block * BLOCK_TOKENS),
            _first_from(ends, min((block + 1) * BLOCK_TOKENS, tokens)),
        )
        for document in range(first, last):
            within = document % PERIOD_DOCUMENTS
            file = document // PERIOD_DOCUMENTS % FILES
            start = ends[within - 1] if within else 0
            pieces[place, 0] = start
            pieces[place, 1] = pack_word(file, ends[within] - start, True, False)
            place += 1
    return pieces


@compiled
def _first_from(ends: Int64s, token: int) -> int:
    """The first document that starts at a token or behind it."""
    period, within = token // PERIOD_TOKENS, token % PERIOD_TOKENS
    before = int(np.searchsorted(ends, within)) + 1 if within else 0
    return period * PERIOD_DOCUMENTS + before


def simulated_source(name: str, documents: int) -> OpenSource:
    """An open source of so many documents."""
    blocks = SimulatedBlocks(name, documents)
    return OpenSource(blocks, documents, blocks.tokens, largest_id=int(TOKENS.max()))


def make_config(sources: Mapping[str, Any], stages: list[dict[str, Any]]) -> Config:
    """A config of sources, given as paths, and stages."""
    raw = {
        "run": {"name": "benchmark"},
        "model": {"size": "tiny"},
        "sources": {name: {"kind": "tokens", "path": str(path)} for name, path in sources.items()},
        "stages": stages,
    }
    return validate(raw, "benchmark.toml")[0]
