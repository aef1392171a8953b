"""A step of a run -> its rows by loss, each with its documents and the beginning of their texts.

Losses are those that the run kept: of its last thousand steps, and of every step that spiked or was skipped. The rows
themselves follow from the plan, as `trivium inspect` finds them; of a stream, or where the sources are not there any
more, they are those that the run wrote down beside a spike.
"""

from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict

from trivium.config.load import load
from trivium.config.schema import Config
from trivium.config.sources import StreamSource, ViewSource
from trivium.errors import TriviumError, UsageError
from trivium.files import read_json
from trivium.loader.trace import TEXT_CHARACTERS, TEXT_TOKENS, PieceAddress, RowAddress, by_loss, rows_of
from trivium.plan.make import make_plan
from trivium.plan.plan import Plan
from trivium.run.decisions import run_decisions
from trivium.run.folder import RunFolder
from trivium.run.row_losses import KEPT_STEPS, recent_losses
from trivium.text.tokenizer import Tokenizer, open_tokenizer
from trivium.train.guard import NORMAL, SMALLEST_RISE
from trivium.why.override import rerun_command
from trivium.why.recorded import RecordedStep

OUTLYING = 6.0  # robust deviations above the median row, as a loss is above the median step


class KeptPiece(TypedDict):
    """A piece of a row as the run wrote it down."""

    document: int
    file: str
    start: int
    stop: int
    text: str | None


class KeptRow(TypedDict):
    """A row as the run wrote it down."""

    row: int
    source: str
    pieces: list[KeptPiece]
    loss: float | None


KEPT = TypeAdapter(list[KeptRow])


@dataclass(frozen=True, slots=True)
class ShownPiece:
    """A stretch of a document in a row."""

    document: int
    where: str  # the file, or the user's file and line
    start: int
    stop: int
    text: str | None  # its beginning


@dataclass(frozen=True, slots=True)
class ShownRow:
    """A row with its loss."""

    row: int
    source: str
    loss: float
    pieces: tuple[ShownPiece, ...]


@dataclass(frozen=True, slots=True)
class ExplainedStep:
    """A step's rows, the one with the highest loss first."""

    step: int
    stage: str
    rows: tuple[ShownRow, ...]
    # Documents of the rows whose losses stand out, by the source that has them; none where they have no numbers.
    suspects: dict[str, list[int]]

    @property
    def standing_out(self) -> int:
        """How many rows have a loss far above the others; one at least."""
        return outlying(np.array([row.loss for row in self.rows], np.float32))


def outlying(losses: NDArray[np.float32]) -> int:
    """How many of these losses stand out; the highest does in any case."""
    finite = [float(each) for each in losses if isfinite(each)]
    if not finite:
        return len(losses)
    middle = median(finite)
    deviation = NORMAL * median(abs(each - middle) for each in finite)
    limit = middle + max(OUTLYING * deviation, SMALLEST_RISE * abs(middle))
    return max(1, int(np.count_nonzero(~(losses <= limit))))


def explain_step(run: Path, step: int, recorded: RecordedStep) -> ExplainedStep:
    """The rows of a step that a run has taken; UsageError where their losses were not kept."""
    kept = _kept_rows(run, recorded)
    losses = recent_losses(run, step)
    if losses is None and kept is not None:
        losses = np.array([np.nan if row["loss"] is None else row["loss"] for row in kept], np.float32)
    if losses is None:
        what = f"{run}: the losses of the rows of step {step:,} are not kept"
        why = f"A run keeps those of its last {KEPT_STEPS:,} steps, and of every spike"
        raise UsageError(
            f"{what}. {why}: give one of these, or take the step again: {rerun_command(run, step, step, {})}."
        )
    config = run_config(run)
    rows = _shown_rows(run, step, config, losses, kept)
    ordered = tuple(rows[number] for number in by_loss(losses).tolist())
    suspects = _documents(config, ordered[: outlying(np.sort(losses)[::-1])])
    return ExplainedStep(step, recorded.stage, ordered, suspects)


def run_config(run: Path) -> Config:
    """The config that a run was started with."""
    path = run / "config.toml"
    if not path.is_file():
        raise UsageError(f"{run}: has no config.toml. Give the folder of a run, such as runs/base.")
    return load(path).config


def base_name(config: Config, source: str) -> str:
    """The source that has a source's documents: itself, or of a view the other one."""
    found = config.sources.get(source)
    return (found.of or source) if isinstance(found, ViewSource) else source


def run_plan(run: Path, config: Config) -> Plan:
    return make_plan(config, decisions=run_decisions(RunFolder(run)))


def _kept_rows(run: Path, recorded: RecordedStep) -> list[KeptRow] | None:
    """What the run wrote down of the step, where it did."""
    if recorded.rows is None:
        return None
    try:
        content: Any = read_json(run / f"rows/step-{recorded.step:08d}.json")
        return KEPT.validate_python([_completed(row) for row in content])
    except (OSError, ValueError, TypeError, ValidationError):
        return None


def _completed(row: dict[str, Any]) -> dict[str, Any]:
    """A row of an earlier version, which kept neither loss nor text."""
    return {"loss": None, **row, "pieces": [{"text": None, **piece} for piece in row["pieces"]]}


def _shown_rows(
    run: Path, step: int, config: Config, losses: NDArray[np.float32], kept: list[KeptRow] | None
) -> list[ShownRow]:
    streamed = any(isinstance(source, StreamSource) for source in config.sources.values())
    if kept is not None and len(kept) == len(losses) and streamed:  # to find a stream's rows it is read from its start
        return [_of_kept(row, float(loss)) for row, loss in zip(kept, losses, strict=True)]
    try:
        found = rows_of(run_plan(run, config), step)
    except TriviumError:
        if kept is None or len(kept) != len(losses):
            raise
        return [_of_kept(row, float(loss)) for row, loss in zip(kept, losses, strict=True)]
    if len(found) != len(losses):
        what = f"{run}: step {step:,} has {len(found):,} rows by its plan, and {len(losses):,} losses were kept"
        raise UsageError(f"{what}: the config in the folder is not the one that took this step.")
    tokenizer = open_tokenizer(config.tokenizer)
    return [_of_address(row, float(loss), tokenizer) for row, loss in zip(found, losses, strict=True)]


def _of_kept(row: KeptRow, loss: float) -> ShownRow:
    pieces = [
        ShownPiece(each["document"], each["file"], each["start"], each["stop"], each["text"]) for each in row["pieces"]
    ]
    return ShownRow(row["row"], row["source"], loss, tuple(pieces))


def _of_address(row: RowAddress, loss: float, tokenizer: Tokenizer | None) -> ShownRow:
    return ShownRow(row.row, row.source, loss, tuple(_of_piece(piece, tokenizer) for piece in row.pieces))


def _of_piece(piece: PieceAddress, tokenizer: Tokenizer | None) -> ShownPiece:
    tokens = piece.tokens[:TEXT_TOKENS].tolist()
    text = " ".join(map(str, tokens)) if tokenizer is None else tokenizer.decode(tokens)
    return ShownPiece(piece.document, piece.file, piece.start, piece.stop, text[:TEXT_CHARACTERS])


def _documents(config: Config, rows: tuple[ShownRow, ...]) -> dict[str, list[int]]:
    """The documents of rows, by the source that has them; those of streams have no numbers to be named by."""
    found: dict[str, dict[int, None]] = {}
    for row in rows:
        name = base_name(config, row.source)
        if not isinstance(config.sources.get(name), StreamSource):
            found.setdefault(name, {}).update((piece.document, None) for piece in row.pieces)
    return {name: list(documents) for name, documents in found.items()}


def with_fewer(explained: ExplainedStep, most: int) -> ExplainedStep:
    """The same with this many rows at the most."""
    return replace(explained, rows=explained.rows[:most])
