"""plan.json as far as pages read it: checked when it is read, so that a page is made of what a run wrote."""

from collections.abc import Mapping
from typing import Annotated, Any, NotRequired

from pydantic import ConfigDict, Field, TypeAdapter, with_config
from typing_extensions import TypedDict  # pydantic cannot check typing's before Python 3.12

from trivium.config.batches import Batches

Number = Annotated[float, Field(allow_inf_nan=False, ge=-1e18, le=1e18)]
Whole = Annotated[int, Field(ge=0, le=2**63)]
MOST_PIECES = 8192  # of a stage's batch size
BatchPieceFile = Annotated[list[Annotated[int, Field(ge=0, le=2**53)]], Field(min_length=2, max_length=2)]
PLAIN = ConfigDict(strict=True)
CurveFile = list[Annotated[list[Number], Field(min_length=2, max_length=2)]]  # steps with their multipliers


@with_config(PLAIN)
class UseFigures(TypedDict):
    """What the rows of a source hold in a stage."""

    rows: Whole
    tokens: Whole
    consumed: Whole
    pieces: Whole
    cut: Whole


@with_config(PLAIN)
class SourceUse(TypedDict):
    """What a stage reads of a source."""

    rows: Whole
    tokens: Whole | None
    loss_tokens: Whole | None
    loss_tokens_expected: NotRequired[bool]
    figures: UseFigures | None
    epochs: Number | None
    epochs_so_far: Number | None


@with_config(PLAIN)
class OptimizerFile(TypedDict):
    """A stage's optimizer, and what differs from the run's."""

    name: str
    fresh: bool
    changed: dict[str, Any]


@with_config(PLAIN)
class StageFile(TypedDict):
    """A stage; what is not known before a run starts is None."""

    name: str
    start: Whole | None
    end: Whole | None
    steps: Whole | None
    tokens: Whole | None
    until: NotRequired[str | None]
    ended_early: NotRequired[bool]
    seq_len: Annotated[int, Field(ge=1, le=2**40)]
    batch_size: Annotated[int, Field(ge=1, le=2**40)]
    batches: NotRequired[Annotated[list[BatchPieceFile], Field(min_length=1, max_length=MOST_PIECES)]]
    packing: str
    shares: dict[str, Number] | None
    fade_rows: Whole | None
    fade_shape: NotRequired[str | None]
    lr_multiplier: dict[str, Number | None]
    peak_lr: NotRequired[dict[str, Number]]
    optimizer: NotRequired[OptimizerFile]
    uses: NotRequired[dict[str, SourceUse]]


@with_config(PLAIN)
class SourceFile(TypedDict):
    """A source; a stream has no size."""

    kind: str
    fim: NotRequired[dict[str, Number] | None]
    documents: Whole | None
    tokens: Whole | None
    expected_tokens: NotRequired[Whole | None]


@with_config(PLAIN)
class StageForecastFile(TypedDict):
    """What a stage takes on devices; a length or a price may not be known."""

    name: str
    memory: dict[str, Whole]
    fits: bool
    flops_per_token: Number
    tokens_per_second: Number
    seconds: Number | None
    device_hours: Number | None
    cost: Number | None


@with_config(PLAIN)
class DeviceFile(TypedDict):
    """A device."""

    name: str
    memory: Whole
    flops: Number
    price: Number | None


@with_config(PLAIN)
class ForecastFile(TypedDict):
    """A plan on devices."""

    devices: Whole
    device: DeviceFile
    mfu: Number
    fits: bool
    tightest: str
    seconds: Number | None
    device_hours: Number | None
    cost: Number | None
    stages: list[StageForecastFile]
    advice: list[dict[str, Any]]


@with_config(PLAIN)
class PlanFile(TypedDict):
    """A plan."""

    run: NotRequired[str | None]
    total_steps: NotRequired[Whole | None]
    total_tokens: NotRequired[Whole | None]
    peak_lr: NotRequired[dict[str, Number]]
    lr_curve: NotRequired[CurveFile | None]
    group_lr_curves: NotRequired[dict[str, CurveFile | None]]
    learning_rates: NotRequired[list[str]]
    stages: list[StageFile]
    sources: dict[str, SourceFile]
    decisions: NotRequired[list[str] | None]
    warnings: NotRequired[list[str] | None]
    unknown: NotRequired[list[str] | None]
    forecast: NotRequired[ForecastFile]


def batches_of(stage: Mapping[str, Any]) -> Batches:
    """The rows of a stage's steps, as a plan's file has them."""
    batches = Batches.constant(stage["batch_size"])
    for step, size in stage.get("batches", ()):
        batches = batches.changed(step, max(1, size))
    return batches


def refuse_other_plan(plan: dict[str, Any]) -> None:
    """ValueError with the first key that is not as a run writes it."""
    try:
        _PLAN.validate_python(plan)
    except ValueError as error:
        first = error.errors()[0]  # type: ignore[attr-defined]  # pydantic's own
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"{where}: {first['msg']}") from None


_PLAN = TypeAdapter(PlanFile)
