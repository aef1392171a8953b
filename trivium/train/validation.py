"""Validation loss and bits per byte, by source and overall, on documents that are never trained on.

Every evaluation of a run reads the same rows, whatever its stages read: an equal share of `evaluate.tokens` from every
source that holds documents out, in rows of one length. Figures carry a fingerprint of what they were measured on: only
those with the same one can be compared.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from hashlib import blake2b
from typing import Any

import numpy as np

from trivium.config.problems import where
from trivium.config.rules.evaluate import impossible_evaluations, unscored_tasks
from trivium.config.schema import Config
from trivium.engine.base import POSITIONS, EvalStats, SourceFigures
from trivium.engine.loss_weight import EQUAL, LossWeights
from trivium.errors import ConfigError, PlanError, Problem, UsageError
from trivium.loader.stage_reader import RowReader
from trivium.plan.lr.curve import exact
from trivium.plan.plan import CompletePlan
from trivium.rows.batch import IGNORED, Batch
from trivium.rows.blocks import Blocks
from trivium.rows.mixture import normalised
from trivium.rows.reading import Reading, RowSettings, Unread
from trivium.run.events import Evaluated
from trivium.sources.open import OpenSource
from trivium.text.tokenizer import open_tokenizer

VALIDATION_SEED = 0  # of its own, so that runs with other seeds can be compared


@dataclass(frozen=True, slots=True)
class ValidationRows:
    """Rows of one source's held-out documents."""

    source: str
    reading: Reading
    rows: int
    masks_loss: bool  # whether only the tokens that the source's `loss_on` names count
    largest_id: int  # in the source


@dataclass(frozen=True, slots=True)
class ValidationSet:
    """What every evaluation of a run reads; empty where nothing is held out."""

    parts: tuple[ValidationRows, ...]
    sources: tuple[str, ...]  # all of the config's, by which batches number them
    seq_len: int
    vocab: int  # of the model
    tokenizer: str | None  # its fingerprint: it decides the bytes of tokens

    def known(self, vocab: int) -> "ValidationSet":
        """Without sources that have ids beyond a vocabulary: a model that has yet to grow cannot read them."""
        return replace(self, parts=tuple(part for part in self.parts if part.largest_id < vocab), vocab=vocab)

    def fingerprints(self, *, document_mask: bool, averaged: bool = False) -> dict[str, str]:
        """By source, a hash of all that decides its figures except the model; the stage's mask is part of it.

        So is whether the weights or their average are measured.
        """
        how = document_mask, self.tokenizer, *(("average",) if averaged else ())
        return {each.source: _hash(each.reading.key, each.rows, each.masks_loss, *how) for each in self.parts}

    def batches(self, batch_rows: int, rank: int = 0, num_ranks: int = 1) -> Iterator[Batch]:
        """The batches of one evaluation, each of one source; on many ranks a shard of `batch_rows` rows of each.

        Shards are of one size, since all ranks must pass together: where rows run out, some are read that count for
        nothing. 5 rows, 2 ranks -> 0 1 2, and 3 4 with a row 0 without any target.
        """
        for part in self.parts:
            reader = RowReader(part.source, part.reading, self.sources, self.vocab, masks_loss=part.masks_loss)
            for first in range(0, part.rows, batch_rows * num_ranks):
                size = -(-min(batch_rows * num_ranks, part.rows - first) // num_ranks)
                own = min(first + rank * size, part.rows)
                count = min(size, part.rows - own)
                yield _filled(reader.batch(own, count) if count else None, reader, size)


def _hash(*identity: object) -> str:
    return blake2b(repr(identity).encode(), digest_size=16).hexdigest()


def validation_set(plan: CompletePlan) -> ValidationSet:
    """The rows of every source that is evaluated, from the first one on."""
    config = plan.config
    seq_len = config.evaluate.seq_len or plan.stages[0].seq_len
    shares = {name: share for name, share in _shares(config, plan.sources).items() if share}
    budget = -(-config.evaluate.tokens // seq_len)
    parts = []
    _refuse_absent(plan, shares)
    for name, share in normalised(shares).items() if shares else ():
        source = plan.sources[name]
        blocks, tokens = _held_out(source)
        settings = RowSettings(seq_len, "bestfit", VALIDATION_SEED)
        reading = Reading(blocks, settings, Unread.all_of(blocks, VALIDATION_SEED))
        rows = max(1, min(reading.position_after(0, tokens), math.ceil(share * budget)))
        parts.append(ValidationRows(name, reading, rows, source.loss_on != "all", source.largest_id))
    tokenizer = open_tokenizer(config.tokenizer) if parts else None
    names = tuple(sorted(config.sources))
    known_bytes = None if tokenizer is None else tokenizer.fingerprint
    return ValidationSet(tuple(parts), names, seq_len, plan.model.vocab, known_bytes)


def _held_out(source: OpenSource) -> tuple[Blocks, int]:
    """A source's documents for validation and their tokens: those held out, or all of a test split."""
    return (source.blocks, source.tokens) if source.held_out is None else (source.held_out, source.held_out_tokens)


def _shares(config: Config, sources: Mapping[str, OpenSource]) -> Mapping[str, Fraction]:
    """What the config asks for; by default the same of every source that holds documents out."""
    if config.evaluate.mixture is not None:
        return {name: exact(float(share)) for name, share in config.evaluate.mixture.items()}
    names = config.evaluate.sources
    if names is None:
        names = tuple(name for name in config.sources if name in sources and config.sources[name].holds_out)
    return {name: Fraction(1) for name in names}


def refuse_impossible(plan: CompletePlan, *, has_evaluator: bool) -> None:
    """An error for evaluations without anything to evaluate, tasks that are never scored, and sources not on disk."""
    evaluate, stages = plan.config.evaluate, [stage.config for stage in plan.stages]
    found = [*unscored_tasks(plan.config, stages)]
    found += [] if has_evaluator else impossible_evaluations(plan.config, stages)
    problems = [Problem(where("", path), what) for path, what in found]
    if problems:
        raise ConfigError(problems)
    if evaluate.every is not None or evaluate.at_start or any(stage.evaluate for stage in stages):
        _refuse_absent(plan, _shares(plan.config, plan.sources))


def _refuse_absent(plan: CompletePlan, names: Iterable[str]) -> None:
    what = "is evaluated, and is not on disk. Put it there, or leave it out of evaluate.sources."
    problems = [Problem(f"sources.{name}", what) for name in names if name not in plan.sources]
    if problems:
        raise PlanError(problems)


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
            'batch: split is "validation", but no source holds documents out. '
            "Set sources.NAME.validation, or add a source with validation_only = true."
        )
    return first


def add_up(parts: Iterator[EvalStats]) -> EvalStats:
    """Figures by source and by position, summed over batches."""
    sums: dict[str, SourceFigures] = {}
    by_position = np.zeros((len(POSITIONS), 2))
    for part in parts:
        by_position += part.by_position
        for name, figures in part.by_source.items():
            sums[name] = _added(sums[name], figures) if name in sums else figures
    return EvalStats(sums, by_position)


def _added(one: SourceFigures, other: SourceFigures) -> SourceFigures:
    size = None if one.bytes is None or other.bytes is None else one.bytes + other.bytes
    of_text = None if one.text_nats is None or other.text_nats is None else one.text_nats + other.text_nats
    return SourceFigures(one.nats + other.nats, one.tokens + other.tokens, size, of_text)


def evaluate(
    step: int,
    stage: str,
    batches: Iterator[Batch],
    val_step: Callable[[Batch], EvalStats],
    fingerprints: Mapping[str, str],
    weights: LossWeights = EQUAL,
) -> Evaluated | None:
    """One evaluation; None where nothing is held out. `weights` are the stage's, for a figure beside the plain loss."""
    started = time.perf_counter()
    whole = add_up(val_step(batch) for batch in batches)
    sums = whole.by_source
    if not sums:
        return None
    return Evaluated(
        step=step,
        stage=stage,
        loss=_loss(whole),
        bits_per_byte=_bits_per_byte(whole),
        loss_by_source={name: _loss(figures) for name, figures in sums.items()},
        bits_per_byte_by_source={name: _bits_per_byte(figures) for name, figures in sums.items()},
        tokens=whole.tokens,
        seconds=time.perf_counter() - started,
        fingerprint=_hash(*sorted(fingerprints.items())),
        fingerprint_by_source=dict(fingerprints),
        loss_by_position=_loss_by_position(whole),
        weighted_loss=_weighted_loss(sums, weights) if weights else None,
    )


def _weighted_loss(sums: Mapping[str, SourceFigures], weights: LossWeights) -> float:
    nats = {name: figures.nats for name, figures in sums.items()}
    return weights.mean(nats, {name: figures.tokens for name, figures in sums.items()})


def named_scores(found: Any) -> dict[str, float]:
    """What the function of `Trainer.evaluator()` returned, checked."""
    try:
        return {str(name): float(score) for name, score in found.items()}
    except (AttributeError, TypeError, ValueError, RuntimeError):
        what = f"the function of Trainer.evaluator() returned {found!r}"
        raise UsageError(f'{what}. Return scores by name, such as {{"accuracy": 0.5}}.') from None


def _loss_by_position(figures: EvalStats) -> dict[str, float]:
    """The loss of each range of positions that has tokens, by the range's first position."""
    found = zip(POSITIONS, figures.by_position.tolist(), strict=True)
    return {str(first): nats / tokens for first, (nats, tokens) in found if tokens}


def _loss(figures: SourceFigures | EvalStats) -> float:
    return figures.nats / max(1, figures.tokens)


def _bits_per_byte(figures: SourceFigures | EvalStats) -> float | None:
    """Of the tokens that have bytes: the nats of special tokens are not the text's."""
    return None if not figures.bytes or figures.text_nats is None else figures.text_nats / math.log(2) / figures.bytes
