"""Every token has an address: step -> row -> source, document, span; and back.

Nothing is searched for: the rows of a step are computed as the loader does, and a document's places follow
from its blocks, the order of each epoch and the mixture. Of a stream only the first way is open.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trivium.config.sources import StreamSource
from trivium.errors import PlanError, Problem
from trivium.loader.loader import Loader
from trivium.plan.plan import Plan
from trivium.plan.stage import PlannedStage, Segment
from trivium.rows.batch import IGNORED
from trivium.rows.blocks import FileBlocks
from trivium.rows.piece import file_of, length_of
from trivium.rows.reading import BlockOrder, Reading
from trivium.sources.stream.lanes import LaneRows
from trivium.text.tokenizer import Tokenizer

AROUND = 30  # characters shown on each side of a text that was found


@dataclass(frozen=True, slots=True)
class PieceAddress:
    """A stretch of one document in a row."""

    file: str
    document: int  # within its source; of a stream, within its lane and epoch
    start: int  # first token, counted from the document's start
    stop: int
    length: int  # tokens of the whole document
    tokens: NDArray[np.int32]
    loss_mask: NDArray[np.bool_]  # whether each token's target is learnt

    @property
    def extent(self) -> str:
        """`whole`, `beginning`, `middle` or `end`."""
        return {(True, True): "whole", (True, False): "beginning", (False, False): "middle", (False, True): "end"}[
            self.start == 0, self.stop == self.length
        ]


@dataclass(frozen=True, slots=True)
class RowAddress:
    """A row of a step: whose it is, and what stands in it."""

    row: int
    source: str
    epoch: int
    position: int  # in the source's reading
    pieces: tuple[PieceAddress, ...]
    padding: int


@dataclass(frozen=True, slots=True)
class Place:
    """Where a stretch of a document is read."""

    step: int
    row: int
    stage: str
    epoch: int
    start: int  # within the document
    stop: int


@dataclass(frozen=True, slots=True)
class Hit:
    """A document that holds a text."""

    source: str
    document: int
    file: str
    count: int
    around: str  # the first place, with what stands beside it


def rows_of(plan: Plan, step: int) -> list[RowAddress]:
    """What every row of a step reads; a stream is read from its start to get there."""
    stage = plan.stage_at(step)
    assert stage.mixture is not None, "a stage that is reached has a mixture"
    assert stage.start is not None
    loader = Loader(plan, prefetch=0)
    batch = loader.batch(step)
    streamed = _streamed(loader, step)
    sources, source_rows = stage.mixture.deal((step - stage.start) * stage.batch_size, stage.batch_size)
    addresses = []
    for row, (source, source_row) in enumerate(zip(sources.tolist(), source_rows.tolist(), strict=True)):
        name = stage.mixture.names[source]
        if name in streamed:
            read = _stream_row(streamed[name], loader.streams.starts(stage)[name] + source_row)
        else:
            read = _file_row(stage.uses[name].segment, source_row)
        pieces = tuple(_pieces(read, batch.tokens[row], batch.targets[row]))
        padding = stage.seq_len - sum(len(piece.tokens) for piece in pieces)
        addresses.append(RowAddress(row, name, read.epoch, read.position, pieces, padding))
    loader.close()
    return addresses


class _Document(NamedTuple):
    """The document that holds a token, and where in its file it starts and ends."""

    file: str
    number: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class _RowRead:
    """A row's pieces, and how to find the document at an offset of a file."""

    position: int
    epoch: int
    pieces: NDArray[np.int64]
    document_at: Callable[[int, int], _Document]


def _file_row(segment: Segment | None, source_row: int) -> _RowRead:
    assert segment is not None, "the loader has read it"
    position = segment.start + source_row
    number, within = segment.reading.locate(position)
    blocks = _file_blocks(segment.reading)

    def document_at(file: int, offset: int) -> _Document:
        document, start = blocks.document_at(file, offset)
        return _Document(blocks.files[file].name, document, start, blocks.document_span(document)[2])

    pieces = segment.reading.window(number).row_pieces(within)
    return _RowRead(position, segment.reading.place(number)[0], pieces, document_at)


def _streamed(loader: Loader, step: int) -> dict[str, LaneRows]:
    """The rows of a step that come from streams."""
    first, end = loader.streams.positions(step), loader.streams.positions(step + 1)
    lanes = loader.streams.lanes
    return {name: lanes[name].at(first[name], end[name]) for name in lanes if first[name] < end[name]}


def _stream_row(rows: LaneRows, position: int) -> _RowRead:
    def document_at(file: int, offset: int) -> _Document:
        documents = rows.documents[file]
        number = int(np.searchsorted(documents.ends, offset, side="right"))
        upstream = f"file {documents.files[number]:,}, example {documents.examples[number]:,}"
        where = f"lane {documents.lane}, window {documents.window} ({upstream})"
        start, end = (int(documents.ends[number - 1]) if number else 0), int(documents.ends[number])
        return _Document(where, documents.first + number, start, end)

    within = position - rows.first
    return _RowRead(position, rows.epochs[within], rows.window.row_pieces(within), document_at)


def _pieces(read: _RowRead, tokens: NDArray[np.int32], targets: NDArray[np.int32]) -> Iterator[PieceAddress]:
    column = 0
    for offset, word in read.pieces.tolist():
        length = length_of(word)
        stop = min(column + length, len(tokens))  # a row of crop has one token more, which is a target only
        document = read.document_at(file_of(word), offset)
        yield PieceAddress(
            file=document.file,
            document=document.number,
            start=offset - document.start,
            stop=offset - document.start + length,
            length=document.end - document.start,
            tokens=tokens[column:stop],
            loss_mask=targets[column:stop] != IGNORED,
        )
        column = stop


def places_of(plan: Plan, source: str, document: int) -> list[Place]:
    """Every place in the run where a document, or a piece of it, is read; in order of the steps."""
    if isinstance(plan.config.sources.get(source), StreamSource):
        what = f"{source} is a stream: where a document of it is read is known only when it is. Ask for a step."
        raise PlanError([Problem("", what)])
    if source not in plan.sources:
        known = ", ".join(sorted(plan.sources)) or "none"
        raise PlanError([Problem("", f'there is no source "{source}" on disk. There is: {known}.')])
    places: list[Place] = []
    for stage in plan.stages:
        given = stage.uses.get(source)
        if given is not None and given.segment is not None:
            places.extend(_places_in_stage(stage, source, document, given.segment, given.rows))
    return sorted(places, key=lambda place: (place.step, place.row, place.start))


def find_text(plan: Plan, text: str, tokenizer: Tokenizer) -> Iterator[Hit]:
    """The documents that hold a text, of all sources on disk: decoded one by one, so that no token hides it."""
    for name in sorted(plan.sources):
        blocks = plan.sources[name].blocks
        if not isinstance(blocks, FileBlocks):
            continue
        for document in range(blocks.num_documents):
            file, start, end = blocks.document_span(document)
            decoded = tokenizer.decode(blocks.files[file].tokens[start:end].tolist())
            place = decoded.find(text)
            if place >= 0:
                around = decoded[max(0, place - AROUND) : place + len(text) + AROUND]
                yield Hit(name, document, blocks.files[file].name, decoded.count(text), " ".join(around.split()))


def why_not_read(plan: Plan, source: str, document: int) -> str:
    """Why a document has no place in the run."""
    blocks = plan.sources[source].blocks
    assert isinstance(blocks, FileBlocks), "only files have documents to name"
    _, start, end = blocks.document_span(document)
    if start == end:
        return "it is empty"
    return "it is held out for validation" if blocks.is_held_out(document) else "the run ends before it"


def _places_in_stage(stage: PlannedStage, source: str, document: int, segment: Segment, rows: int) -> Iterator[Place]:
    assert stage.mixture is not None
    assert stage.start is not None
    reading = segment.reading
    blocks = _file_blocks(reading)
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
                step, row = divmod(row - 1, stage.batch_size)
                begin = int(offsets[piece]) - start
                epoch = reading.place(number)[0]
                yield Place(stage.start + step, row, stage.name, epoch, begin, begin + int(lengths[piece]))


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


def _file_blocks(reading: Reading) -> FileBlocks:
    assert isinstance(reading.blocks, FileBlocks), "only files have documents to name"
    return reading.blocks
