"""Other tools' configs as they are: recognised by their tables, translated into ours, nothing dropped silently."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Protocol, cast

from trivium.config import DIALECT_NAMES
from trivium.config.dialects.translation import Translation
from trivium.config.keys import listed, nearest
from trivium.errors import ConfigError, Problem

OURS = ("stages", "sources")


class Dialect(Protocol):
    """What a dialect's module has."""

    def recognises(self, raw: Mapping[str, Any]) -> bool:
        """Whether the tables are that tool's."""

    def translate(self, raw: Mapping[str, Any], file: str, world_size: int | None) -> Translation:
        """Our tables, and every problem of theirs by their own key paths."""


def dialect_of(name: str) -> Dialect:
    """A dialect's module, imported when a config may be of that tool."""
    return cast(Dialect, import_module(f"{__name__}.{name}"))


def translate(raw: dict[str, Any], file: str, dialect: str | None = None, world_size: int | None = None) -> Translation:
    """Our own tables: as they are, or translated from the dialect that is named or recognised."""
    if dialect is None:
        dialect = recognised(raw, file)
    if dialect == "trivium":
        return Translation(raw)
    if dialect not in DIALECT_NAMES:
        what = f'"{dialect}" is not known. {nearest(dialect, [*DIALECT_NAMES, "trivium"])}'
        raise ConfigError([Problem("--dialect", what)])
    return dialect_of(dialect).translate(raw, file, world_size)


def recognised(raw: Mapping[str, Any], file: str) -> str:
    """Whose tables these are; ours where they are nobody else's."""
    if any(table in raw for table in OURS):
        return "trivium"
    found = [name for name in DIALECT_NAMES if dialect_of(name).recognises(raw)]
    if len(found) > 1:
        what = f"has tables of {listed(found)}. Say whose it is: --dialect {found[0]}."
        raise ConfigError([Problem(file, what)])
    return found[0] if found else "trivium"
