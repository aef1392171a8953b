"""Names of theirs -> names that ours may have: overrides split at dots, and take a number for a position."""

import itertools
import re
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any


def stage_name(name: str) -> str:
    """A stage's name as ours may be: no number, without dots."""
    plain = re.sub(r"[.=]", "-", name.strip())
    return f"stage-{plain}" if plain.isdecimal() else plain


def source_name(place: str) -> str:
    """A source's name from a name or a path of theirs: its last part in letters, digits and dashes."""
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", PurePath(place).name).strip("-") or "source"
    return f"source-{plain}" if plain.isdecimal() else plain


@dataclass(slots=True)
class Sources:
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
