"""Rows of a Hugging Face dataset -> texts, or documents that are tokenised already.

A tokenised row has `input_ids` (or `inputs`), and may have `labels`, `position_ids` and `attention_mask`. Labels
are at their own tokens, not shifted, as Hugging Face's models and torchtitan's `preprocessed` datasets have them;
-100 has no loss. Where positions do not continue, a new document begins. What the attention mask excludes, and a
document of one token without a loss, is padding and skipped.
"""

import functools
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trivium.config.redact import redact
from trivium.errors import SourceError
from trivium.files import cache_folder
from trivium.prepare.encode import Encoded
from trivium.text.hub import UNREACHABLE, is_unreached
from trivium.textfiles.read import InputRecords, text_records
from trivium.textfiles.score import ScoreRange

SAVED = ("state.json", "dataset_dict.json")  # one of these is in a folder that `save_to_disk` wrote
TOKEN_COLUMNS = ("input_ids", "inputs")
ROWS_AT_ONCE = 1024
IGNORED_LABEL = -100  # as Hugging Face datasets mark labels without a loss
Int64s = NDArray[np.int64]


def load_rows(dataset: str, subset: str | None, split: str, *, saved: bool) -> Any:
    """A dataset by name or folder; eager, and mapped."""
    try:
        import datasets
    except ImportError:
        raise SourceError("the package datasets is not installed: pip install 'trivium[hf]'.") from None
    try:
        if saved:
            found = datasets.load_from_disk(dataset)
            if isinstance(found, datasets.DatasetDict):
                found = found[split]
            return found
        return datasets.load_dataset(dataset, subset, split=split)
    except KeyError:
        raise SourceError(f'{dataset}: has no split "{split}", but {", ".join(found)}. Name one of these.') from None
    except Exception as error:  # the library raises what its readers raise
        if not saved and is_unreached(error):
            raise SourceError(f"{redact(dataset)}: is not on disk: {UNREACHABLE}.") from error
        reason = redact(" ".join(str(error).split()))[:300].rstrip(".")
        raise SourceError(f"{redact(dataset)}: cannot be loaded: {reason}. Check dataset, subset and split.") from error


def described(rows: Any, dataset: str, split: str, *, saved: bool) -> dict[str, Any]:
    """How other processes open the same rows: the folder again, or the Arrow files that were loaded."""
    if saved:
        return {"saved": dataset, "split": split}
    description = {"arrow": [file["filename"] for file in rows.cache_files]}
    if description["arrow"] and open_rows(description).num_rows == rows.num_rows:
        return description
    # A part of a split, such as train[:10%]: its files hold more rows than it has.
    folder = cache_folder() / "datasets" / rows._fingerprint
    if not any((folder / each).is_file() for each in SAVED):
        rows.save_to_disk(str(folder))
    return {"saved": str(folder), "split": split}


def open_rows(description: dict[str, Any]) -> Any:
    """The rows that a description is of, opened once in a process."""
    return _open_rows(json.dumps(description, sort_keys=True))


@functools.lru_cache(maxsize=1)
def _open_rows(described: str) -> Any:
    description = json.loads(described)
    if "saved" in description:
        return load_rows(description["saved"], None, description["split"], saved=True)
    import datasets

    return datasets.concatenate_datasets([datasets.Dataset.from_file(path) for path in description["arrow"]])


def text_rows(rows: Any, start: int, stop: int, column: str, score: ScoreRange | None = None) -> Iterator[InputRecords]:
    """The texts of rows; those whose score is not in a range are left out."""
    columns = [column] if score is None else [column, score.column]
    for name in columns:
        if name not in rows.column_names:
            names = ", ".join(rows.column_names)
            raise SourceError(f'there is no column "{name}", but {names}. Write column = "{rows.column_names[0]}".')
    table = rows.select_columns(columns).with_format("arrow")
    for first in range(start, stop, ROWS_AT_ONCE):
        chunk = table[first : min(first + ROWS_AT_ONCE, stop)]
        found = text_records(chunk.column(column), first - start)
        if score is not None:
            score.leave_out(found, first - start, chunk.column(score.column).to_pylist())
        found.input_bytes = found.text_bytes
        yield found


def token_column(rows: Any) -> str:
    found = [name for name in TOKEN_COLUMNS if name in rows.column_names]
    if not found:
        names = ", ".join(rows.column_names)
        raise SourceError(f"tokenised = true: there is neither input_ids nor inputs, but {names}.")
    return found[0]


def token_rows(rows: Any, start: int, stop: int) -> Iterator[Encoded]:
    """Documents of some rows that are tokenised already."""
    column = token_column(rows)
    wanted = [column, *(name for name in ("labels", "position_ids", "attention_mask") if name in rows.column_names)]
    table = rows.select_columns(wanted).with_format("arrow")
    for first in range(start, stop, ROWS_AT_ONCE):
        chunk = table[first : min(first + ROWS_AT_ONCE, stop)]
        yield documents_of({name: chunk.column(name).combine_chunks() for name in wanted}, column, first)


def documents_of(columns: dict[str, Any], column: str, first: int) -> Encoded:
    """Rows as documents: cut where positions restart, without padding, with a loss byte for each token."""
    tokens, ends = _flat(columns[column], column)
    opens = np.zeros(len(tokens) + 1, np.bool_)
    opens[ends] = True
    opens = opens[:-1]
    opens[:1] = True
    others = {name: _flat(values, name) for name, values in columns.items() if name != column}
    for name, (_, other) in others.items():
        if not np.array_equal(other, ends):
            row = first + int(np.argmax(other != ends))
            raise SourceError(f"row {row:,}: {name} and {column} differ in length. Each token has one of each.")
    loss_mask = np.ones(len(tokens), np.bool_)
    if "labels" in others:
        loss_mask = _loss_mask(tokens, others["labels"][0], ends, first)
    if "position_ids" in others:
        positions = others["position_ids"][0]
        opens[1:] |= positions[1:] != positions[:-1] + 1
    kept = np.ones(len(tokens), np.bool_) if "attention_mask" not in others else others["attention_mask"][0] != 0
    numbers = np.cumsum(opens) - 1  # of the document that each token is of
    lengths = np.bincount(numbers[kept], minlength=int(numbers[-1]) + 1 if len(numbers) else 0).astype(np.int64)
    alone = (lengths[numbers] == 1) & ~loss_mask if len(tokens) else kept
    kept &= ~alone
    lengths = np.bincount(numbers[kept], minlength=len(lengths)).astype(np.int64)
    chosen = tokens[kept].astype(np.uint32)
    size = int(sum(values.nbytes for values in columns.values()))
    return Encoded(chosen, lengths[lengths > 0], loss_mask[kept].astype(np.uint8), [], len(ends), size, size)


def _flat(values: Any, name: str) -> tuple[Int64s, Int64s]:
    """All values of a column of lists, and where each row's end."""
    import pyarrow
    import pyarrow.compute

    kind = values.type
    if not (pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind) or pyarrow.types.is_fixed_size_list(kind)):
        raise SourceError(f'column "{name}" holds {kind}, and lists of integers are needed.')
    lengths = pyarrow.compute.list_value_length(values).fill_null(0).to_numpy(zero_copy_only=False)
    flat = values.flatten()
    if not pyarrow.types.is_integer(flat.type):
        raise SourceError(f'column "{name}" holds {kind}, and lists of integers are needed.')
    return flat.to_numpy(zero_copy_only=False).astype(np.int64), np.cumsum(lengths, dtype=np.int64)


def _loss_mask(tokens: Int64s, labels: Int64s, ends: Int64s, first: int) -> NDArray[np.bool_]:
    """Which tokens count in the loss; a label is its own token, or -100."""
    loss_mask: NDArray[np.bool_] = labels != IGNORED_LABEL
    wrong = np.flatnonzero(loss_mask & (labels != tokens))
    if len(wrong):
        row = first + int(np.searchsorted(ends, wrong[0], side="right"))
        place = int(wrong[0] - (ends[row - first - 1] if row > first else 0))
        raise SourceError(
            f"row {row:,}: its label {place:,} is {labels[wrong[0]]}, and the token there is {tokens[wrong[0]]}. "
            f"Labels are at their own tokens, not shifted, with -100 for what has no loss: save them so."
        )
    return loss_mask
