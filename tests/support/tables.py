"""The tables of the schema."""

from collections.abc import Iterator
from typing import Any, get_args

from trivium.config.fields import Table
from trivium.config.schema import Config


def tables(annotation: Any = Config, seen: set[type[Table]] | None = None) -> Iterator[type[Table]]:
    """Every table that a config may have."""
    seen = set() if seen is None else seen
    if isinstance(annotation, type) and issubclass(annotation, Table) and annotation not in seen:
        seen.add(annotation)
        yield annotation
        for field in annotation.model_fields.values():
            yield from tables(field.annotation, seen)
    for argument in get_args(annotation):
        yield from tables(argument, seen)


TABLES = sorted(tables(), key=lambda table: table.__name__)
