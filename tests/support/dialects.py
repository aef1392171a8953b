"""What the tests of every dialect ask: what was said, what was refused, what was planned."""

import re
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from trivium.config.dialects import dialect_of
from trivium.config.dialects.translation import Notes
from trivium.config.load import load, read_tables
from trivium.errors import ConfigError
from trivium.plan.export import plan_json
from trivium.plan.make import make_plan
from trivium.plan.plan import Plan

EXAMPLES = Path(__file__).parents[2] / "docs" / "dialects"


def notes(file: Path, **settings: Any) -> list[str]:
    """All notes of a config, and its warnings, without the file's name."""
    loaded = load(file, **settings)
    told = (*loaded.notes.differs, *loaded.notes.decides_nothing, *loaded.warnings)
    return [str(note).removeprefix(f"{file.name}: ") for note in told]


def refusal(file: Path, **settings: Any) -> list[str]:
    """The problems of a config, without the file's name and the line."""
    with pytest.raises(ConfigError) as caught:
        load(file, **settings)
    return [re.sub(rf"^{re.escape(file.name)}(:\d+)?: ", "", str(problem)) for problem in caught.value.problems]


def plan_of(file: Path, **settings: Any) -> Plan:
    return make_plan(load(file, **settings).config)


def spans(plan: Plan) -> list[tuple[str, int | None, int | None]]:
    return [(stage.name, stage.start, stage.end) for stage in plan.stages]


def shares(plan: Plan) -> list[dict[str, float]]:
    return [{name: float(share) for name, share in (stage.shares or {}).items()} for stage in plan.stages]


def converted_is_the_same(file: Path, ours: Path, **settings: Any) -> None:
    """What is converted loads as ours, without a note, and gives the same plan."""
    theirs = load(file, **settings)
    ours.write_text(tomli_w.dumps(theirs.raw))
    again = load(ours)
    assert again.config == theirs.config
    assert again.notes == Notes()
    assert plan_json(make_plan(again.config)) == plan_json(make_plan(theirs.config))


def unsaid_of(dialect: str, file: Path) -> list[str]:
    """The odd values of a config of another tool's that are in none of its translation's tables, notes and problems."""
    raw = read_tables(file)
    found = dialect_of(dialect).translate(raw, file.name, 1)
    told = (
        *found.notes.differs,
        *found.notes.decides_nothing,
        *found.problems,
        *(each.problem for each in found.needed),
    )
    return left_unsaid(raw, repr(found.raw) + " ".join(map(str, told)))


def left_unsaid(raw: Any, loaded: str) -> list[str]:
    """The odd values (text that begins with "odd", numbers with 77 in them) that turn up nowhere."""
    if isinstance(raw, dict):
        return [found for value in raw.values() for found in left_unsaid(value, loaded)]
    if isinstance(raw, list):
        return [found for value in raw for found in left_unsaid(value, loaded)]
    odd = (isinstance(raw, str) and raw.startswith("odd")) or (
        isinstance(raw, int | float) and not isinstance(raw, bool) and "77" in str(raw)
    )
    return [str(raw)] if odd and str(raw) not in loaded else []
