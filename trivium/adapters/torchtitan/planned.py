"""A config's path and torchtitan's model -> the run's plan, the same on all ranks; or all that cannot be.

Rank 0 opens the sources and plans. The others wait for what it found out, in the store that they have met by, and make
the same plan of it without looking at a file. Text must be prepared before (`trivium prepare`): ranks that wait for
hours end by torchtitan's timeouts.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from trivium.adapters.torchtitan import shape
from trivium.adapters.torchtitan.refusals import refused
from trivium.config.lines import KeyPlaces
from trivium.config.load import load, read_tables
from trivium.errors import ConfigError, RankError, SilentRankError, TriviumError
from trivium.files import parse_json
from trivium.plan.make import make_plan
from trivium.plan.plan import CompletePlan, Plan
from trivium.plan.share import found_out, known_sources

FOUND, WAIT = "trivium/found", timedelta(hours=1)
LAST_WORDS = timedelta(seconds=30)  # that rank 0, which has the store, stays for the others to hear of its error


@dataclass(frozen=True, slots=True)
class Planned:
    """A run's plan, whether its rotary positions take the place of torchtitan's, and where its keys are written."""

    plan: CompletePlan
    has_rope: bool
    places: KeyPlaces  # for messages about keys


def make_planned(path: str | Path, overrides: Sequence[str], model: Any, store: Any, rank: int, size: int) -> Planned:
    """The plan of a launch; rank 0 raises what is wrong with it, and the others end without a word."""
    tables = read_tables(Path(path))
    loaded = load(path, [*shape.added(model, tables, overrides), *overrides], world_size=size)
    has_rope = shape.writes_rope(tables) or _overrides_rope(overrides)
    with loaded.places.named():
        if rank == 0:
            try:
                plan = make_plan(loaded.config)
                complete = checked(plan, model)
            except TriviumError as error:
                if size > 1:
                    _tell_error(store, error, size)
                raise
            if size > 1:
                store.set(FOUND, json.dumps({"found": found_out(plan)}))
            return Planned(complete, has_rope, loaded.places)
        told = _told(store, rank)
        known = known_sources(loaded.config, told["found"])
        return Planned(make_plan(loaded.config, known).complete(), has_rope, loaded.places)


def _overrides_rope(overrides: Sequence[str]) -> bool:
    return any("rope" in each.partition("=")[0].split(".") for each in overrides)


def _tell_error(store: Any, error: TriviumError, size: int) -> None:
    """Let the other ranks know that rank 0 failed, and wait until they do."""
    store.set(FOUND, json.dumps({"error": str(error)}))
    with suppress(RuntimeError):  # a rank that is gone hears nothing
        store.wait([_heard(rank) for rank in range(1, size)], LAST_WORDS)


def _heard(rank: int) -> str:
    """What a rank sets in the store once it knows that rank 0 failed."""
    return f"trivium/heard/{rank}"


def _told(store: Any, rank: int) -> Mapping[str, Any]:
    """What rank 0 has found out, or a silent end where it failed."""
    store.wait([FOUND], WAIT)
    told: Mapping[str, Any] = parse_json(store.get(FOUND))
    if "error" in told:
        store.set(_heard(rank), "")
        raise SilentRankError(f"rank 0: {told['error']}")
    if "found" not in told:
        raise RankError("rank 0 sent what this rank does not know.")
    return told


def checked(plan: Plan, model: Any) -> CompletePlan:
    """The plan, if torchtitan can train by it; raises everything that is in the way."""
    complete = plan.complete()
    problems = [*shape.differences(model, complete.model), *refused(complete)]
    for find in (shape.form_problems, shape.experts_problems, shape.rope_problems, shape.length_problems):
        problems += find(model, complete)
    if problems:
        raise ConfigError(problems)
    return complete
