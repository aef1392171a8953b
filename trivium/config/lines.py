"""Which line of a config file a key is on, so that a message can name it: `run.toml:12: stages[0].lr`."""

import re
import tomllib
from collections.abc import Iterator, Sequence
from typing import Any

from trivium.config.keys import Path, show_path
from trivium.errors import Problem

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


def with_lines(
    problems: Sequence[Problem], file: str, lines: dict[Path, int], overrides: Sequence[str]
) -> list[Problem]:
    """The same problems, with the line of the key, or of the nearest table around it, after the file's name.

    A key of an override is not the file's.
    """
    shown = {_plain(show_path(path)): line for path, line in lines.items()}
    overridden = {re.sub(r"\.(\d+)(?=\.|$)", r"[\1]", override.partition("=")[0].strip()) for override in overrides}
    return [_with_line(problem, file, shown, overridden) for problem in problems]


def _with_line(problem: Problem, file: str, shown: dict[str, int], overridden: set[str]) -> Problem:
    prefix = f"{file}: "
    place = problem.where.removeprefix(prefix) if problem.where.startswith(prefix) else ""
    key = _plain(place)
    while key and key not in shown:
        if key in overridden:
            return problem
        key = re.sub(r"(?:^|\.)[^.\[]+$|\[[^\[]*\]$", "", key)
    return Problem(f"{file}:{shown[key]}: {place}", problem.what) if key and key not in overridden else problem


def _plain(key: str) -> str:
    """A key path without quotes; a slash, which some tools write, is a dot."""
    return key.replace('"', "").replace("/", ".")
