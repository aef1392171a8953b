"""Validation loss and bits per byte, by source and overall, on documents that are never trained on.

What is read follows the stage: the held-out documents of its sources, in its shares and row length, or a
mixture of its own. Every evaluation of a stage reads the same rows, from the first one on.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from trivium.config.schema import Config
from trivium.engine.base import EvalStats, SourceFigures
from trivium.errors import UsageError
from trivium.loader.stage_reader import RowReader
from trivium.plan.curve import exact
from trivium.plan.plan import CompletePlan
from trivium.plan.stage import CompleteStage
from trivium.rows.batch import IGNORED, Batch
from trivium.rows.blocks import Blocks
from trivium.rows.mixture import normalised
from trivium.rows.reading import Reading, RowSettings, Unread
from trivium.run.events import Evaluated
from trivium.sources.open import OpenSource

VALIDATION_SEED = 0  # of its own, so that runs with other seeds can be compared


@dataclass(frozen=True, slots=True)
class ValidationRows:
    """Rows of one source's held-out documents."""

    source: str
    reading: Reading
    rows: int


def validation_rows(plan: CompletePlan, stage: CompleteStage) -> list[ValidationRows]:
    """What an evaluation in a stage reads; empty where nothing is held out."""
    shares = _shares(plan.config, stage)
    held = {name: found for name in shares if (found := held_out(plan.sources.get(name))) is not None}
    kept = {name: shares[name] for name in held if shares[name]}
    if not kept:
        return []
    budget = -(-plan.config.evaluate.tokens // stage.seq_len)
    chosen = []
    for name, share in normalised(kept).items():
        settings = RowSettings(stage.seq_len, "bestfit", VALIDATION_SEED)
        blocks, tokens = held[name]
        reading = Reading(blocks, settings, Unread.all_of(blocks, VALIDATION_SEED))
        all_rows = reading.position_after(0, tokens)
        chosen.append(ValidationRows(name, reading, max(1, min(all_rows, math.ceil(share * budget)))))
    return chosen


def held_out(source: OpenSource | None) -> tuple[Blocks, int] | None:
    """A source's documents for validation and their tokens: those held out, or all of a test split."""
    if source is None:
        return None
    if source.validation_only:
        return source.blocks, source.tokens
    return None if source.held_out is None else (source.held_out, source.held_out_tokens)


def _shares(config: Config, stage: CompleteStage) -> Mapping[str, Fraction]:
    if config.evaluate.mixture is not None:
        return {name: exact(float(share)) for name, share in config.evaluate.mixture.items()}
    if config.evaluate.sources is not None:
        return {name: Fraction(1) for name in config.evaluate.sources}
    return stage.shares


def validation_batches(
    plan: CompletePlan, stage: CompleteStage, batch_rows: int, rank: int = 0, num_ranks: int = 1
) -> Iterator[Batch]:
    """The batches of one evaluation, each of one source; on many ranks a shard of `batch_rows` rows of each.

    Shards are of one size, since all ranks must pass together: where rows run out, some are read that count for
    nothing. 5 rows, 2 ranks -> 0 1 2, and 3 4 with a row 0 without any target.
    """
    for chosen in validation_rows(plan, stage):
        masks_loss = (stage.config.loss_on or plan.sources[chosen.source].loss_on) != "all"
        names = tuple(sorted(plan.config.sources))
        reader = RowReader(chosen.source, chosen.reading, names, masks_loss=masks_loss)
        for first in range(0, chosen.rows, batch_rows * num_ranks):
            size = -(-min(batch_rows * num_ranks, chosen.rows - first) // num_ranks)
            own = min(first + rank * size, chosen.rows)
            count = min(size, chosen.rows - own)
            yield _filled(reader.batch(own, count) if count else None, reader, size)


def _filled(batch: Batch | None, reader: RowReader, size: int) -> Batch:
    """A shard of `size` rows: those that it lacks are the first row again, with nothing to learn."""
    lacking = size - (0 if batch is None else batch.num_rows)
    if not lacking:
        assert batch is not None
        return batch
    spare = reader.batch(0, 1)
    spare.targets[:] = IGNORED
    parts = [spare] * lacking if batch is None else [batch, *[spare] * lacking]
    arrays = zip(*((p.tokens, p.targets, p.segments, p.positions, p.source) for p in parts), strict=True)
    tokens, targets, segments, positions, source = (np.concatenate(each) for each in arrays)
    return Batch(tokens, targets, segments, positions, source, spare.sources)


def first_batch(batches: Iterator[Batch]) -> Batch:
    """Of an evaluation; UsageError where nothing is held out."""
    first = next(batches, None)
    if first is None:
        raise UsageError(
            'batch: split is "validation", but no source of this stage holds documents out. '
            "Set sources.NAME.validation, or name sources in evaluate.sources."
        )
    return first


def add_up(parts: Iterator[EvalStats]) -> dict[str, SourceFigures]:
    """Figures by source, summed over batches."""
    sums: dict[str, SourceFigures] = {}
    for part in parts:
        for name, figures in part.by_source.items():
            sums[name] = _added(sums[name], figures) if name in sums else figures
    return sums


def _added(one: SourceFigures, other: SourceFigures) -> SourceFigures:
    size = None if one.bytes is None or other.bytes is None else one.bytes + other.bytes
    of_text = None if one.text_nats is None or other.text_nats is None else one.text_nats + other.text_nats
    return SourceFigures(one.nats + other.nats, one.tokens + other.tokens, size, of_text)


def evaluate(
    step: int, stage: str, batches: Iterator[Batch], val_step: Callable[[Batch], EvalStats]
) -> Evaluated | None:
    """One evaluation on a stage's rows; None where nothing is held out."""
    started = time.perf_counter()
    sums = add_up(val_step(batch) for batch in batches)
    if not sums:
        return None
    whole = EvalStats(sums)
    return Evaluated(
        step=step,
        stage=stage,
        loss=_loss(whole),
        bits_per_byte=_bits_per_byte(whole),
        loss_by_source={name: _loss(figures) for name, figures in sums.items()},
        bits_per_byte_by_source={name: _bits_per_byte(figures) for name, figures in sums.items()},
        tokens=whole.tokens,
        seconds=time.perf_counter() - started,
    )


def named_scores(found: Any) -> dict[str, float]:
    """What the function of `Trainer.evaluator()` returned, checked."""
    try:
        return {str(name): float(score) for name, score in found.items()}
    except (AttributeError, TypeError, ValueError, RuntimeError):
        what = f"the function of Trainer.evaluator() returned {found!r}"
        raise UsageError(f'{what}. Return scores by name, such as {{"accuracy": 0.5}}.') from None


def _loss(figures: SourceFigures | EvalStats) -> float:
    return figures.nats / max(1, figures.tokens)


def _bits_per_byte(figures: SourceFigures | EvalStats) -> float | None:
    """Of the tokens that have bytes: the nats of special tokens are not the text's."""
    return None if not figures.bytes or figures.text_nats is None else figures.text_nats / math.log(2) / figures.bytes
