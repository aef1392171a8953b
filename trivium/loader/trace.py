"""Every token has an address: step -> row -> source, document, span; and back.

Nothing is searched for: the rows of a step are computed as the loader does, and a document's occurrences follow
from its blocks, the order of each epoch and the mixture. Of a stream only the first way is open.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from math import isfinite
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trivium.config.sources import StreamSource
from trivium.errors import PlanError, Problem, SourceError, TriviumError
from trivium.loader.loader import Loader
from trivium.plan.places import Occurrence, file_blocks, occurrences
from trivium.plan.plan import Plan
from trivium.plan.stage import Segment
from trivium.rows.batch import IGNORED
from trivium.rows.blocks import FileBlocks
from trivium.rows.piece import file_of, length_of
from trivium.sources.open import OpenSource
from trivium.sources.stream.lanes import LaneRows
from trivium.text.tokenizer import Tokenizer

TEXT_ROWS, TEXT_PIECES = 32, 8  # of a step that went wrong: the rows that are kept with texts, and the pieces of each
TEXT_TOKENS, TEXT_CHARACTERS = 64, 240  # of a piece, its beginning
AROUND = 30  # characters shown on each side of a text that was found


@dataclass(frozen=True, slots=True)
class PieceOrigin:
    """Which stretch of which document a piece of a row is."""

    file: str  # of tokens; where it is shown, the user's file and line that they were prepared from, if these are known
    document: int  # within its source; of a stream, within its lane and epoch
    start: int  # first token, counted from the document's start
    stop: int
    text: str | None = field(default=None, kw_only=True)  # its beginning, of rows that are kept


@dataclass(frozen=True, slots=True)
class RowOrigin:
    """Which documents a row is made of, to be kept beside a step that went wrong."""

    row: int
    source: str
    epoch: int | None = None
    pieces: tuple[PieceOrigin, ...] = ()
    unknown: str | None = None  # why there are none
    loss: float | str | None = None  # mean over its loss tokens; one that is not finite as text, for JSON


@dataclass(frozen=True, slots=True)
class PieceAddress(PieceOrigin):
    """A stretch of one document in a row, with its tokens."""

    length: int  # tokens of the whole document
    tokens: NDArray[np.int32]
    loss_mask: NDArray[np.bool_]  # whether each token's target counts in the loss
    task: str | None = None  # of a source that mixes several

    @property
    def extent(self) -> str:
        """`whole`, `beginning`, `middle` or `end`."""
        return {(True, True): "whole", (True, False): "beginning", (False, False): "middle", (False, True): "end"}[
            self.start == 0, self.stop == self.length
        ]


@dataclass(frozen=True, slots=True)
class RowAddress:
    """A row of a step: its source, and the pieces of documents in it."""

    row: int
    source: str
    epoch: int
    position: int  # in the source's reading
    pieces: tuple[PieceAddress, ...]
    padding: int


@dataclass(frozen=True, slots=True)
class Hit:
    """A document that holds a text."""

    source: str
    document: int
    file: str  # as of a PieceOrigin that is shown
    count: int
    around: str  # its first occurrence, with the text beside it


def rows_of(plan: Plan, step: int) -> list[RowAddress]:
    """What every row of a step reads; a stream is read from its start to get there."""
    addresses = []
    with Loader(plan, prefetch=0) as loader:
        batch = loader.batch(step)
        for row, name, find in _row_finders(loader, step):
            read = find()
            pieces = tuple(_pieces(read, batch.tokens[row], batch.targets[row], plan.sources.get(name)))
            padding = loader.plan.stage_at(step).seq_len - sum(len(piece.tokens) for piece in pieces)
            addresses.append(RowAddress(row, name, read.epoch, read.position, pieces, padding))
    return addresses


def origins_of(
    loader: Loader, step: int, losses: NDArray[np.float32] | None = None, tokenizer: Tokenizer | None = None
) -> list[RowOrigin]:
    """The documents of every row of a step that a loader has just read, all ranks' rows included.

    It explains a step, and so never costs a run: no source is read again. A row that is no longer
    in memory has the reason in `unknown`. Rows have their losses where these are given, and the highest have texts.
    """
    origins = []
    shown = set() if losses is None else set(by_loss(losses)[:TEXT_ROWS].tolist())
    for row, name, find in _row_finders(loader, step):
        loss = None if losses is None else _plain(float(losses[row]))
        try:
            read = find()
            pieces = tuple(PieceOrigin(*origin) for origin, _ in _located(read))
            if tokenizer is not None and row in shown:
                pieces = tuple(_with_texts(read, pieces, tokenizer))
            origins.append(RowOrigin(row, name, read.epoch, pieces, loss=loss))
        except (TriviumError, OSError) as error:
            origins.append(RowOrigin(row, name, unknown=str(error), loss=loss))
    return origins


def by_loss(losses: NDArray[np.float32]) -> NDArray[np.int64]:
    """The numbers of rows, those with the highest loss first; one that is not finite is higher than any."""
    return np.argsort(-np.where(np.isfinite(losses), losses, np.inf), kind="stable")


def _plain(loss: float) -> float | str:
    return float(f"{loss:.6g}") if isfinite(loss) else str(loss)


def _with_texts(read: "_RowRead", pieces: Iterable[PieceOrigin], tokenizer: Tokenizer) -> Iterator[PieceOrigin]:
    for number, (piece, (offset, word)) in enumerate(zip(pieces, read.pieces.tolist(), strict=True)):
        if number < TEXT_PIECES:
            tokens = read.tokens_at(file_of(word), offset)[: min(TEXT_TOKENS, length_of(word))]
            piece = replace(piece, text=tokenizer.decode(tokens.tolist())[:TEXT_CHARACTERS])
        yield piece


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
    tokens_at: Callable[[int, int], NDArray[np.integer]]  # of a file, from an offset on


def _row_finders(loader: Loader, step: int) -> Iterator[tuple[int, str, Callable[[], _RowRead]]]:
    """Every row of a step: its number, its source, and what finds its pieces."""
    stage = loader.plan.stage_at(step)
    in_memory = loader.rows_in_memory(step)
    streamed = [each.stream for each in (() if in_memory is None else in_memory.loaded) if each.stream is not None]
    starts = loader.streams.starts(stage)
    sources, source_rows = stage.mixture.deal(stage.rows_before(step), stage.size_at(step))
    for row, (source, source_row) in enumerate(zip(sources.tolist(), source_rows.tolist(), strict=True)):
        name = stage.mixture.names[source]
        if name in starts:
            yield row, name, partial(_stream_row, name, streamed, starts[name] + source_row)
        else:
            yield row, name, partial(_file_row, stage.uses[name].segment, source_row)


def _file_row(segment: Segment | None, source_row: int) -> _RowRead:
    assert segment is not None, "the loader has read it"
    position = segment.start + source_row
    number, within = segment.reading.locate(position)
    blocks = file_blocks(segment.reading)

    def document_at(file: int, offset: int) -> _Document:
        document, start = blocks.document_at(file, offset)
        return _Document(blocks.files[file].name, document, start, blocks.document_span(document)[2])

    def tokens_at(file: int, offset: int) -> NDArray[np.integer]:
        return blocks.opened(file).tokens[offset:]

    pieces = segment.reading.window(number).row_pieces(within)
    return _RowRead(position, segment.reading.place(number)[0], pieces, document_at, tokens_at)


def _stream_row(name: str, streamed: list[tuple[str, LaneRows]], position: int) -> _RowRead:
    loaded = [rows for stream, rows in streamed if stream == name]
    rows = next((each for each in loaded if each.first <= position < each.first + each.window.num_rows), None)
    if rows is None:
        raise SourceError(f"row {position:,} of stream {name} is no longer in memory")

    def document_at(file: int, offset: int) -> _Document:
        return _Document(*rows.documents[file].document_at(offset))

    def tokens_at(file: int, offset: int) -> NDArray[np.integer]:
        tokens: NDArray[np.integer] = rows.documents[file].tokens[offset:]
        return tokens

    within = position - rows.first
    return _RowRead(position, rows.epochs[within], rows.window.row_pieces(within), document_at, tokens_at)


def _located(read: _RowRead) -> Iterator[tuple[tuple[str, int, int, int], int]]:
    """A row's pieces as a PieceOrigin has them, each with the tokens of its whole document."""
    for offset, word in read.pieces.tolist():
        document = read.document_at(file_of(word), offset)
        start = offset - document.start
        yield (document.file, document.number, start, start + length_of(word)), document.end - document.start


def _pieces(
    read: _RowRead, tokens: NDArray[np.int32], targets: NDArray[np.int32], source: OpenSource | None
) -> Iterator[PieceAddress]:
    column = 0
    for origin, length in _located(read):
        file, document, start, end = origin
        where = file if source is None else source.origin_of(document) or file
        task = None if source is None else source.task_of(document)
        stop = min(column + end - start, len(tokens))  # a row of crop has one token more, which is a target only
        loss_mask = targets[column:stop] != IGNORED
        yield PieceAddress(where, document, start, end, length, tokens[column:stop], loss_mask, task)
        column = stop


def places_of(plan: Plan, source: str, document: int) -> list[Occurrence]:
    """Every occurrence of a document, or a piece of it, in the run's rows; in order of the steps."""
    if isinstance(plan.config.sources.get(source), StreamSource):
        what = f"{source} is a stream: where a document of it is read is known only when it is. Ask for a step."
        raise PlanError([Problem("", what)])
    if source not in plan.sources:
        known = ", ".join(sorted(plan.sources)) or "none"
        raise PlanError([Problem("", f'there is no source "{source}" on disk. There is: {known}.')])
    found = [each for places in occurrences(plan.stages, plan.sources, source, document) for each in places]
    return sorted(found, key=lambda each: (each.step, each.row, each.start))


def find_text(plan: Plan, text: str, tokenizer: Tokenizer) -> Iterator[Hit]:
    """The documents that hold a text, of all sources on disk: decoded one by one, so that no token hides it."""
    for name in sorted(plan.sources):
        blocks = plan.sources[name].blocks
        if not isinstance(blocks, FileBlocks) or plan.sources[name].view_of is not None:
            continue
        for document in range(blocks.num_documents):
            file, start, end = blocks.document_span(document)
            decoded = tokenizer.decode(blocks.opened(file).tokens[start:end].tolist())
            first = decoded.find(text)
            if first >= 0:
                around = decoded[max(0, first - AROUND) : first + len(text) + AROUND]
                where = plan.sources[name].origin_of(document) or blocks.files[file].name
                yield Hit(name, document, where, decoded.count(text), " ".join(around.split()))


def why_not_read(plan: Plan, source: str, document: int) -> str:
    """Why no row of the run has a piece of a document."""
    blocks = plan.sources[source].blocks
    assert isinstance(blocks, FileBlocks), "only files have documents to name"
    _, start, end = blocks.document_span(document)
    if start == end:
        return "it is empty"
    shortest, limit = blocks.lengths.limits
    if not shortest <= end - start < limit:
        return f"its {end - start:,} tokens are not within the view's lengths"
    return "it is held out for validation" if blocks.is_held_out(document) else "the run ends before it"
