"""YAML -> tables as TOML would have them: no tags, no key twice, and a key without a value (`null`) is absent."""

import datetime
import itertools
import re
from collections.abc import Hashable, Iterator
from typing import Any

import yaml

from trivium.config.keys import Path as KeyPath
from trivium.config.keys import show_path
from trivium.config.limits import DEEPEST, MOST_VALUES, refuse_beyond_limits

TOO_MANY = "holds itself, or too many values, through its aliases. Write it out."
MERGE = "tag:yaml.org,2002:merge"


class PlainLoader(yaml.SafeLoader):  # type: ignore[misc]  # yaml has no types
    """YAML's plain values: a key is given once, and `3e-4` is a number, as in TOML."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._flattened: set[yaml.Node] = set()

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Put the pairs that `<<` names before the mapping's own; a few lines may name millions of them."""
        if node in self._flattened:
            return
        self._flattened.add(node)
        merged: list[Any] = []
        own: list[Any] = []
        seen = set()
        for key_node, value_node in node.value:
            if key_node.tag == MERGE:
                merged += self._merged(value_node, MOST_VALUES - len(merged))
                continue
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable) and key in seen:
                raise yaml.constructor.ConstructorError(None, None, f'"{key}" is given twice', key_node.start_mark)
            seen.add(key)
            own.append((key_node, value_node))
        node.value = merged + own

    def _merged(self, value_node: yaml.Node, most: int) -> list[Any]:
        """The pairs of a mapping, or of a list of mappings; of a key in several, the first counts."""
        pairs: list[Any] = []
        for other in reversed(value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]):
            if not isinstance(other, yaml.MappingNode):
                raise yaml.constructor.ConstructorError(None, None, "<< takes a mapping", value_node.start_mark)
            self.flatten_mapping(other)
            if len(pairs) + len(other.value) > most:
                raise ValueError(TOO_MANY)
            pairs += other.value
        return pairs


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
    except RecursionError:
        raise ValueError(TOO_MANY) from None
    except (yaml.YAMLError, ValueError) as error:
        if str(error) == TOO_MANY:
            raise
        raise ValueError(f"is not valid YAML: {' '.join(str(error).split())}.") from None
    if loaded is None:
        return {}
    if not isinstance(loaded, dict):
        raise ValueError("is not a table. Write keys and values, such as training: { steps: 1000 }.")
    tables: dict[str, Any] = plain((), loaded, itertools.count())
    refuse_beyond_limits(tables)
    return tables


def plain(path: KeyPath, value: Any, visited: Iterator[int]) -> Any:
    """A value as TOML would have it: keys are text, and what is null is absent."""
    if len(path) > DEEPEST or next(visited) > MOST_VALUES:
        raise ValueError(TOO_MANY)
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
