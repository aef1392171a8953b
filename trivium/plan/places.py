"""A document -> the steps and rows that read it; and which documents that do not count in the loss were read by then.

Nothing is searched for: a document's occurrences follow from its blocks, the order of each epoch and the mixture.
`sources.NAME.without` names documents whose targets are ignored. Each is in its place as before, so that no other row,
address or ledger changes, and the record of a step has those that were read before it: the others are the future.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trivium.config.schema import Config
from trivium.errors import PlanError, Problem
from trivium.plan.stage import CompleteStage, PlannedStage, Segment
from trivium.rows.blocks import FileBlocks
from trivium.rows.reading import BlockOrder, Reading
from trivium.sources.open import OpenSource


@dataclass(frozen=True, slots=True)
class Occurrence:
    """Where a stretch of a document is read."""

    step: int
    row: int
    stage: str
    epoch: int
    start: int  # within the document
    stop: int


def occurrences(
    stages: Sequence[PlannedStage], sources: Mapping[str, OpenSource], source: str, document: int
) -> Iterator[list[Occurrence]]:
    """Of each stage whose steps are known, where it reads a document or a piece of it; by the source and its views."""
    readers = [source, *(name for name, opened in sources.items() if opened.view_of == source)]
    for stage in filter(None, map(CompleteStage.of, stages)):
        uses = [(reader, use) for reader in readers if (use := stage.uses.get(reader)) is not None]
        yield [
            each
            for reader, use in uses
            if use.segment is not None
            for each in _in_stage(stage, reader, document, use.segment, use.rows)
        ]


def first_reads(
    config: Config, stages: Sequence[PlannedStage], sources: Mapping[str, OpenSource]
) -> dict[str, dict[int, int]]:
    """By source, the first step that reads each document which does not count in the loss; of those that are read."""
    found: dict[str, dict[int, int]] = {}
    for name, source in config.sources.items():
        for document in sorted(set(source.without or ())) if name in sources else ():
            places = next(filter(None, occurrences(stages, sources, name, document)), None)
            if places is not None:
                found.setdefault(name, {})[document] = min(each.step for each in places)
    return found


def without_entries(reads: Mapping[str, Mapping[int, int]], step: int) -> dict[str, list[int]]:
    """What a record has of `first_reads`: the documents that were read before a step and did not count."""
    taken = {name: [each for each, first in documents.items() if first < step] for name, documents in reads.items()}
    return {f"sources.{name}.without": documents for name, documents in taken.items() if documents}


def without_problems(config: Config, sources: Mapping[str, OpenSource]) -> Iterator[Problem]:
    """Documents that a source does not have, or that are never trained on."""
    for name, source in config.sources.items():
        blocks = sources[name].blocks if source.without and name in sources else None
        if not isinstance(blocks, FileBlocks):
            continue
        key, last = f"sources.{name}.without", blocks.num_documents - 1
        for document in sorted(set(source.without or ())):
            if document > last:
                yield Problem(key, f"there is no document {document:,}: {name} has 0 to {last:,}. Leave it out.")
            elif blocks.is_held_out(document):
                what = f"document {document:,} is held out for validation, and never trained on"
                yield Problem(key, f"{what}. Leave it out.")


def _in_stage(stage: CompleteStage, source: str, document: int, segment: Segment, rows: int) -> Iterator[Occurrence]:
    reading = segment.reading
    blocks = file_blocks(reading)
    try:
        file, start, end = blocks.document_span(document)
    except IndexError:
        what = f"{source} has no document {document:,}. Give one from 0 to {blocks.num_documents - 1:,}."
        raise PlanError([Problem("", what)]) from None
    first, last = (reading.locate(position)[0] for position in (segment.start, segment.start + rows - 1))
    for number in _windows_with(reading, blocks.blocks_of(document), first, last):
        window = reading.window(number)
        offsets, lengths = window.pieces[:, 0], window.lengths
        of_document = (window.files == file) & (offsets < end) & (offsets + lengths > start)
        for piece in np.flatnonzero(of_document).tolist():
            within = int(np.searchsorted(window.row_starts, piece, side="right")) - 1
            stage_rows = reading.rows_before(number) + within - segment.start
            if 0 <= stage_rows < rows:
                row = stage.mixture.first_row_reaching(source, stage_rows + 1)
                assert row is not None, "the stage gives this row"
                step, row = stage.batches.place_of(row - 1)
                begin = int(offsets[piece]) - start
                epoch = reading.place(number)[0]
                yield Occurrence(stage.start + step, row, stage.name, epoch, begin, begin + int(lengths[piece]))


def _windows_with(reading: Reading, blocks: NDArray[np.int64], first: int, last: int) -> list[int]:
    """The windows from `first` to `last` that may have spans of these blocks."""
    found = {number for number in (first,) if reading.place(number)[1] < 0}
    size = reading.blocks.window_blocks
    number = first
    while number <= last:
        epoch, index = reading.place(number)
        if index < 0:
            number += 1
            continue
        order = reading.order_of(epoch)
        found |= {number - index + at // size for at in _places_in_order(order, blocks)}
        number += -(-order.num_blocks // size) - index
    return sorted(each for each in found if first <= each <= last)


def _places_in_order(order: BlockOrder, blocks: NDArray[np.int64]) -> list[int]:
    if order.chosen is not None:
        at = np.flatnonzero(np.isin(order.chosen, blocks)) - order.first
    else:
        at = order.permutation.inverse(blocks) - order.first
    return [int(place) for place in at if place >= 0]


def file_blocks(reading: Reading) -> FileBlocks:
    assert isinstance(reading.blocks, FileBlocks), "only files have documents to name"
    return reading.blocks
