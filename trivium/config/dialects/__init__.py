"""Other tools' configs as they are: recognised by their tables, translated into ours, nothing dropped silently."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from trivium.config.dialects import torchtitan
from trivium.config.dialects.translation import Translation
from trivium.config.keys import nearest
from trivium.errors import ConfigError, Problem


@dataclass(frozen=True, slots=True)
class Dialect:
    """How another tool's config is recognised, and how it is translated."""

    recognises: Callable[[Mapping[str, Any]], bool]
    translate: Callable[[Mapping[str, Any], str, int | None], Translation]


DIALECTS = {"torchtitan": Dialect(torchtitan.recognises, torchtitan.translate)}


def translate(raw: dict[str, Any], file: str, dialect: str | None = None, world_size: int | None = None) -> Translation:
    """Our own tables: as they are, or translated from the dialect that is named or recognised."""
    if dialect is None:
        dialect = next((name for name, known in DIALECTS.items() if known.recognises(raw)), "trivium")
    if dialect == "trivium":
        return Translation(raw)
    if dialect not in DIALECTS:
        what = f'"{dialect}" is not known. {nearest(dialect, [*DIALECTS, "trivium"])}'
        raise ConfigError([Problem("--dialect", what)])
    return DIALECTS[dialect].translate(raw, file, world_size)
