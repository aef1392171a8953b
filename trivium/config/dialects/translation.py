"""What a dialect works with: their tables, of which every key is taken or named as left behind."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from trivium.config.keys import MISSING, look_up, show_path
from trivium.config.problems import show_value
from trivium.errors import Problem


@dataclass(frozen=True, slots=True)
class Translation:
    """Raw tables in our own form, and what the user should know about them."""

    raw: dict[str, Any]
    notes: tuple[Problem, ...] = ()


@dataclass(slots=True)
class Theirs:
    """Another tool's tables; remembers which keys were taken, so that the others can be named."""

    raw: Mapping[str, Any]
    file: str
    taken: set[tuple[str | int, ...]] = field(default_factory=set)
    problems: list[Problem] = field(default_factory=list)
    notes: list[Problem] = field(default_factory=list)

    def take(self, *path: str | int, default: Any = None) -> Any:
        """The value at a path, which is thereby carried over."""
        self.taken.add(path)
        return look_up(self.raw, path, default)

    def has(self, *path: str | int) -> bool:
        """Whether a key was written; does not take it."""
        return look_up(self.raw, path) is not MISSING

    def problem(self, path: tuple[str | int, ...], what: str) -> None:
        """Something in their config that cannot be."""
        self.problems.append(Problem(f"{self.file}: {show_path(path)}", what))

    def note(self, path: tuple[str | int, ...], what: str) -> None:
        """Something the user should know."""
        self.notes.append(Problem(f"{self.file}: {show_path(path)}", what))

    def note_the_rest(self) -> None:
        """Name every key that was not taken."""
        for path, value in self._leaves((), self.raw):
            if not any(path[: len(taken)] == taken for taken in self.taken):
                self.note(path, f"not carried over (it is {show_value(value)}): there is nothing like it here.")

    def _leaves(self, path: tuple[str | int, ...], value: Any) -> Iterator[tuple[tuple[str | int, ...], Any]]:
        if isinstance(value, Mapping):
            for key, inner in value.items():
                yield from self._leaves((*path, key), inner)
        elif isinstance(value, list) and value and all(isinstance(inner, Mapping) for inner in value):
            for number, inner in enumerate(value):
                yield from self._leaves((*path, number), inner)
        else:
            yield path, value
