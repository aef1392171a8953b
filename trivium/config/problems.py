"""What a validation error means to the person who wrote the config.

Turns pydantic's errors into problems: the key as it was written, the value, the rule, what to write.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

from pydantic_core import ErrorDetails

from trivium.config.keys import MISSING, Path, key_at, listed, look_up, nearest, show_key, show_path, unknown_key
from trivium.config.sources import KINDS
from trivium.errors import Problem

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
    "finite_number": "a finite number",
    "paths": "text in quotes, or a list of such",
    "epochs": "a positive number, or sources with a positive number each",
    "holdout": "a fraction between 0 and 1, or a number of tokens",
}
BOUNDS = {
    "greater_than": ("over", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("under", "lt"),
    "less_than_equal": ("at most", "le"),
}


def show_value(value: object) -> str:
    """A value as TOML writes it."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        inner = ", ".join(f"{show_key(key)} = {show_value(item)}" for key, item in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(show_value(item) for item in value)}]"
    if isinstance(value, bool | int | float | str):
        return json.dumps(value, ensure_ascii=False)
    return str(value)


def show_optional(value: object) -> str:
    """The same of a value that may be absent."""
    return "absent" if value is None else show_value(value)


def written_path(location: Path, raw: object) -> Path:
    """The part of an error's location that is in the file: a short form has no keys below it."""
    path: Path = ()
    for part in location:
        found = look_up(raw, (*path, part))
        # An element of a list has a path where it is a table; else the list has the problem.
        if found is not MISSING and (path == ("stages",) or not isinstance(part, int) or isinstance(found, Mapping)):
            path = (*path, part)
        elif not (len(path) == 2 and path[0] == "sources" and part in KINDS):
            break  # and a kind among the sources is the tag of a union, not a key
    return path


def explain(error: ErrorDetails, file: str, raw: Mapping[str, Any]) -> Problem:
    """The problem behind one error, at the place where it was written."""
    path = written_path(error["loc"], raw)
    kind = error["type"]
    if kind == "extra_forbidden":
        return Problem(where(file, path), unknown_key(path, key_at(path[:-1], raw).names()))
    if kind.startswith("union_tag"):
        return Problem(where(file, (*path, "kind")), _kind_rule(look_up(raw, path).get("kind")))
    return Problem(where(file, path), f"{_found(error, path, raw)} {_instead(path, raw)}".rstrip())


def _kind_rule(given: object) -> str:
    if given is None:
        return f"is missing. Write kind = {listed([show_value(kind) for kind in KINDS], 'or')}."
    return f"{show_value(given)} is not a kind of source. {nearest(str(given), KINDS)}"


def _found(error: ErrorDetails, path: Path, raw: Mapping[str, Any]) -> str:
    """What was found, and the rule it breaks."""
    kind, context = error["type"], error.get("ctx", {})
    shown, must = f"is {show_value(look_up(raw, path))}", "It must be"
    if any(isinstance(part, int) for part in error["loc"][len(path) :]):  # an element of the list at this path
        shown, must = f"has {show_value(error['input'])} in it", "Each must be"
    if kind in NOUNS:
        return f"{shown}. {must} {NOUNS[kind]}."
    if kind in BOUNDS:
        word, name = BOUNDS[kind]
        bound = f"{int(context[name]):,}" if float(context[name]).is_integer() else f"{context[name]:g}"
        return f"{shown}. {must} {word} {bound}."
    if kind == "literal_error":
        return f"{shown}. {must} {context['expected'].replace(chr(39), chr(34))}."
    if kind == "count":
        return f"{shown}, which {context['reason']}."
    if kind == "string_too_short":
        return "is blank." if must == "It must be" else f"{shown}, which is blank."
    if kind == "too_short" and context["actual_length"] == 0:
        return "is empty."
    if kind in ("missing", "too_short", "too_long"):
        return f"is {show_value(look_up(raw, path))}, which has not the right number of values."
    return f"{shown}, which does not fit."


def _instead(path: Path, raw: Mapping[str, Any]) -> str:
    """What to write: the key's example, or the head of its table."""
    key = key_at(path, raw)
    if key.field is None:
        return ""
    if not key.field.examples:
        if path[0] == "stages" and len(path) < 3:
            return "Write [[stages]] and its keys under it."
        if path == ("sources",):
            return "Write [sources.web] and its keys under it."
        if len(path) == 1 or (path[0] == "sources" and len(path) == 2):
            return f"Write [{show_path(path)}] and its keys under it."
        return ""
    example = key.field.examples[0]
    if key.is_element and isinstance(example, Mapping):
        example = next(iter(example.values()))
    name = next(part for part in reversed(path) if isinstance(part, str))
    return f"Write for example {show_key(name)} = {show_value(example)}."


def where(file: str, path: Path) -> str:
    """`run.toml: stages[1].mixture`."""
    return ": ".join(filter(None, (file, show_path(path))))
