"""The schema's tables, keys and doc lines -> the reference in docs/config.md.

    python docs/make_config_reference.py

A test fails when the page is older than the schema.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from trivium.config.fields import Table, doc_lines
from trivium.config.problems import show_value
from trivium.config.schema import REQUIRED, Config
from trivium.config.sources import BaseSource
from trivium.config.stages import Stage, StageDefaults

PAGE = Path(__file__).parent / "config.md"
BEGIN = "<!-- the reference begins; python docs/make_config_reference.py writes it -->\n"
END = "<!-- the reference ends -->\n"

# Tables that several keys have are shown at one of them; those without a place are explained on the page.
PLACES = {"Fade": "stages.fade", "StageLr": "stages.lr", "Rope": "stages.rope", "Extent": "", "EpochBudget": ""}
WORDS = {str: "text", int: "whole number", float: "number"}


def with_reference(page: str) -> str:
    """The page with the part between the two marks written again."""
    before, rest = page.split(BEGIN)
    return before + BEGIN + "\n" + "\n".join(reference()) + "\n" + END + rest.split(END)[1]


def reference() -> Iterator[str]:
    """All tables: those of the run, then sources, then stages."""
    for name, field in Config.model_fields.items():
        if name not in ("defaults", "sources", "stages"):
            yield from section(f"`[{name}]`", models(field.annotation)[0], name)
    yield from section("`[sources.NAME]`, every kind", BaseSource, "sources.NAME")
    shared = set(BaseSource.model_fields)
    for model in models(Config.model_fields["sources"].annotation):
        kind = model.model_fields["kind"].default
        yield from section(f'`[sources.NAME]`, `kind = "{kind}"`', model, "sources.NAME", skipped=shared)
    yield from section("`[[stages]]`, a stage alone", Stage, "stages", skipped=set(StageDefaults.model_fields))
    yield from section("`[[stages]]` and `[defaults]`", StageDefaults, "stages")


def section(title: str, model: type[Table], path: str, skipped: set[str] | None = None) -> Iterator[str]:
    """A heading, the table's doc line, its keys, and the tables within it."""
    yield from (f"### {title}", "", doc(model), "")
    yield from keys(model, path, skipped or set())


def keys(model: type[Table], path: str, skipped: set[str]) -> Iterator[str]:
    """A line a key, then the tables within the table."""
    lines = doc_lines(model)
    fields = {name: field for name, field in model.model_fields.items() if name not in skipped}
    yield from ("| key | value | when absent | |", "|---|---|---|---|")
    for name in sorted(fields, key=lambda name: name != "kind"):
        key, field = fields[name].alias or name, fields[name]
        line = (f"`{key}`", value(field), absent(model, name, field), lines[name])
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |"
    yield ""
    for name, field in fields.items():
        for inner in [] if "sources" in path else models(field.annotation):
            inner_path = f"{path}.{field.alias or name}"
            place = PLACES.get(inner.__name__, inner_path)
            if place == inner_path:
                yield from (f"**`{inner_path}`** {doc(inner)}", "")
                yield from keys(inner, inner_path, set())
            elif place:
                yield from (f"**`{inner_path}`** has the keys of `{place}`.", "")


def doc(model: type[Table]) -> str:
    """The model's doc line."""
    return " ".join((model.__doc__ or "").split())


def parts(annotation: Any) -> Iterator[Any]:
    """An annotation and everything within it."""
    yield annotation
    if get_origin(annotation) is not Literal:
        for argument in get_args(annotation):
            yield from parts(argument)


def models(annotation: Any) -> list[type[Table]]:
    """The tables that a value may be."""
    return [part for part in parts(annotation) if isinstance(part, type) and issubclass(part, Table)]


def is_mapping(annotation: Any) -> bool:
    """Whether a value is a table with keys of the user's own."""
    origin = get_origin(annotation)
    return isinstance(origin, type) and issubclass(origin, Mapping)


def value(field: FieldInfo) -> str:
    """What may be written: the choices, or an example."""
    within = list(parts(field.annotation))
    if field.examples and is_mapping(field.annotation):  # its keys are the user's: only an example can show it
        return f"`{show_value(field.examples[0])}`"
    choices = [choice for part in within if get_origin(part) is Literal for choice in get_args(part)]
    if choices or bool in within:
        yes_or_no = [True, False] if bool in within else []
        return " ".join(f"`{show_value(choice)}`" for choice in [*yes_or_no, *choices])
    if field.examples:
        return f"`{show_value(field.examples[0])}`"
    if models(field.annotation):
        return "`{ ... }`"
    if any(is_mapping(part) for part in within):
        return "table"
    for part in within:
        if isinstance(part, FieldInfo) and part.examples:
            return f"`{show_value(part.examples[0])}`"
    return next(WORDS[part] for part in within if part in WORDS)


def absent(model: type[Table], name: str, field: FieldInfo) -> str:
    """What an absent key means; nothing where its doc line says so."""
    if name in REQUIRED.get(model.__name__, ()):
        return "must be given"
    default = field.get_default(call_default_factory=True)
    if default is None or field.is_required():
        return ""
    if isinstance(default, BaseModel):
        default = default.model_dump(exclude_none=True) or None
    return "" if default is None else f"`{show_value(default)}`"


if __name__ == "__main__":
    PAGE.write_text(with_reference(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
