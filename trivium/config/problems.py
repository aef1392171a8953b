"""What a validation error means to the person who wrote the config.

Turns pydantic's errors into problems: the key as it was written, the value, the rule, what to write.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

from pydantic_core import ErrorDetails

from trivium.config.keys import MISSING, Path, key_at, look_up, nearest, show_path
from trivium.config.sources import KINDS

NOUNS = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "string_type": "text in quotes",
    "bool_type": "true or false",
    "dict_type": "a table",
    "mapping_type": "a table",
    "model_type": "a table",
    "model_attributes_type": "a table",
    "tuple_type": "a list",
    "list_type": "a list",
}
BOUNDS = {
    "greater_than": ("over", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("under", "lt"),
    "less_than_equal": ("at most", "le"),
}


def show_value(value: object) -> str:
    """A value as it would stand in the TOML file."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        inner = ", ".join(f"{key} = {show_value(item)}" for key, item in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(show_value(item) for item in value)}]"
    if isinstance(value, bool | int | float | str):
        return json.dumps(value, ensure_ascii=False)
    return str(value)


def written_path(location: Path, raw: object) -> Path:
    """The part of an error's location that stands in the file: a short form has no keys below it."""
    path: Path = ()
    for part in location:
        if look_up(raw, (*path, part)) is not MISSING and not (path and isinstance(part, int) and path != ("stages",)):
            path = (*path, part)
        elif not (len(path) == 2 and path[0] == "sources" and part in KINDS):
            break  # and a kind among the sources is the tag of a union, not a key
    return path


def explain(error: ErrorDetails, path: Path, raw: Mapping[str, Any]) -> str:
    """The sentence for one error at the place where it was written."""
    value = look_up(raw, path)
    kind, context = error["type"], error.get("ctx", {})
    if kind == "extra_forbidden":
        return f"unknown key. {nearest(str(path[-1]), key_at(path[:-1], raw).names())}"
    if kind.startswith("union_tag"):
        given = value.get("kind") if isinstance(value, Mapping) else value
        found = "has no kind" if given is None else f"{show_value(given)} is no kind of source"
        return f"{found}. {nearest(str(given), KINDS)}"
    return f"{_rule(kind, context, value)} {_instead(path, raw)}".rstrip()


def _rule(kind: str, context: Mapping[str, Any], value: object) -> str:
    shown = show_value(value)
    if kind in NOUNS:
        return f"is {shown}, not {NOUNS[kind]}."
    if kind in BOUNDS:
        word, name = BOUNDS[kind]
        return f"is {shown}. It must be {word} {_bound(context[name])}."
    if kind == "finite_number":
        return f"is {shown}. It must be a finite number."
    if kind == "literal_error":
        return f"is {shown}. It must be {context['expected'].replace(chr(39), chr(34))}."
    if kind == "string_too_short":
        return "is blank."
    if kind == "too_short":
        return "is empty."
    if kind == "count":
        return f"is {shown}, which {context['reason']}."
    if kind == "epochs":
        return f"is {shown}. It must be a positive number, or one source with a positive number."
    if kind == "holdout":
        return f"is {shown}. It must be a fraction between 0 and 1, or a number of tokens."
    if kind in ("missing", "too_long"):
        return f"is {shown}, which has not the right number of values."
    return f"is {shown}, which does not fit."


def _bound(number: float) -> str:
    return f"{int(number):,}" if float(number).is_integer() else f"{number:g}"


def _instead(path: Path, raw: Mapping[str, Any]) -> str:
    field = key_at(path, raw).field
    if field is None or not field.examples:
        return ""
    key = next(part for part in reversed(path) if isinstance(part, str))
    example = field.examples[0]
    if isinstance(look_up(raw, path[:-1]), Mapping) and isinstance(example, Mapping):
        return f"Write for example {key} = {show_value(next(iter(example.values())))}."
    return f"Write for example {key} = {show_value(example)}."


def where(file: str, path: Path) -> str:
    """`run.toml: stages[1].mixture`."""
    return ": ".join(filter(None, (file, show_path(path))))
