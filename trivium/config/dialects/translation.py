"""What a dialect works with: their tables, of which every key is honoured, refused, or known to decide nothing.

The rule for all dialects: a key that changes the model, the data, the objective, the optimizer or the schedule is
translated, or it is a problem that says what to write instead. So is a key that the dialect does not know, for it may
change any of these. A note is for the rest, in one of two groups: what differs from theirs in a way that changes no
number of the run, or is said in other words; and what decides nothing here.
"""

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from trivium.config.keys import MISSING, Path, look_up, show_path
from trivium.config.problems import show_value
from trivium.errors import Problem

ALL_OF_THEM = 1_000_000  # checkpoints that are kept where theirs are never removed
ABSENT: tuple[Any, ...] = (None, "", [], {})  # as good as a key that is not written
NO_CODE = "No code is loaded from a config. Remove it, and what it adds."
MODEL_SIZES: tuple[Path, ...] = (("model", "size"), ("model", "layers"), ("model", "init"))


@dataclass(frozen=True, slots=True)
class NeededKey:
    """A key that ours needs and theirs does not have: a problem, unless an override gives one of these keys of ours."""

    problem: Problem
    ours: tuple[Path, ...]

    def is_missing(self, raw: Mapping[str, Any]) -> bool:
        return all(look_up(raw, path) is MISSING for path in self.ours)


@dataclass(frozen=True, slots=True)
class Notes:
    """What the user of a translated config should know; the second group is shown on request."""

    differs: tuple[Problem, ...] = ()
    decides_nothing: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True)
class Translation:
    """Raw tables in our own form, what the user should know about them, and what cannot be translated."""

    raw: dict[str, Any]
    notes: Notes = Notes()
    needed: tuple[NeededKey, ...] = ()
    problems: tuple[Problem, ...] = ()


@dataclass(slots=True)
class Theirs:
    """Another tool's tables; remembers which keys were taken, so that the others can be named."""

    raw: Mapping[str, Any]
    file: str
    separator: str = "."
    taken: set[Path] = field(default_factory=set)
    problems: list[Problem] = field(default_factory=list)
    different: list[Problem] = field(default_factory=list)
    idle: list[Problem] = field(default_factory=list)
    needed: list[NeededKey] = field(default_factory=list)

    def look(self, *path: str | int, default: Any = None) -> Any:
        """The value at a path, without carrying it over."""
        return look_up(self.raw, path, default)

    def take(self, *path: str | int, default: Any = None) -> Any:
        """The value at a path, which is thereby carried over."""
        self.taken.add(path)
        return self.look(*path, default=default)

    def take_first(self, *paths: Path, default: Any = None) -> Any:
        """The value at the first of these paths that was written; the others stay behind."""
        return next((self.take(*path) for path in paths if self.has(*path)), default)

    def take_whole(self, *path: str | int, at_least: int, default: int) -> int:
        """A whole number; where it is none, a problem, and the default instead."""
        value = self.take(*path, default=default)
        return value if self.is_whole(path, value, at_least=at_least) else default

    def take_needed(self, *path: str | int, at_least: int) -> int | None:
        """A whole number that has no default; a problem where it is missing or none."""
        value = self.take(*path)
        return value if self.is_whole(path, value, at_least=at_least) else None

    def take_number(self, *path: str | int, default: float, over: float | None = None) -> float:
        """A number, at least 0, or over a limit; where it is none, a problem, and the default instead."""
        value = self.take(*path, default=default)
        if is_number(value) and (value >= 0 if over is None else value > over):
            return float(value)
        limit = "at least 0" if over is None else f"over {over:g}"
        self.refuse(path, value, f"It must be a number, {limit}.")
        return default

    def take_choice(self, *path: str | int, choices: Mapping[str, Any], default: str) -> Any:
        """What one of a few words means; where it is another, a problem, and the default instead."""
        value = self.take(*path, default=default)
        if isinstance(value, str) and value.lower() in choices:
            return choices[value.lower()]
        words = " or ".join(filter(None, (", ".join(f'"{word}"' for word in [*choices][:-1]), f'"{[*choices][-1]}"')))
        self.refuse(path, value, f"Write {words}.")
        return choices[default]

    def take_text(self, *path: str | int) -> str | None:
        """A name or a path; absent where it is blank, as many of their defaults are."""
        value = self.take(*path)
        if value is not None and not isinstance(value, str):
            self.refuse(path, value, f"It must be text in quotes. Write {path[-1]} = {show_value(str(value))}.")
            return str(value)
        return value or None

    def take_tables(self, *path: str | int) -> int:
        """The number of tables in the list at a path; a problem, and 0, where it is not a list of tables."""
        given = self.look(*path, default=[])
        if isinstance(given, list) and all(isinstance(table, Mapping) for table in given):
            return len(given)
        self.taken.add(path)
        self.refuse(path, given, "It must be a list of tables.")
        return 0

    def take_trackers(self, every: str) -> dict[str, Any]:
        """Our `track` from `[metrics]`, which two tools write alike; `every` is their key of the interval."""
        known = ("tensorboard", "wandb")
        trackers = [name for name in known if self.take("metrics", f"enable_{name}", default=False)]
        return {"trackers": trackers, "every": self.take("metrics", every, default=10)}

    def is_whole(self, path: Path, value: object, *, at_least: int) -> bool:
        """Whether a value is a whole number that is large enough; a problem where not."""
        if isinstance(value, int) and not isinstance(value, bool) and value >= at_least:
            return True
        self.refuse(path, value, f"It must be a whole number, at least {at_least:,}.")
        return False

    def has(self, *path: str | int) -> bool:
        """Whether a key was written; does not take it."""
        return look_up(self.raw, path) is not MISSING

    def problem(self, path: Path, what: str) -> None:
        """Something in their config that cannot be."""
        self.problems.append(Problem(self.where(path), what))

    def refuse(self, path: Path, value: object, rule: str) -> None:
        """A problem with a value, or with its absence: `is "fp4". Write "bf16" or "fp32".`"""
        self.problem(path, f"{'is missing' if value is None else f'is {show_value(value)}'}. {rule}")

    def differs(self, path: Path, what: str) -> None:
        """A note: something is said in other words here, or happens in another way that the user should know."""
        self.different.append(Problem(self.where(path), what))

    def decides_nothing(self, path: Path, what: str) -> None:
        """A note: a key of theirs that changes nothing here."""
        self.idle.append(Problem(self.where(path), what))

    def assume_ranks(self, path: Path, rows: int, instead: str) -> int:
        """The ranks of a plan where nobody said how many: one."""
        each = f"is {rows} {'row' if rows == 1 else 'rows'} on each rank"
        self.differs(path, f"{each}: taken as 1 rank. For more, give --world-size 8, or {instead}.")
        return 1

    def need(self, path: Path, what: str, *ours: Path) -> None:
        """Something that theirs does not have and an override of ours must give."""
        self.needed.append(NeededKey(Problem(self.where(path), what), ours))

    def need_muon(self, path: Path, mine: str) -> None:
        """Muon differs from tool to tool: ours must be asked for, by those who know how it differs from theirs."""
        what = "trivium's has Nesterov's momentum, and updates scaled by sqrt(max(1, outputs / inputs))"
        rule = f"To train with it, give optimizer.name=muon; or write {mine}."
        self.need(path, f"is {show_value(self.look(*path))}: {what}. {rule}", ("optimizer", "name"))

    def without_effect(self, reasons: Mapping[str, str], *table: str | int) -> None:
        """Name the keys of a table that decide nothing here, each with the reason; the key "*" is all of them."""
        given = self.look(*table) if table else self.raw
        for key in given if isinstance(given, Mapping) else ():
            path = (*table, key)
            reason = reasons.get(key, reasons.get("*"))
            if reason is not None and path not in self.taken:
                self.decides_nothing(path, f"has no effect here (it is {show_value(self.take(*path))}): {reason}.")

    def not_here(self, reasons: Mapping[str, str], *table: str | int) -> None:
        """Refuse the keys of a table that trivium cannot honour, each with what to write instead."""
        for key, instead in reasons.items():
            path = (*table, key)
            if path not in self.taken and self.has(*path):
                value = self.take(*path)
                if value not in ABSENT:
                    self.refuse(path, value, instead)

    def holds(self, values: Mapping[str, Any], *table: str | int) -> None:
        """Take the keys of a table whose values are those that hold here anyway; a tuple has several such values."""
        for key, value in values.items():
            if self.look(*table, key) in (value if isinstance(value, tuple) else (value,)):
                self.take(*table, key)

    def where(self, path: Path) -> str:
        """`run.toml: training.steps`, or `run.yaml: training/steps` where that is how they write it."""
        shown = show_path(path)
        if self.separator != ".":
            shown = shown.replace(".", self.separator)
        return f"{self.file}: {shown}" if shown else self.file

    def refuse_the_rest(self) -> None:
        """Refuse every key that is not known: it may change the run. One without a value changes nothing."""
        for path, value in self._leaves((), self.raw):
            if any(path[: len(taken)] == taken for taken in self.taken):
                continue
            if value in ABSENT:
                self.decides_nothing(path, "has no value.")
            else:
                self.refuse(path, value, "trivium does not know this key. Remove it to train without what it does.")

    def translated(
        self,
        ours: Mapping[str, Any],
        holds: Mapping[str, Mapping[str, Any]] | None = None,
        not_here: Mapping[str, Mapping[str, str]] | None = None,
        without_effect: Mapping[str, Mapping[str, str]] | None = None,
    ) -> Translation:
        """The end of a translation, where every key that was not taken is accounted for.

        By table: `holds` has the values that hold here anyway, `not_here` what to write instead of a key that cannot
        be honoured, `without_effect` the reason why a key decides nothing.
        """
        for table, values in (holds or {}).items():
            self.holds(values, *_parts(table))
        for table, reasons in (not_here or {}).items():
            self.not_here(reasons, *_parts(table))
        for table, reasons in (without_effect or {}).items():
            self.without_effect(reasons, *_parts(table))
        self.refuse_the_rest()
        raw = {key: table for key, table in ours.items() if table}
        notes = Notes(tuple(dict.fromkeys(self.different)), tuple(dict.fromkeys(self.idle)))
        return Translation(raw, notes, tuple(self.needed), tuple(dict.fromkeys(self.problems)))

    def _leaves(self, path: Path, value: Any) -> Iterator[tuple[Path, Any]]:
        if isinstance(value, Mapping):
            for key, inner in value.items():
                yield from self._leaves((*path, key), inner)
        elif isinstance(value, list) and value and all(isinstance(inner, Mapping) for inner in value):
            for number, inner in enumerate(value):
                yield from self._leaves((*path, number), inner)
        else:
            yield path, value


def _parts(table: str) -> list[str]:
    return [part for part in table.split(".") if part]


def is_number(value: object) -> bool:
    """Whether a value is a finite number, and not true or false."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < float("inf")


def stage_name(name: str) -> str:
    """A stage's name as ours may be: no number, without dots."""
    plain = re.sub(r"[.=]", "-", name.strip())
    return f"stage-{plain}" if plain.isdecimal() else plain


def source_name(place: str) -> str:
    """A source's name from a name or a path of theirs: its last part in letters, digits and dashes."""
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", PurePath(place).name).strip("-") or "source"
    return f"source-{plain}" if plain.isdecimal() else plain


@dataclass(slots=True)
class NamedSources:
    """Our sources, as stages of theirs name them; the same place is one source, so that it is read on."""

    tables: dict[str, dict[str, Any]] = field(default_factory=dict)
    names: dict[tuple[tuple[str, str], ...], str] = field(default_factory=dict)

    def name_of(self, table: dict[str, Any], place: str) -> str:
        """The name of a source, which is new or has been named before."""
        identity = tuple((key, str(value)) for key, value in table.items())
        if identity not in self.names:
            base = source_name(place)
            candidates = (base if number == 1 else f"{base}-{number}" for number in itertools.count(1))
            name = next(candidate for candidate in candidates if candidate not in self.tables)
            self.names[identity] = name
            self.tables[name] = table
        return self.names[identity]
