"""torchtitan's data fields -> sources and stages.

Rules: no `[[training.data_stages]]` gives one stage "default" from `[training]`; a first stage that
starts after 0 gets a "default" stage before it. A stage covers `[start_step, end_step)`.
"""

import itertools
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from trivium.config.dialects.translation import Theirs
from trivium.config.keys import nearest
from trivium.config.problems import show_value

TYPES = ("huggingface", "nanoset", "preprocessed", "packed_memmap")
FIELDS = ("dataset", "dataset_path", "dataset_type", "dataset_folders", "dataset_weights", "seq_len")
SEED = "dataset_random_seed"
WEIGHTS_TOLERANCE = 0.001
DEFAULT_STEPS = 10_000

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Span:
    """Where a stage of theirs stands in the file, and the steps it covers."""

    path: Path
    name: str
    start: int
    end: int


@dataclass(slots=True)
class DataStages:
    """Reads their data fields once; `sources` fills up as stages name them."""

    theirs: Theirs
    sources: dict[str, dict[str, Any]] = field(default_factory=dict)
    names: dict[tuple[str, ...], str] = field(default_factory=dict)

    @property
    def steps(self) -> int | None:
        """The run's length."""
        steps = self.theirs.take("training", "steps", default=DEFAULT_STEPS)
        return steps if isinstance(steps, int) and steps > 0 else None

    def stages(self) -> list[dict[str, Any]]:
        """Our stages; problems go to `theirs`."""
        if self.steps is None:
            shown = show_value(self.theirs.take("training", "steps"))
            self.theirs.problem(("training", "steps"), f"is {shown}. It must be at least 1. Write steps = 1000.")
            return []
        spans = self._spans(self.steps)
        return [stage for span in spans if (stage := self._stage(span)) is not None]

    def _spans(self, steps: int) -> list[Span]:
        """Every stage's span, in order of its start; covers `[0, steps)` or there are problems."""
        given = self.theirs.take("training", "data_stages", default=[])
        self.theirs.taken.discard(("training", "data_stages"))
        starts: list[tuple[int, int]] = []
        for number in range(len(given)):
            path: Path = ("training", "data_stages", number)
            start = self.theirs.take(*path, "start_step")
            if self._whole((*path, "start_step"), start, at_least=0) and self._before_end(path, start, steps):
                starts.append((start, number))
        if len(starts) != len(given):
            return []
        starts.sort()
        spans = [self._span(starts, index, steps) for index in range(len(starts))]
        self._check_cover(spans, steps)
        if not spans or spans[0].start > 0:
            spans.insert(0, Span(("training",), "default", 0, spans[0].start if spans else steps))
        else:
            self._note_overridden()
        return spans

    def _before_end(self, path: Path, start: int, steps: int) -> bool:
        if start < steps:
            return True
        what = f"is {start:,}, but the run ends at step {steps:,}. Lower it, or raise training.steps."
        self.theirs.problem((*path, "start_step"), what)
        return False

    def _span(self, starts: list[tuple[int, int]], index: int, steps: int) -> Span:
        start, number = starts[index]
        path: Path = ("training", "data_stages", number)
        until = starts[index + 1][0] if index + 1 < len(starts) else steps
        end = self.theirs.take(*path, "end_step")
        if end is None or not self._whole((*path, "end_step"), end, at_least=start + 1):
            end = until
        name = self.theirs.take(*path, "name")
        if not isinstance(name, str) or not name.strip():
            self.theirs.problem((*path, "name"), 'is missing or blank. Write name = "general".')
            name = f"stage-{number}"
        return Span(path, name, start, end)

    def _check_cover(self, spans: list[Span], steps: int) -> None:
        """No gap and no overlap; the last one ends with the run."""
        for one, other in itertools.pairwise(spans):
            if one.end != other.start:
                fault = "a gap" if one.end < other.start else "an overlap"
                what = (
                    f"is {one.end:,}, but {show_value(other.name)} starts at {other.start:,}: {fault}. "
                    f"Write end_step = {other.start}, or leave it out."
                )
                self.theirs.problem((*one.path, "end_step"), what)
        if spans and spans[-1].end < steps:
            what = f"is {spans[-1].end:,}, but the run ends at step {steps:,}. Leave it out, or lower training.steps."
            self.theirs.problem((*spans[-1].path, "end_step"), what)
        if spans and spans[-1].end > steps:
            what = f"is {spans[-1].end:,}; the run ends before, at step {steps:,}."
            self.theirs.note((*spans[-1].path, "end_step"), what)

    def _note_overridden(self) -> None:
        """With stages from step 0 on, the data fields of `[training]` decide nothing."""
        overridden = [key for key in FIELDS if self.theirs.has("training", key)]
        for key in overridden:
            self.theirs.take("training", key)
        if overridden:
            what = f"overridden by the stages, which start at step 0: {', '.join(overridden)}."
            self.theirs.note(("training",), what)

    def _stage(self, span: Span) -> dict[str, Any] | None:
        steps = self.steps
        assert steps is not None, "spans need the run's length"
        kind = self._take(span, "dataset_type", default=None if len(span.path) > 1 else "huggingface")
        seq_len = self._take(span, "seq_len", default=None if len(span.path) > 1 else 2048)
        stage: dict[str, Any] = {"name": span.name, "steps": min(span.end, steps) - span.start}
        if self._whole((*span.path, "seq_len"), seq_len, at_least=1):
            stage["seq_len"] = seq_len
        seed = self._take(span, SEED, default=self.theirs.take("training", SEED))
        if seed is not None and self._whole((*span.path, SEED), seed, at_least=0):
            stage["seed"] = seed
        if kind not in TYPES:
            found = "is missing" if kind is None else f"is {show_value(kind)}"
            self.theirs.problem((*span.path, "dataset_type"), f"{found}. {nearest(str(kind), TYPES)}")
            return None
        names = self._sources_of(span, kind)
        return {**stage, **self._shares(span, names)} if names else None

    def _take(self, span: Span, key: str, default: Any = None) -> Any:
        return self.theirs.take(*span.path, key, default=default)

    def _sources_of(self, span: Span, kind: str) -> list[str]:
        """The names of a stage's sources; one for each folder."""
        dataset, path = self._take(span, "dataset"), self._take(span, "dataset_path")
        folders = self._take(span, "dataset_folders") or []
        if kind == "nanoset":
            if not folders:
                what = 'is missing, which dataset_type = "nanoset" reads. Write dataset_folders = ["/data/web"].'
                self.theirs.problem((*span.path, "dataset_folders"), what)
            return [self._source({"kind": "tokens", "path": folder}, folder) for folder in folders]
        if kind == "huggingface":
            if not dataset:
                what = 'is missing, which dataset_type = "huggingface" reads. Write dataset = "c4".'
                self.theirs.problem((*span.path, "dataset"), what)
                return []
            return [self._source({"kind": "huggingface", "dataset": path or dataset}, dataset)]
        place = path or dataset or (folders[0] if folders else None)
        if place is None:
            what = f'is missing, which dataset_type = "{kind}" reads. Write dataset_path = "/data/packed".'
            self.theirs.problem((*span.path, "dataset_path"), what)
            return []
        if kind == "preprocessed":
            return [self._source({"kind": "huggingface", "dataset": place, "tokenised": True}, dataset or place)]
        return [self._source({"kind": "tokens", "path": place}, dataset or place)]

    def _source(self, table: dict[str, Any], place: str) -> str:
        """The name of a source; the same place has the same name in every stage, so that it is read on."""
        identity = tuple(str(value) for value in table.values())
        if identity not in self.names:
            base = PurePath(place).name.replace(":", "-") or "source"
            taken = set(self.names.values())
            candidates = (base if number == 1 else f"{base}-{number}" for number in range(1, len(taken) + 2))
            name = next(candidate for candidate in candidates if candidate not in taken)
            self.names[identity] = name
            self.sources[name] = table
        return self.names[identity]

    def _shares(self, span: Span, names: list[str]) -> dict[str, Any]:
        """`weights` in ours, which are normalised; where there are none, shares in proportion to size."""
        weights = self._take(span, "dataset_weights")
        path = (*span.path, "dataset_weights")
        if len(set(names)) != len(names):
            self.theirs.problem((*span.path, "dataset_folders"), "names a folder twice. Add up their weights instead.")
            return {}
        if not weights:
            return {"sources": names}
        numbers = [weight for weight in weights if isinstance(weight, int | float) and 0 <= weight <= 1]
        if len(weights) != len(names):
            what = f"has {len(weights)} weights for {len(names)} folders. Give one for each."
        elif len(numbers) != len(weights):
            what = f"is {show_value(weights)}. Each must be between 0 and 1."
        elif abs(sum(numbers) - 1) > WEIGHTS_TOLERANCE:
            what = f"adds up to {sum(numbers):.6g}, not 1. Change the weights."
        else:
            if abs(sum(numbers) - 1) > 1e-9:
                self.theirs.note(path, f"adds up to {sum(numbers):.6g}: normalised to 1.")
            return {"weights": dict(zip(names, numbers, strict=True))}
        self.theirs.problem(path, what)
        return {}

    def _whole(self, path: Path, value: object, *, at_least: int) -> bool:
        if isinstance(value, int) and not isinstance(value, bool) and value >= at_least:
            return True
        found = "is missing" if value is None else f"is {show_value(value)}"
        self.theirs.problem(path, f"{found}. It must be a whole number, at least {at_least:,}.")
        return False
