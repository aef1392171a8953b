"""Sources in which every token tells where it stands: token n of a source has the id n (or n modulo something).

So a batch shows by itself which tokens were read, and whether targets are the tokens that follow.
"""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trivium.config.load import validate
from trivium.config.schema import Config
from trivium.loader.stage_reader import files_of
from trivium.rows.blocks import FileBlocks, HoldOut
from trivium.rows.gather import gather
from trivium.rows.goldfish import NONE, Goldfish
from trivium.rows.kernels import address_of
from trivium.rows.piece import PIECE_BYTES
from trivium.rows.window import Window
from trivium.tokenfiles.manifest import LARGEST_ID, measure, write_manifest
from trivium.tokenfiles.open import open_source

Lengths = Sequence[Sequence[int]]  # of the documents of each file


def write_source(folder: Path, files: Lengths, dtype: str = "uint32", loss: bool = False) -> Path:
    """Token files in datatrove's form; token n of the source has the id n."""
    folder.mkdir(parents=True, exist_ok=True)
    first = 0
    for number, lengths in enumerate(files):
        count = sum(lengths)
        path = folder / f"{number:03d}.ds"
        np.arange(first, first + count).astype(dtype).tofile(path)
        np.cumsum(lengths).astype("<u8").tofile(f"{path}.index")
        Path(f"{path}.metadata").write_text(f"test|{np.dtype(dtype).itemsize}\n{count}\n")
        if loss:
            (np.arange(first, first + count) % 3 > 0).astype(np.uint8).tofile(f"{path}.loss")
        first += count
    return folder


def change_token(folder: Path, token: int, value: int, dtype: str = "uint32") -> Path:
    """Give a token of a source's first file another id, which the manifest beside it does not know of."""
    path = folder / "000.ds"
    if not (folder / "manifest.json").exists():
        write_manifest(measure(open_source(str(folder))), folder / "manifest.json")
    tokens = np.fromfile(path, dtype)
    tokens[token] = value
    tokens.tofile(path)
    return path


def make_blocks(
    files: Lengths,
    block_tokens: int = 16,
    window_blocks: int = 3,
    name: str = "web",
    hold_out: HoldOut | None = None,
    *,
    loss: bool = False,
) -> FileBlocks:
    """The blocks of a source in a folder of its own (mapped, so that the files may go away)."""
    with tempfile.TemporaryDirectory() as folder:
        opened = open_source(str(write_source(Path(folder), files, loss=loss)))
    return FileBlocks(name, opened, repr(files), block_tokens, window_blocks, hold_out)


def gather_window(blocks: FileBlocks, window: Window, goldfish: Goldfish = NONE) -> NDArray[np.int32]:
    """(4, rows, seq_len): the tokens, targets, segments and positions of all rows of a window."""
    arrays, unknown = gather_known(blocks, window, LARGEST_ID, goldfish)
    assert unknown[0] == -1
    return arrays


def gather_known(
    blocks: FileBlocks, window: Window, vocab: int, goldfish: Goldfish = NONE
) -> tuple[NDArray[np.int32], tuple[int, int, int]]:
    """The same for a vocabulary, and the row, file and first token of the first piece with an id beyond it."""
    files = files_of(blocks, vocab, masks_loss=True)
    firsts = address_of(window.pieces) + window.row_starts[:-1] * PIECE_BYTES
    of_source = np.full(window.num_rows, address_of(files))
    arrays = np.full((4, window.num_rows, window.seq_len), -7, np.int32)
    rows = np.stack((firsts, np.diff(window.row_starts), of_source), axis=1)
    return arrays, gather(rows, arrays, *goldfish.rule)


def document_ends(files: Lengths) -> NDArray[np.int64]:
    """Where the documents of a source end, counted over all its files."""
    return np.cumsum([length for lengths in files for length in lengths], dtype=np.int64)


def make_config(sources: Mapping[str, object], stages: Sequence[Mapping[str, object]], **tables: object) -> Config:
    """A checked config of token sources by folder, or by table, and stages."""
    raw = {
        "run": {"name": "test"},
        "model": {"size": "tiny"},
        "sources": {
            name: source if isinstance(source, dict) else {"kind": "tokens", "path": str(source)}
            for name, source in sources.items()
        },
        "stages": [{"name": f"stage-{number}", **stage} for number, stage in enumerate(stages)],
        **tables,
    }
    return validate(raw, "test.toml")[0]
