"""torchtitan's data fields -> sources and stages.

Rules: no `[[training.data_stages]]` gives one stage "default" from `[training]`; a first stage that
starts after 0 gets a "default" stage before it. A stage covers `[start_step, end_step)`. A dataset that they register
by name is read from where they read it: `dataset_path`, else the Hub, or a folder below that of the command.
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from trivium.config.dialects.torchtitan_keys import ADDED, DATASETS
from trivium.config.dialects.translation import NamedSources, Theirs, is_number, stage_name
from trivium.config.keys import Path, listed, nearest
from trivium.config.problems import show_value

TYPES = ("huggingface", "nanoset", "preprocessed", "packed_memmap")
FIELDS = ("dataset", "dataset_path", "dataset_type", "dataset_folders", "dataset_weights", "seq_len")
SEED = "dataset_random_seed"
WEIGHTS_TOLERANCE = Fraction(1, 1000)
DEFAULT_STEPS = 10_000
DEFAULT_NAME = "default"
DEFAULT_DATASET = "c4_test"
DEFAULT_SEED = 1234


@dataclass(frozen=True, slots=True)
class Span:
    """The path of a stage of theirs in the file, its name, and the steps it covers."""

    path: Path
    name: str
    start: int
    end: int


@dataclass(slots=True)
class DataStages:
    """Reads their data fields once; `sources` fills up as stages name them."""

    theirs: Theirs
    family: str
    sources: NamedSources = field(default_factory=NamedSources)
    said: set[str] = field(default_factory=set)

    @property
    def steps(self) -> int | None:
        steps = self.theirs.take("training", "steps", default=DEFAULT_STEPS)
        return steps if isinstance(steps, int) and not isinstance(steps, bool) and steps > 0 else None

    @property
    def reads_text(self) -> bool:
        """Whether a tokenizer is needed."""
        return any("add" in table for table in self.sources.tables.values())

    def validation_source(self) -> str | None:
        """The source of `[validation]`, which is read whole, also where theirs streams it."""
        table = self._registered(("validation",), "c4_validation")
        if table is None:
            return None
        if table["kind"] == "stream":
            what = f"{table['dataset']} is fetched and tokenised as a whole for a validation, not streamed."
            self.theirs.differs(("validation", "dataset"), what)
        return self.sources.name_of({**table, "kind": "huggingface", "validation_only": True}, "validation")

    def stages(self) -> list[dict[str, Any]]:
        steps = self.steps
        if steps is None:
            rule = "It must be a whole number, at least 1. Write steps = 1000."
            self.theirs.refuse(("training", "steps"), self.theirs.take("training", "steps"), rule)
        self._check_seed()
        spans = self._spans(steps)
        if spans and spans[0].path != ("training",):
            self._note_overridden(spans)
        return [stage for span in spans if (stage := self._stage(span, steps or span.end)) is not None]

    def _spans(self, steps: int | None) -> list[Span]:
        """Every stage's span, in order of its start; covers `[0, steps)` or there are problems."""
        given = self.theirs.look("training", "data_stages", default=[])
        if not isinstance(given, list) or not all(isinstance(stage, Mapping) for stage in given):
            rule = "It must be a list of tables. Write [[training.data_stages]]."
            self.theirs.refuse(("training", "data_stages"), given, rule)
            self.theirs.taken.add(("training", "data_stages"))
            return []
        names = self._names(len(given))
        spans = []
        for number in range(len(given)):
            path: Path = ("training", "data_stages", number)
            start, _ = (self.theirs.take(*path, key) for key in ("start_step", "end_step"))
            if self.theirs.is_whole((*path, "start_step"), start, at_least=0) and self._before_end(path, start, steps):
                spans.append(Span(path, names[number], start, start))
            else:
                self._stage(Span(path, names[number], 0, 1), 1)  # for its other problems
        if len(spans) < len(given) or steps is None:
            for span in spans:
                self._stage(replace(span, end=span.start + 1), span.start + 1)
            return []
        spans = self._ends(sorted(spans, key=lambda span: span.start), steps)
        if not spans or spans[0].start > 0:
            before = Span(("training",), DEFAULT_NAME, 0, spans[0].start if spans else steps)
            return [before, *(self._renamed(span) for span in spans)]
        return spans

    def _renamed(self, span: Span) -> Span:
        """Makes way for the "default" stage before the first."""
        if span.name != DEFAULT_NAME:
            return span
        self._note_name((*span.path, "name"), DEFAULT_NAME, f"stage-{DEFAULT_NAME}")
        return replace(span, name=f"stage-{DEFAULT_NAME}")

    def _before_end(self, path: Path, start: int, steps: int | None) -> bool:
        if steps is None or start < steps:
            return True
        what = f"is {start:,}, but the run ends at step {steps:,}. Lower it, or raise training.steps."
        self.theirs.problem((*path, "start_step"), what)
        return False

    def _names(self, count: int) -> list[str]:
        """The stages' names; ours are not numbers and have no dots, for overrides name them."""
        names: list[str] = []
        for number in range(count):
            path: Path = ("training", "data_stages", number, "name")
            name = self.theirs.take(*path)
            if not isinstance(name, str) or not name.strip():
                self.theirs.refuse(path, name, 'Write name = "general".')
                name = f"stage-{number}"
            elif name in names:
                what = f"is {show_value(name)}, as is that of data_stages[{names.index(name)}]."
                self.theirs.problem(path, f"{what} Give each one of its own.")
            plain = stage_name(name)
            if plain != name:
                self._note_name(path, name, plain)
            names.append(plain if plain not in names else f"{plain}-{number}")
        return names

    def _note_name(self, path: Path, name: str, ours: str) -> None:
        self.theirs.differs(path, f"is {show_value(name)}, called {show_value(ours)} here.")

    def _ends(self, spans: list[Span], steps: int) -> list[Span]:
        """The spans with their ends: no gap and no overlap; the last one ends with the run."""
        ended = []
        for one, other in itertools.zip_longest(spans, spans[1:]):
            end = until = other.start if other is not None else steps
            path = (*one.path, "end_step")
            given = self.theirs.take(*path)
            if other is not None and other.start == one.start:
                what = f"is {other.start:,}, as is that of {show_value(one.name)}: an overlap. Raise one of the two."
                self.theirs.problem((*other.path, "start_step"), what)
                end = one.start + 1
            elif given is None:
                pass
            elif not isinstance(given, int) or isinstance(given, bool) or given <= one.start:
                what = f"is {show_value(given)}, but the stage starts at {one.start:,}. Write end_step = {until}"
                self.theirs.problem(path, f"{what}, or leave it out.")
            else:
                self._check_end(path, given, other, steps)
                end = min(given, until)
            ended.append(replace(one, end=end))
        return ended

    def _check_end(self, path: Path, end: int, following: Span | None, steps: int) -> None:
        if following is not None and end != following.start:
            fault = "a gap" if end < following.start else "an overlap"
            what = (
                f"is {end:,}, but {show_value(following.name)} starts at {following.start:,}: {fault}. "
                f"Write end_step = {following.start}, or leave it out."
            )
            self.theirs.problem(path, what)
        elif following is None and end < steps:
            what = f"is {end:,}, but the run ends at step {steps:,}. Leave it out, or lower training.steps."
            self.theirs.problem(path, what)
        elif following is None and end > steps:
            self.theirs.differs(path, f"is {end:,}; the run ends before, at step {steps:,}.")

    def _check_seed(self) -> None:
        """The seed of stages that have none of their own."""
        path = ("training", SEED)
        if self.theirs.has(*path):
            self.theirs.is_whole(path, self.theirs.look(*path), at_least=0)

    def _note_overridden(self, spans: list[Span]) -> None:
        """With stages from step 0 on, the data fields of `[training]` decide nothing."""
        unread: tuple[str, ...] = FIELDS
        if all(self.theirs.has(*span.path, SEED) for span in spans):
            unread = (*FIELDS, SEED)
        overridden = [key for key in unread if self.theirs.has("training", key)]
        for key in overridden:
            self.theirs.take("training", key)
        if overridden:
            what = f"{listed(overridden)} {'is' if len(overridden) == 1 else 'are'} overridden by the stages."
            self.theirs.differs(("training",), f"{what} They start at step 0.")

    def _stage(self, span: Span, steps: int) -> dict[str, Any] | None:
        is_default = span.path == ("training",)
        kind = self._take(span, "dataset_type", default="huggingface" if is_default else None)
        seq_len = self._take(span, "seq_len", default=2048 if is_default else None)
        stage: dict[str, Any] = {"name": span.name, "steps": min(span.end, steps) - span.start}
        if self.theirs.is_whole((*span.path, "seq_len"), seq_len, at_least=1):
            stage["seq_len"] = seq_len
        stage["seed"] = self._seed(span)
        if kind not in TYPES:
            self.theirs.refuse((*span.path, "dataset_type"), kind, nearest(str(kind), TYPES))
            self.theirs.taken.update((*span.path, key) for key in FIELDS)
            return None
        names = self._sources_of(span, kind)
        weights = self._take(span, "dataset_weights")
        if not names and weights == []:
            what = "Write a list with one weight for each source, or leave it out."
            self.theirs.refuse((*span.path, "dataset_weights"), weights, what)
        unread = f"dataset_type = {show_value(kind)} does not read it"
        self.theirs.without_effect(dict.fromkeys(("dataset", "dataset_path", "dataset_folders"), unread), *span.path)
        return {**stage, **self._shares(span, names)} if names else None

    def _seed(self, span: Span) -> int:
        """A stage's own seed, else that of `[training]`."""
        path = (*span.path, SEED) if self.theirs.has(*span.path, SEED) else ("training", SEED)
        return self.theirs.take_whole(*path, at_least=0, default=DEFAULT_SEED)

    def _take(self, span: Span, key: str, default: Any = None) -> Any:
        return self.theirs.take(*span.path, key, default=default)

    def _sources_of(self, span: Span, kind: str) -> list[str]:
        """The names of a stage's sources; one for each folder. Takes the fields that this type reads."""
        if kind == "nanoset" or (kind == "packed_memmap" and self.theirs.has(*span.path, "dataset_folders")):
            return [self.sources.name_of({"kind": "tokens", "path": folder}, folder) for folder in self._folders(span)]
        if kind == "huggingface":
            usual = DEFAULT_DATASET if span.path == ("training",) else None
            if usual is None and not self.theirs.has(*span.path, "dataset"):
                self._missing(span, kind, "dataset", '"c4"')
                return []
            table = self._registered(span.path, usual)
            return [] if table is None else [self.sources.name_of(table, str(self._take(span, "dataset", usual)))]
        dataset, path = self.theirs.take_text(*span.path, "dataset"), self.theirs.take_text(*span.path, "dataset_path")
        place = path or dataset
        if place is None:
            self._missing(span, kind, "dataset_path", '"/data/packed"')
            return []
        tokenised = {"kind": "huggingface", "dataset": place, "tokenised": True}
        table = tokenised if kind == "preprocessed" else {"kind": "tokens", "path": place}
        return [self.sources.name_of(table, dataset or place)]

    def _registered(self, path: Path, usual: str | None) -> dict[str, Any] | None:
        """The source of a dataset that they know by name; another name must say where it is."""
        name = self.theirs.take(*path, "dataset", default=usual)
        place = self.theirs.take_text(*path, "dataset_path")
        if not isinstance(name, str) or not name.strip():
            rule = f"It must be the name of a dataset. {nearest(str(name), DATASETS)}"
            self.theirs.refuse((*path, "dataset"), name, rule)
            return None
        add = {"add": ADDED.get(self.family, ["bos", "eos"])}
        known = DATASETS.get(name.lower())
        if known is not None:
            if known["kind"] == "huggingface" and place is None and name not in self.said:
                self.said.add(name)
                what = f"is {show_value(name)}: read from {known['dataset']}, below the folder of this command."
                self.theirs.differs((*path, "dataset"), f"{what} dataset_path names another place.")
            return {**known, **({} if place is None else {"dataset": place}), **add}
        if place is not None:
            what = f"is {show_value(name)}, which is not a name of torchtitan's own: the column text of {place}."
            self.theirs.differs((*path, "dataset"), what)
            return {"kind": "huggingface", "dataset": place, **add}
        rule = f'{nearest(name, DATASETS)} Or say where it is: dataset_path = "/data/{name.strip()}".'
        self.theirs.refuse((*path, "dataset"), name, f"torchtitan registers no such dataset. {rule}")
        return None

    def _folders(self, span: Span) -> list[str]:
        folders = self._take(span, "dataset_folders")
        path = (*span.path, "dataset_folders")
        if not folders:
            self._missing(span, self._take(span, "dataset_type"), "dataset_folders", '["/data/web"]')
            return []
        if not isinstance(folders, list) or not all(isinstance(folder, str) and folder.strip() for folder in folders):
            self.theirs.refuse(path, folders, 'It must be a list of folders. Write dataset_folders = ["/data/web"].')
            return []
        if len(set(folders)) != len(folders):
            self.theirs.problem(path, "names a folder twice. Name it once, with the sum of their weights.")
            return []
        return folders

    def _missing(self, span: Span, kind: str, key: str, example: str) -> None:
        what = f"is missing, which dataset_type = {show_value(kind)} reads. Write {key} = {example}."
        self.theirs.problem((*span.path, key), what)

    def _shares(self, span: Span, names: list[str]) -> dict[str, Any]:
        """`weights` in ours, which are normalised; where there are none, shares in proportion to size."""
        weights = self._take(span, "dataset_weights")
        if weights is None:
            return {"sources": names}
        if not isinstance(weights, list) or len(weights) != len(names):
            sources = "1 source" if len(names) == 1 else f"{len(names)} sources"
            what = f"is {show_value(weights)}, but there {'is' if len(names) == 1 else 'are'} {sources}."
            what = f"{what} Write a list with one weight for each."
        elif not all(is_number(weight) and 0 <= weight <= 1 for weight in weights):
            what = f"is {show_value(weights)}. Each must be a number between 0 and 1."
        else:
            total = sum((Fraction(repr(weight)) for weight in weights), Fraction(0))
            if abs(total - 1) <= WEIGHTS_TOLERANCE:
                if total != 1:
                    note = f"adds up to {float(total):.9g}: normalised to 1."
                    self.theirs.differs((*span.path, "dataset_weights"), note)
                return {"weights": dict(zip(names, weights, strict=True))}
            what = f"adds up to {float(total):.9g}, not 1. Change the weights, so that they do."
        self.theirs.problem((*span.path, "dataset_weights"), what)
        return {}
