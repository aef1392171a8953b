"""Rules about sources that are named, and their shares: in stages, and in evaluations."""

from collections.abc import Iterator, Mapping, Sequence

from trivium.config.keys import Path, look_up, nearest
from trivium.config.problems import show_value
from trivium.config.rules.view import Finding, View
from trivium.config.sources import (
    base_of,
)

SHARES_TOLERANCE = 1e-6
HELD_OUT = "Take it out, or remove validation_only from the source."
HOLDS_NOTHING = "Take it out, or write sources.{}.validation = 0.01."


def names_rules(view: View, path: Path, names: Sequence[str]) -> Iterator[Finding]:
    """A list of known sources, each named once; for training, none that is held out whole."""
    for name in dict.fromkeys(names):
        if view.unknown_source(name):
            yield view.problem(path, f"{show_value(name)} is not a source. {nearest(name, view.source_names)}")
        elif path[0] == "evaluate" and _holds_nothing(view, name):
            yield view.problem(path, f"{show_value(name)} holds no documents out. {HOLDS_NOTHING.format(name)}")
        elif path[0] != "evaluate" and _held_out(view, name):
            yield view.problem(path, f"{show_value(name)} is a source for validation only. {HELD_OUT}")
        if names.count(name) > 1:
            yield view.problem(path, f"names {show_value(name)} {names.count(name)} times. Name it once.")


def shares_rules(view: View, path: Path, shares: Mapping[str, float]) -> Iterator[Finding]:
    """Shares of known sources that add up to 1, or weights that are not all zero."""
    yield from known_rules(view, path, shares)
    if set(view.written(*path)) != set(shares):
        return  # a share that is not a number was reported already; the sum means nothing
    total = sum(shares.values())
    written = show_value(look_up(view.raw, path))
    noun = "weight" if path[-1] == "weights" else "share"
    if total == 0:
        yield view.problem(path, f"is {written}: nothing to read. Give a source a positive {noun}.")
    elif noun == "share" and abs(total - 1) > SHARES_TOLERANCE:
        relative = "so that they do" if path[0] == "evaluate" else f"or write weights = {written}"
        yield view.problem(path, f"adds up to {total:.9g}, not 1. Change the shares, {relative}.")


def known_rules(view: View, path: Path, shares: Mapping[str, float]) -> Iterator[Finding]:
    """Every source that has a share is there, and may be read."""
    for name in shares:
        if view.unknown_source(name):
            what = f"there is no source {show_value(name)}. {nearest(name, view.source_names)}"
            yield view.problem((*path, name), what)
        elif path[0] == "evaluate" and shares[name] and _holds_nothing(view, name):
            yield view.problem((*path, name), f"holds no documents out. {HOLDS_NOTHING.format(name)}")
        elif path[0] != "evaluate" and _held_out(view, name):
            yield view.problem((*path, name), f"is a source for validation only. {HELD_OUT}")


def _held_out(view: View, name: str) -> bool:
    source = base_of(view.config.sources, name)
    return source is not None and source.validation_only


def _holds_nothing(view: View, name: str) -> bool:
    """Whether a source has nothing for validation; not where a value that did not validate asks for some."""
    source = base_of(view.config.sources, name)
    if source is None or source.holds_out:
        return False
    asked = [key for key in ("validation", "validation_only") if view.given("sources", name, key)]
    return set(asked) <= source.model_fields_set
