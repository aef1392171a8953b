"""The kinds of value a key may have, each with the rule it must keep.

A short form (`fade = "50M"`) is read into the same table as the long one (`fade = { tokens = "50M" }`),
so that the rest of the program knows one form only; the JSON Schema offers both.
"""

import ast
import inspect
import itertools
import os.path
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, NoReturn

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_serializer
from pydantic_core import PydanticCustomError

from trivium.config.numbers import Count, Whole


class Table(BaseModel):
    """A table of the config: frozen, no unknown keys, no silent conversion, a doc line for each key."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        validate_default=False,
        populate_by_name=False,
        serialize_by_alias=True,
        defer_build=True,  # tables are built once, within the config, not each at its import
    )


def all_tables(base: type[Table] = Table) -> Iterator[type[Table]]:
    for table in base.__subclasses__():
        yield from (table, *all_tables(table))


def doc_lines(table: type[Table]) -> dict[str, str]:
    """The string below each key of a table. Pydantic would read the source for them at every import, for 0.1 s."""
    lines: dict[str, str] = {}
    for base in reversed([base for base in table.__mro__ if issubclass(base, Table)]):
        (written,) = ast.parse(inspect.getsource(base)).body
        assert isinstance(written, ast.ClassDef)
        for key, below in itertools.pairwise(written.body):
            if isinstance(key, ast.AnnAssign) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                lines[ast.unparse(key.target)] = inspect.cleandoc(str(below.value.value))
    return lines


class FrozenDict(dict[str, Any]):
    """A dict that stays as it was made."""

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("a config is frozen: load it again with an override instead")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[type["FrozenDict"], tuple[dict[str, Any]]]:
        return FrozenDict, (dict(self),)


frozen_dict = AfterValidator(FrozenDict)


def is_path(text: str) -> bool:
    """Whether a text is the path of a function: `package.module:function`."""
    parts = [part.split(".") for part in text.split(":")]
    return len(parts) == 2 and all(name.isidentifier() for names in parts for name in names)


def short_form(key: str, either: Any) -> BeforeValidator:
    """Read a bare value as the table `{ key = value }`; `either` is what the JSON Schema offers."""

    def read(value: object) -> object:
        return value if isinstance(value, Mapping | BaseModel) else {key: value}

    return BeforeValidator(read, json_schema_input_type=either)


def _as_tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def _one_or_many(value: object) -> object:
    if not isinstance(value, str | list | tuple):
        raise PydanticCustomError("paths", "is not a path", {})
    return _as_tuple([value] if isinstance(value, str) else value)


Name = Annotated[str, Field(min_length=1)]
Text = Annotated[str, Field(min_length=1)]
PathText = Annotated[str, Field(min_length=1), AfterValidator(os.path.expanduser)]  # `~` is the home folder
StepSpan = Annotated[tuple[Whole, Count], Field(strict=False)]  # the first, and the first behind them
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
OpenFraction = Annotated[float, Field(gt=0, lt=1)]
Fraction = Annotated[float, Field(ge=0, le=1)]
BelowOne = Annotated[float, Field(ge=0, lt=1)]
Share = Annotated[float, Field(ge=0)]
Shares = Annotated[Mapping[str, Share], frozen_dict]
LossWeight = Annotated[Mapping[str, Annotated[float, Field(ge=0, le=1e6)]], frozen_dict]
Paths = Annotated[
    tuple[PathText, ...],
    BeforeValidator(_one_or_many, json_schema_input_type=str | list[str]),
    Field(min_length=1),
]
Names = Annotated[tuple[Name, ...], BeforeValidator(_as_tuple, json_schema_input_type=list[str]), Field(min_length=1)]
Parts = Annotated[tuple[Name, ...], BeforeValidator(_as_tuple, json_schema_input_type=list[str])]  # of a model
FimTokens = Annotated[tuple[Name, Name, Name], BeforeValidator(_as_tuple, json_schema_input_type=list[str])]
Betas = Annotated[tuple[BelowOne, BelowOne], BeforeValidator(_as_tuple, json_schema_input_type=list[BelowOne])]


class Extent(Table):
    """A length: exactly one of `steps`, `tokens` or `fraction` (of the run, or of its stage)."""

    steps: Whole | None = Field(None, examples=[2000])
    """Optimizer steps."""
    tokens: Count | None = Field(None, examples=["1B"])
    """Tokens, padding included; rounded up to whole steps."""
    fraction: Fraction | None = Field(None, examples=[0.01])
    """A fraction of the whole length, 0 to 1."""


class EpochBudget(Table):
    """Numbers of epochs: one for all sources, or one for each that is named."""

    epochs: Positive | None = Field(None, examples=[1.5])
    """Epochs of every source; None where sources are named."""
    by_source: Annotated[Mapping[str, Positive], frozen_dict] = Field(default_factory=FrozenDict)
    """The sources that are counted, each with its number of epochs."""

    @model_serializer
    def as_written(self) -> float | dict[str, float]:
        """As a config has it."""
        return dict(self.by_source) if self.epochs is None else self.epochs

    def of(self, sources: Sequence[str]) -> dict[str, float]:
        """The epochs of each source that counts; a bare number counts all of `sources`."""
        return dict(self.by_source) if self.epochs is None else dict.fromkeys(sources, self.epochs)


def _read_epochs(value: object) -> object:
    """`1.5` counts every source; `{ spelling = 1, counting = 1 }` counts two."""
    if isinstance(value, EpochBudget):
        return value
    if not isinstance(value, Mapping):
        return EpochBudget(epochs=_checked_epochs(value))
    if not value:
        raise PydanticCustomError("epochs", "names no source", {})
    return EpochBudget(by_source={source: _checked_epochs(epochs) for source, epochs in value.items()})


def _checked_epochs(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise PydanticCustomError("epochs", "is not a positive number of epochs", {})
    return float(value)


Epochs = Annotated[EpochBudget, BeforeValidator(_read_epochs, json_schema_input_type=Positive | dict[str, Positive])]
