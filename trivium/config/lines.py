"""Which line of a config file a key is on, so that a message can name it: `run.toml:12: stages[0].lr`."""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from trivium.config.keys import Path, key_at, look_up, show_path
from trivium.errors import ConfigError, PlanError, Problem

BY_OVERRIDE = " (set on the command line)"
_NAME = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\]|\\.)*"|'[^']*')"""
_DOTTED = rf"{_NAME}(?:\s*\.\s*{_NAME})*"
_KEY = re.compile(rf"\s*({_DOTTED})\s*=")
_TABLE = re.compile(rf"\s*(\[\[?)\s*({_DOTTED})\s*\]")


def toml_lines(text: str) -> dict[Path, int]:
    """The line of every table and key in a text that is valid TOML; keys of inline tables are on their table's."""
    found: dict[Path, int] = {}
    sizes: dict[Path, int] = {}  # tables of a list so far
    table: Path = ()
    for number, statement in _statements(text):
        header, key = _TABLE.match(statement), _KEY.match(statement)
        if header is not None:
            table = _resolved(_names(header[2]), sizes)
            if header[1] == "[[":
                sizes[table] = sizes.get(table, 0) + 1
                table = (*table, sizes[table] - 1)
            found.setdefault(table, number)
        elif key is not None:
            path = table
            for name in _names(key[1]):
                path = (*path, name)
                found.setdefault(path, number)
    return found


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Headers and keys with their values, which may go over several lines, and the line each begins on."""
    lines = text.split("\n")
    number = 0
    while number < len(lines):
        first = number
        number += 1
        if _KEY.match(lines[first]):
            while number < len(lines) and not _is_whole("\n".join(lines[first:number])):
                number += 1
        yield first + 1, lines[first]


def _is_whole(statement: str) -> bool:
    try:
        tomllib.loads(statement)
    except tomllib.TOMLDecodeError:
        return False
    return True


def _names(dotted: str) -> list[str]:
    """`lr."a.b"` -> `["lr", "a.b"]`."""
    table: Any = tomllib.loads(f"{dotted} = 0")
    names = []
    while isinstance(table, dict):
        ((name, table),) = table.items()
        names.append(name)
    return names


def _resolved(names: Sequence[str], sizes: dict[Path, int]) -> Path:
    """A header's path: `[stages.kl]` is of the last `[[stages]]` so far."""
    path: Path = ()
    for depth, name in enumerate(names):
        path = (*path, name)
        if path in sizes and depth < len(names) - 1:
            path = (*path, sizes[path] - 1)
    return path


def yaml_lines(text: str) -> dict[Path, int]:
    """The line of every key in a text that is valid YAML; keys that an alias repeats are on the alias' line."""
    import yaml

    found: dict[Path, int] = {}

    def walk(path: Path, node: Any) -> None:
        if isinstance(node, yaml.MappingNode):
            pairs = [(key.value, key, value) for key, value in node.value if isinstance(key, yaml.ScalarNode)]
        elif isinstance(node, yaml.SequenceNode):
            pairs = [(number, value, value) for number, value in enumerate(node.value)]
        else:
            return
        for part, marked, value in pairs:
            if (*path, part) not in found:
                found[*path, part] = marked.start_mark.line + 1
                if value.start_mark.index > node.start_mark.index:  # an alias points back: its keys have been found
                    walk((*path, part), value)

    walk((), yaml.compose(text, yaml.SafeLoader))
    return found


@dataclass(frozen=True)
class KeyPlaces:
    """Where the keys of a config were written: on which line of its file, or on the command line."""

    file: str
    text: str
    is_yaml: bool = False
    overridden: frozenset[str] = frozenset()  # keys as messages write them

    @cached_property
    def lines(self) -> dict[str, int]:
        """The line of each key, as messages write it; found when a message needs it."""
        found = yaml_lines(self.text) if self.is_yaml else toml_lines(self.text)
        return {_plain(show_path(path)): line for path, line in found.items()}

    @contextmanager
    def named(self) -> Iterator[None]:
        """Every problem with a key that the block raises names the file and line of the key."""
        try:
            yield
        except (ConfigError, PlanError) as error:
            raise type(error)([self.name(problem) for problem in error.problems]) from None

    def name(self, problem: Problem) -> Problem:
        """The same problem, with the line of its key, or of the nearest table around it, after the file's name."""
        is_named, of_file = (problem.where.startswith(f"{self.file}:{space}") for space in ("", " "))
        if problem.where.endswith(BY_OVERRIDE) or (not of_file and (is_named or not _is_key(problem.where))):
            return problem
        place = problem.where.removeprefix(f"{self.file}: ")
        around = list(_tables_around(_plain(place.partition(": ")[0])))
        if any(key in self.overridden for key in around):
            return Problem(f"{self.file}: {place}{BY_OVERRIDE}", problem.what)
        line = next((f":{self.lines[key]}" for key in around if key in self.lines), "")
        return Problem(f"{self.file}{line}: {place}", problem.what)


def _is_key(where: str) -> bool:
    """Whether a place is a key of the config, and not a file."""
    first_parts = re.findall(r'"[^"]*"|[^.\[\]]+', where.partition(": ")[0])[:2]
    return "/" not in where and bool(first_parts) and key_at(tuple(first_parts), {}).field is not None


def _tables_around(key: str) -> Iterator[str]:
    """`stages[0].lr.scale`, `stages[0].lr`, `stages[0]`, `stages`."""
    parts = re.findall(r"\.?[^.\[]+|\[[^\[]*\]|.", key)
    for end in range(len(parts), 0, -1):
        yield "".join(parts[:end])


def overridden_keys(overrides: Sequence[str], raw: Mapping[str, Any]) -> frozenset[str]:
    """The keys that overrides set, as messages write them: `stages.long.lr=1` sets `stages[1].lr`."""
    stages = look_up(raw, ("stages",), [])
    names = [look_up(stage, ("name",)) for stage in stages] if isinstance(stages, list) else []
    keys = set()
    for override in overrides:
        path: Path = ()
        for part in override_path(override.partition("=")[0]):
            is_number = path == ("stages",) and (part in names or part.isdecimal())
            path = (*path, (names.index(part) if part in names else int(part)) if is_number else part)
        keys.add(_plain(show_path(path)))
    return frozenset(keys)


def override_path(key: str) -> list[str]:
    """`stages[0].lr` and `stages.0.lr` -> `["stages", "0", "lr"]`."""
    return re.sub(r"\[(\d+)\]", r".\1", key.strip()).split(".")


def _plain(key: str) -> str:
    """A key path without quotes; a slash, which some tools write, is a dot."""
    return key.replace('"', "").replace("/", ".")
