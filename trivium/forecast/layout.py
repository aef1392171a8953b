"""A plan and a number of ranks -> the steps to measure, and the ranks that take them without a device."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from trivium.config.optimizer import StageOptimizer
from trivium.config.schema import Config
from trivium.engine.base import REFERENCES, EngineSettings, Precision
from trivium.engine.memory import Measured, MeasuringProcess, Parts
from trivium.engine.mesh import MeshShape
from trivium.errors import ConfigError, PlanError, Problem, UsageError
from trivium.loader.loader import refuse_uneven
from trivium.plan.plan import Plan
from trivium.plan.settings import (
    engine_settings,
    mesh_shape,
    planned_settings,
    refuse_stage_meshes,
    refuse_teachers,
    stage_mesh,
)
from trivium.plan.stage import PlannedStage

ON_DEVICE: Precision = "bfloat16"  # the precision on a GPU, where the config gives none
NOT_MEASURED = "steps with functions of a package are not measured without a device. Try rehearse."


@dataclass(frozen=True, slots=True)
class Layout:
    """How ranks share a model, and the settings of its engine."""

    mesh: MeshShape
    settings: EngineSettings
    optimizers: tuple[StageOptimizer, ...]  # of the stages
    since: int = 0  # steps before this one are taken

    @classmethod
    def of(cls, plan: Plan, config: Config, ranks: int) -> "Layout":
        """The config's; refused where its product is not the number of ranks, or they cannot share a batch."""
        if plan.model is None:
            raise PlanError([*plan.gaps, Problem("", "the model's shape is not known, so that it cannot be measured.")])
        if config.engine.name != "torch":
            what = f'is "{config.engine.name}", and only steps of torch are measured without a device. Try rehearse.'
            raise ConfigError([Problem("engine.name", what)])
        own = {"model.family": config.model.family}
        own |= {f"stages[{stage.index}].loss": stage.config.loss for stage in plan.stages}
        problems = [Problem(key, f'is "{path}": {NOT_MEASURED}') for key, path in own.items() if path is not None]
        if problems:
            raise ConfigError(problems)
        mesh = mesh_shape(config.engine.parallel, ranks, 1)
        settings = replace(engine_settings(config, plan.model), float8=None)  # weights and what is kept are the same
        refuse_stage_meshes(settings, mesh, {stage.index: stage.config for stage in plan.stages})
        refuse_teachers(settings, mesh, plan.stages)
        refuse_uneven(plan, 0, ranks, mesh, plan.decided_from)
        settings = replace(settings, mesh=mesh, precision=settings.precision or ON_DEVICE)
        return cls(mesh, settings, plan.optimizers, plan.decided_from)

    def step(self, stage: PlannedStage) -> Measured:
        """The largest step of a stage that is yet to be taken; of two equal ones one is measured."""
        if stage.config.distill is not None and stage.teacher is None:
            what = "is not there yet, so that the stage's memory cannot be measured. Train or copy it first."
            raise ConfigError([Problem(f"stages[{stage.index}].distill.path", what)])
        references = {term: Path(term) for term in REFERENCES if getattr(stage.config, term) is not None}
        optimizer = self.optimizers[stage.index]
        entered = planned_settings(stage, begins=False, references=references, optimizer=optimizer)
        readers = self.mesh_in(stage).readers(self.mesh.size)
        return Measured(self.settings, entered, stage.largest_since(self.since).size // readers)

    def mesh_in(self, stage: PlannedStage) -> MeshShape:
        """How the ranks are divided in a stage."""
        return stage_mesh(self.mesh, stage.config)

    def peaks(self, stages: Iterable[PlannedStage]) -> list[Parts]:
        """A rank's memory in each stage; the first rank holds as much of everything as any other."""
        steps = [self.step(stage) for stage in stages]
        each = list(dict.fromkeys((step.stage, step.rows) for step in steps))
        with MeasuringProcess([Measured(self.settings, *key) for key in each]) as process:
            found = dict(zip(each, process.peaks(), strict=True))
        return [found[step.stage, step.rows] for step in steps]


def check_layout(plan: Plan, ranks: int) -> tuple[MeshShape, dict[int, list[Parts]]]:
    """The first, a middle and the last rank take a step of every stage, each in a process; their memory, by rank."""
    if ranks < 1:
        raise UsageError(f"--ranks: {ranks} ranks train nothing. Give 1 or more.")
    layout = Layout.of(plan, plan.config, ranks)
    steps = [layout.step(stage) for stage in plan.stages]
    found = {}
    for rank in sorted({0, ranks // 2, ranks - 1}):
        with MeasuringProcess(steps, rank) as process:
            found[rank] = list(process.peaks())
    return layout.mesh, found
