"""A plan on a machine -> the memory of a rank in every stage, whether it fits, what would make it fit; time and cost.

Memory is measured on the real engine's step; see `trivium.engine.memory`. To it comes a margin for what no tensor
holds. Time is arithmetic: the plan's FLOPs at a stated fraction of the devices' peak.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, get_args

from trivium.config.engine import Parallel
from trivium.config.schema import Config
from trivium.config.stages import Recompute
from trivium.engine.base import StageSettings
from trivium.engine.memory import Parts
from trivium.engine.mesh import MeshShape
from trivium.errors import ConfigError, UsageError
from trivium.forecast.layout import Layout
from trivium.forecast.machine import MFU, Machine
from trivium.plan.plan import Plan
from trivium.plan.settings import mesh_shape
from trivium.plan.stage import PlannedStage

CONTEXT = 2 * 10**9  # bytes: the device's context, and the buffers of collectives
UNUSABLE = 0.05  # of what tensors hold: gaps between them
SIZES = (2, 4, 8)  # of the context and tensor axes
FEWEST_SLOTS = 4096  # of a row that are worth sharing it for


def margin_of(parts: Parts) -> int:
    """Bytes that a device must have beside those of tensors."""
    return CONTEXT + round(UNUSABLE * sum(parts.values()))


@dataclass(frozen=True, slots=True)
class StageForecast:
    """One stage on a machine; None where its length is not known."""

    name: str
    mesh: MeshShape
    parts: Parts
    flops_per_token: float
    tokens_per_second: float
    seconds: float | None

    @property
    def margin(self) -> int:
        """Bytes that no tensor holds."""
        return margin_of(self.parts)

    @property
    def memory(self) -> int:
        """Bytes that a device must have."""
        return sum(self.parts.values()) + self.margin


@dataclass(frozen=True, slots=True)
class Advice:
    """A change of the config, and the memory that a stage then takes."""

    stage: str
    change: str
    memory: int
    fits: bool


@dataclass(frozen=True, slots=True)
class Forecast:
    """All stages of a plan on a machine."""

    machine: Machine
    layout: Layout
    mfu: float
    stages: tuple[StageForecast, ...]
    advice: tuple[Advice, ...] = ()

    @property
    def tightest(self) -> StageForecast:
        """The stage that takes most memory; of equal ones the first."""
        return max(self.stages, key=lambda stage: stage.memory)

    @property
    def fits(self) -> bool:
        return self.tightest.memory <= self.machine.device.memory

    @property
    def seconds(self) -> float | None:
        """Of the whole run, without evaluations and saves; None where a stage's length is not known."""
        each = [stage.seconds for stage in self.stages]
        return None if None in each else sum(filter(None, each))

    def device_hours(self, seconds: float | None) -> float | None:
        return None if seconds is None else seconds / 3600 * self.machine.count

    def cost(self, seconds: float | None) -> float | None:
        """In dollars; None where the length or the price is not known."""
        hours, price = self.device_hours(seconds), self.machine.device.price
        return None if hours is None or price is None else hours * price


def make_forecast(plan: Plan, machine: Machine, mfu: float = MFU, *, advise: bool = True) -> Forecast:
    """Measure every stage of a plan, and (to advise) changes of the config where one does not fit."""
    if not 0 < mfu <= 1:
        raise UsageError(f"--mfu: is {mfu:g}, and is the fraction of the peak that is used. Give 0.3 to 0.5.")
    layout = Layout.of(plan, plan.config, machine.count)
    peaks = layout.peaks(plan.stages)
    stages = [
        _stage(plan, stage, layout.mesh_in(stage), parts, machine, mfu)
        for stage, parts in zip(plan.stages, peaks, strict=True)
    ]
    forecast = Forecast(machine, layout, mfu, tuple(stages))
    if forecast.fits or not advise:
        return forecast
    too_large = [
        stage for stage, found in zip(plan.stages, stages, strict=True) if found.memory > machine.device.memory
    ]
    return replace(forecast, advice=tuple(advice for stage in too_large for advice in _advice(plan, stage, machine)))


def _stage(
    plan: Plan, stage: PlannedStage, mesh: MeshShape, parts: Parts, machine: Machine, mfu: float
) -> StageForecast:
    flops = plan.flops_per_token(stage)
    assert flops is not None, "the model is known"
    speed = mfu * machine.count * machine.device.flops / flops
    seconds = None if stage.tokens is None else stage.tokens / speed
    return StageForecast(stage.name, mesh, parts, flops, speed, seconds)


def _advice(plan: Plan, stage: PlannedStage, machine: Machine) -> Iterator[Advice]:
    """Changes, each with those before it but for other layouts, until one makes the stage fit."""
    for change, config, changed in changes(plan, stage, machine.count):
        (parts,) = Layout.of(plan, config, machine.count).peaks([changed])
        memory = sum(parts.values()) + margin_of(parts)
        yield Advice(stage.name, change, memory, memory <= machine.device.memory)
        if memory <= machine.device.memory:
            return


def changes(plan: Plan, stage: PlannedStage, ranks: int) -> Iterator[tuple[str, Config, PlannedStage]]:
    """What takes less memory, the cheapest first: recompute, smaller passes, shared rows, fewer copies, split matrices.

    Layouts are tried one by one, each without the others.
    """
    assert plan.model is not None, "the model is known"
    kinds = get_args(Recompute)
    for recompute in kinds[kinds.index(_engine_of(plan, plan.config, stage, ranks).recompute) + 1 :]:
        stage = _with_key(stage, "recompute", recompute)
        yield _written(stage, "recompute", f'"{recompute}"'), plan.config, stage
    if _rows_of_pass(plan, plan.config, stage, ranks) > 1:
        stage = _with_key(stage, "micro_batch_size", 1)
        yield _written(stage, "micro_batch_size", "1"), plan.config, stage
    for size in _contexts(plan, stage, ranks):
        change = _written(stage, "context", f"{size}")
        yield _by_single_rows(change, plan, plan.config, _with_key(stage, "context", size), ranks)
    parallel, sizes = plan.config.engine.parallel, (plan.model.heads, plan.model.kv_heads, plan.model.ffn, ranks)
    own = mesh_shape(parallel, ranks)
    layouts = [parallel.tensor] if own.replicate > 1 else []
    layouts += [size for size in SIZES if size > parallel.tensor and not any(each % size for each in sizes)]
    for tensor in layouts:  # of each all other ranks share one copy
        keys = {"context": parallel.context} if parallel.context > 1 else {}
        keys["tensor"] = tensor
        split = Parallel(**keys, context_method=parallel.context_method)
        config = _with_engine(plan.config, {"parallel": split})
        if _runs(plan, config, ranks):
            written = ", ".join(f"{key} = {value}" for key, value in keys.items())
            yield _by_single_rows(f"engine.parallel = {{ {written} }}", plan, config, stage, ranks)


def _contexts(plan: Plan, stage: PlannedStage, ranks: int) -> list[int]:
    """How many ranks may share a long row, beyond those that do."""
    assert plan.model is not None, "the model is known"
    layout = Layout.of(plan, plan.config, ranks)
    mesh, by_heads = layout.mesh_in(stage), layout.settings.context_method == "ulysses"
    heads = (plan.model.heads // mesh.tensor, plan.model.kv_heads // mesh.tensor) if by_heads else ()
    shared = (mesh.parameter_shards, *heads)
    long_enough = [size for size in SIZES if size > mesh.context and stage.seq_len >= size * FEWEST_SLOTS]
    return [size for size in long_enough if not any(each % size for each in shared)]


def _runs(plan: Plan, config: Config, ranks: int) -> bool:
    """Whether the other stages' own keys leave a layout possible."""
    try:
        Layout.of(plan, config, ranks)
    except ConfigError:
        return False
    return True


def _by_single_rows(
    change: str, plan: Plan, config: Config, stage: PlannedStage, ranks: int
) -> tuple[str, Config, PlannedStage]:
    """A layout, with passes of one row where fewer readers have several each."""
    if _rows_of_pass(plan, config, stage, ranks) > 1:
        stage = _with_key(stage, "micro_batch_size", 1)
        change = f"{change}, {_written(stage, 'micro_batch_size', '1')}"
    return change, config, stage


def _engine_of(plan: Plan, config: Config, stage: PlannedStage, ranks: int) -> StageSettings:
    """What a stage runs with: the engine's keys, but for those that the stage has itself."""
    step = Layout.of(plan, config, ranks).step(stage)
    return step.stage.resolved(step.settings)


def _rows_of_pass(plan: Plan, config: Config, stage: PlannedStage, ranks: int) -> int:
    rows = Layout.of(plan, config, ranks).step(stage).rows
    return min(rows, _engine_of(plan, config, stage, ranks).micro_batch_size or rows)


def _with_key(stage: PlannedStage, key: str, value: Any) -> PlannedStage:
    """The stage with a key in its own engine table."""
    engine = stage.config.engine.model_copy(update={key: value})
    return replace(stage, config=stage.config.model_copy(update={"engine": engine}))


def _written(stage: PlannedStage, key: str, value: str) -> str:
    """How a key is written for the stage alone: others may do without it."""
    return f"stages.{stage.name}.engine.{key} = {value}"


def _with_engine(config: Config, changed: Mapping[str, Any]) -> Config:
    return config.model_copy(update={"engine": config.engine.model_copy(update=dict(changed))})
