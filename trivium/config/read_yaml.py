"""YAML -> tables as TOML would have them: no tags, no key twice, and a key without a value (`null`) is absent."""

import datetime
import itertools
import re
from collections.abc import Hashable, Iterator
from typing import Any

import yaml

from trivium.config.keys import Path as KeyPath
from trivium.config.keys import show_path

# Far beyond any config; aliases that hold themselves, or each other many times over, end here.
DEEPEST = 50
MOST_VALUES = 1_000_000


class PlainLoader(yaml.SafeLoader):  # type: ignore[misc]  # yaml has no types
    """YAML's plain values: a key is given once, and `3e-4` is a number, as in TOML."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """The mapping, unless a key is given twice in it."""
        seen = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable) and key in seen:
                raise yaml.constructor.ConstructorError(None, None, f'"{key}" is given twice', key_node.start_mark)
            seen.add(key)
        mapping: dict[Hashable, Any] = super().construct_mapping(node, deep)
        return mapping


PlainLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(?:\d[\d_]*\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def parse_yaml(text: str) -> dict[str, Any]:
    """YAML's tables; ValueError with the reason where it is none, or holds more than plain values."""
    try:
        loaded = yaml.load(text, PlainLoader)
    except yaml.MarkedYAMLError as error:
        place = f" (at line {error.problem_mark.line + 1})" if error.problem_mark else ""
        raise ValueError(f"is not valid YAML: {error.problem}{place}.") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ValueError(f"is not valid YAML: {' '.join(str(error).split())}.") from None
    if loaded is None:
        return {}
    if not isinstance(loaded, dict):
        raise ValueError("is not a table. Write keys and values, such as training: { steps: 1000 }.")
    tables: dict[str, Any] = plain((), loaded, itertools.count())
    return tables


def plain(path: KeyPath, value: Any, visited: Iterator[int]) -> Any:
    """A value as TOML would have it: keys are text, and what is null is absent."""
    if len(path) > DEEPEST or next(visited) > MOST_VALUES:
        raise ValueError("holds itself, or too many values, through its aliases. Write it out.")
    if isinstance(value, dict):
        wrong = next((key for key in value if not isinstance(key, str)), None)
        if wrong is not None:
            inside = f" in {show_path(path)}" if path else ""
            raise ValueError(f"has {wrong!r}{inside} as a key, which is not text. Put it in quotes.")
        return {key: plain((*path, key), inner, visited) for key, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [plain((*path, number), inner, visited) for number, inner in enumerate(value)]
    if isinstance(value, datetime.date | bytes | set):
        raise ValueError(f"has {value!r} in {show_path(path)}, which no config takes. Put it in quotes.")
    return value
