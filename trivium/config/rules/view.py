"""How the rules of `check` see a config: its values, what was written, and where."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from trivium.config.fields import Extent
from trivium.config.keys import MISSING, Path, listed, look_up
from trivium.config.problems import where
from trivium.config.schema import Config
from trivium.config.stages import Stage, merged_stages
from trivium.errors import Problem


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem, or a warning about something that works but may not be meant."""

    problem: Problem
    is_warning: bool = False


@dataclass(frozen=True)
class View:
    """A config, the raw tables it came from, and the name of its file."""

    config: Config
    raw: Mapping[str, Any]
    file: str

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        return merged_stages(self.config.stages, self.config.defaults)

    @cached_property
    def source_names(self) -> tuple[str, ...]:
        """Every source that was written, also those that did not validate."""
        return self.written("sources")

    def given(self, *path: str | int) -> bool:
        """Whether a key was written, sound or not."""
        return look_up(self.raw, path) is not MISSING

    def absent(self, *path: str | int) -> bool:
        """Whether a key is missing; not where its table is not a table, which is a problem of its own."""
        above = [look_up(self.raw, path[:depth]) for depth in range(1, len(path))]
        return not self.given(*path) and all(table is MISSING or isinstance(table, Mapping | list) for table in above)

    def unknown_source(self, name: str) -> bool:
        """Whether no source has this name; not where there are none at all, which is a problem of its own."""
        return bool(self.source_names) and name not in self.source_names

    def written(self, *path: str | int) -> tuple[str, ...]:
        """The keys that were written in a table, sound or not."""
        table = look_up(self.raw, path)
        return tuple(table) if isinstance(table, Mapping) else ()

    def stage_given(self, number: int, key: str) -> bool:
        """Whether a stage has a key, of its own or from `[defaults]`."""
        return self.given("stages", number, key) or self.given("defaults", key)

    def unsound(self, number: int, *keys: str) -> bool:
        """Whether one of a stage's keys was written but did not validate, so that its value is not known."""
        return any(self.stage_given(number, key) and key not in self.stages[number].model_fields_set for key in keys)

    def stage_path(self, number: int, *keys: str) -> Path:
        """Where a stage's key was written: in the stage, or in `[defaults]`."""
        if keys and not self.given("stages", number, keys[0]) and self.given("defaults", keys[0]):
            return ("defaults", *keys)
        return ("stages", number, *keys)

    def problem(self, path: Path, what: str) -> Finding:
        return Finding(Problem(where(self.file, path), what))

    def warning(self, path: Path, what: str) -> Finding:
        return Finding(Problem(where(self.file, path), what), is_warning=True)

    def extent_rules(self, path: Path, extent: Extent | None, *, fraction: bool = True) -> Iterator[Finding]:
        """Exactly one of steps, tokens and (where it makes sense) fraction."""
        if extent is None:
            return
        units = ("steps", "tokens", "fraction") if fraction else ("steps", "tokens")
        written = [unit for unit in EXTENT_EXAMPLES if self.given(*path, unit)]
        choices = listed([f"{{ {unit} = {EXTENT_EXAMPLES[unit]} }}" for unit in units], "or")
        if written == ["fraction"] and not fraction:
            of_itself = " of itself" if path[-1] == "horizon" else ""
            yield self.problem(path, f"cannot be a fraction{of_itself}. Write {choices}.")
        elif len(written) > 1:
            yield self.problem(path, f"has {listed(written)}, but needs exactly one of them. Write {choices}.")
        elif not self.written(*path):
            yield self.problem(path, f"is empty. Write {choices}.")


def one_way(view: View, path: Path, ways: tuple[str, ...]) -> Iterator[Finding]:
    """Of several keys that decide one thing, a table has one."""
    given = [key for key in ways if view.given(*path, key)]
    if len(given) > 1:
        yield view.problem(path, f"has {listed(given)}, but needs one of them at most. Keep one.")


EXTENT_EXAMPLES = {"steps": "2000", "tokens": '"1B"', "fraction": "0.01"}
