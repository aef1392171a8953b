"""The streams of a plan: which rows each has given before a step, their lanes, their state at a step."""

from collections.abc import Callable, Mapping
from typing import Any

from trivium.config.sources import StreamSource
from trivium.errors import PlanError, Problem, ResumeError, SourceError
from trivium.plan.plan import ReadablePlan
from trivium.plan.stage import CompleteStage
from trivium.sources.stream.dataset import StreamDataset
from trivium.sources.stream.lanes import Lanes, Stretch
from trivium.text.tokenizer import open_tokenizer


class Streams:
    """Every stream that a plan reads; nothing is fetched before a row is asked for."""

    def __init__(
        self, plan: ReadablePlan, say: Callable[[str], None], stopping: Callable[[], bool], keep_rows: int
    ) -> None:
        self.plan = plan
        used = {name for stage in plan.stages for name, use in stage.uses.items() if use.rows}
        sources = {name: source for name, source in plan.config.sources.items() if name in used}
        streams = {name: source for name, source in sources.items() if isinstance(source, StreamSource)}
        tokenizer = open_tokenizer(plan.config.tokenizer) if streams else None
        self.lanes: dict[str, Lanes] = {}
        for name, source in streams.items():
            if tokenizer is None:
                what = 'is a stream of text, and the config names no tokenizer. Write [tokenizer] with kind = "bytes"'
                raise PlanError([Problem(f"sources.{name}", f"{what} or a path.")])
            written = plan.config.model.vocab  # which ids a stage reads is known when they are gathered
            _check_vocab(name, tokenizer.vocab, None if written is None else max(written, plan.largest_vocab))
            try:
                stream = StreamDataset(name, source, tokenizer, config=plan.config.tokenizer)
            except SourceError as error:
                raise PlanError([Problem(f"sources.{name}", str(error))]) from error
            stream.stopping = stopping
            self.lanes[name] = Lanes(stream, _stretches(plan, name), say, keep_rows)

    def starts(self, stage: CompleteStage) -> dict[str, int]:
        """The position at which a stage starts to read each stream."""
        return {name: _rows_before(self.plan, name, stage.index) for name in self.lanes}

    def positions(self, step: int) -> dict[str, int]:
        """How many rows each stream has given before a step."""
        stage = self.plan.stage_at(min(step, self.plan.total_steps - 1))
        counts = stage.mixture.count(stage.rows_before(step)).tolist()
        within = dict(zip(stage.mixture.names, counts, strict=True))
        return {name: start + within.get(name, 0) for name, start in self.starts(stage).items()}

    def state(self, step: int) -> dict[str, Any]:
        """The state of every stream that was read before a step."""
        return {name: self.lanes[name].state_at(at) for name, at in self._read_before(step).items()}

    def load(self, states: Mapping[str, Any], step: int) -> None:
        """Continue from a step, with the states that were saved there."""
        for name, position in self._read_before(step).items():
            found = states.get(name)
            if not isinstance(found, dict) or found.get("position") != position:
                what = f"cannot resume at step {step:,}: the state has no lanes of stream {name} at row {position:,}"
                raise ResumeError(f"{what}. Give the state of this step.")
            self.lanes[name].load(found)

    def jump(self, step: int) -> None:
        """Continue from a step without having read what is before it: for a rehearsal."""
        for name, position in self.positions(step).items():
            self.lanes[name].jump(position)

    def close(self) -> None:
        for lanes in self.lanes.values():
            lanes.close()

    def _read_before(self, step: int) -> dict[str, int]:
        return {name: position for name, position in self.positions(step).items() if position}


def _check_vocab(name: str, ids: int, vocab: int | None) -> None:
    if vocab is not None and ids > vocab:
        what = f"its tokenizer gives ids up to {ids - 1:,}, the model knows 0 to {vocab - 1:,}"
        raise PlanError([Problem(f"sources.{name}", f"{what}. Write model.vocab = {ids} or more.")])


def _rows_before(plan: ReadablePlan, name: str, index: int) -> int:
    return sum(stage.uses[name].rows for stage in plan.stages[:index] if name in stage.uses)


def _stretches(plan: ReadablePlan, name: str) -> list[Stretch]:
    """How the rows of a stream are made, from which position on."""
    return [
        Stretch(_rows_before(plan, name, stage.index), stage.row_settings)
        for stage in plan.stages
        if name in stage.uses and stage.uses[name].rows
    ]
