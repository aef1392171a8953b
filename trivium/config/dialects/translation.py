"""What a dialect works with: their tables, of which every key is taken or named as left behind."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from trivium.config.keys import MISSING, Path, look_up
from trivium.config.problems import show_value, where
from trivium.errors import Problem


@dataclass(frozen=True, slots=True)
class Translation:
    """Raw tables in our own form, and what the user should know about them."""

    raw: dict[str, Any]
    notes: tuple[Problem, ...] = ()
    # What ours needs and theirs does not say; a problem unless an override says it.
    unsaid: tuple[Problem, ...] = ()


@dataclass(slots=True)
class Theirs:
    """Another tool's tables; remembers which keys were taken, so that the others can be named."""

    raw: Mapping[str, Any]
    file: str
    taken: set[Path] = field(default_factory=set)
    problems: list[Problem] = field(default_factory=list)
    notes: list[Problem] = field(default_factory=list)
    unsaid: list[Problem] = field(default_factory=list)

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

    def is_whole(self, path: Path, value: object, *, at_least: int) -> bool:
        """Whether a value is a whole number that is large enough; a problem where not."""
        if isinstance(value, int) and not isinstance(value, bool) and value >= at_least:
            return True
        found = "is missing" if value is None else f"is {show_value(value)}"
        self.problem(path, f"{found}. It must be a whole number, at least {at_least:,}.")
        return False

    def has(self, *path: str | int) -> bool:
        """Whether a key was written; does not take it."""
        return look_up(self.raw, path) is not MISSING

    def problem(self, path: Path, what: str) -> None:
        """Something in their config that cannot be."""
        self.problems.append(Problem(where(self.file, path), what))

    def note(self, path: Path, what: str) -> None:
        """Something the user should know."""
        self.notes.append(Problem(where(self.file, path), what))

    def note_the_rest(self) -> None:
        """Name every key that was not taken."""
        for path, value in self._leaves((), self.raw):
            if not any(path[: len(taken)] == taken for taken in self.taken):
                self.note(path, f"not carried over (it is {show_value(value)}): nothing here takes it.")

    def _leaves(self, path: Path, value: Any) -> Iterator[tuple[Path, Any]]:
        if isinstance(value, Mapping):
            for key, inner in value.items():
                yield from self._leaves((*path, key), inner)
        elif isinstance(value, list) and value and all(isinstance(inner, Mapping) for inner in value):
            for number, inner in enumerate(value):
                yield from self._leaves((*path, number), inner)
        else:
            yield path, value
