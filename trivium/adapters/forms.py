"""A batch -> arrays under the names that a loop knows them by.

Targets are next tokens already, in the slot of the token before them. A form never copies more than the dtypes ask for.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trivium.rows.batch import IGNORED, PADDING, Batch

Arrays = dict[str, NDArray[Any]]
Form = Callable[[Batch], Arrays]


def plain(batch: Batch) -> Arrays:
    """As a Batch has them: tokens, targets (-100 outside the loss), segments, positions, source."""
    return {name: getattr(batch, name) for name in ("tokens", "targets", "segments", "positions", "source")}


def huggingface(batch: Batch) -> Arrays:
    """`input_ids`, `position_ids`, `labels` and `shift_labels`, as the models of transformers take them.

    Positions restart with each document: without an attention mask that is how these models tell documents apart.
    `shift_labels` keeps their loss from shifting the labels again.
    """
    targets = batch.targets.astype(np.int64)
    tokens, positions = (array.astype(np.int64) for array in (batch.tokens, batch.positions))
    return {"input_ids": tokens, "position_ids": positions, "labels": targets, "shift_labels": targets}


def maxtext(batch: Batch) -> Arrays:
    """`inputs` and `targets`, each with `_position` and `_segmentation`, as MaxText's loops take them.

    Segments count from 1. Segment 0 is padding, and among the targets all that does not count in the loss.
    """
    counts = batch.targets != IGNORED
    segments = batch.segments + 1
    return {
        "inputs": batch.tokens,
        "inputs_position": batch.positions,
        "inputs_segmentation": segments,
        "targets": np.where(counts, batch.targets, 0),
        "targets_position": batch.positions,
        "targets_segmentation": np.where(counts, segments, 0),
    }


def megatron(batch: Batch) -> Arrays:
    """`tokens`, `labels`, `loss_mask` and `position_ids`, as a GPTDataset gives them."""
    counts = batch.targets != IGNORED
    return {
        "tokens": batch.tokens.astype(np.int64),
        "labels": np.where(counts, batch.targets, 0).astype(np.int64),
        "loss_mask": counts.astype(np.float32),
        "position_ids": batch.positions.astype(np.int64),
    }


def olmo_core(batch: Batch) -> Arrays:
    """`input_ids`, `labels`, and the documents' lengths in `doc_lens`, as OLMo-core's train module takes them.

    Where no row has a second document there are no lengths: their attention then needs no kernel for documents.
    """
    arrays = {"input_ids": batch.tokens.astype(np.int64), "labels": batch.targets.astype(np.int64)}
    if batch.segments.max() < 1:
        return arrays
    lengths = [_lengths(segments) for segments in batch.segments]
    doc_lens = np.zeros((batch.num_rows, max(map(len, lengths))), np.int32)
    for row, found in enumerate(lengths):
        doc_lens[row, : len(found)] = found
    return arrays | {"doc_lens": doc_lens, "max_doc_lens": doc_lens.max(axis=1)}


def _lengths(segments: NDArray[np.int32]) -> NDArray[np.int64]:
    """Slots of each document of a row, padding last as a document of its own."""
    starts = np.flatnonzero(np.diff(segments, prepend=PADDING - 1))
    return np.diff(starts, append=len(segments))


FORMS: Mapping[str, Form] = {each.__name__: each for each in (plain, huggingface, maxtext, megatron, olmo_core)}
