"""A plan -> what crosses the engine's door: nothing else turns config into engine settings."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trivium.config.engine import Parallel
from trivium.config.optimizer import Optimizer, StageOptimizer
from trivium.config.schema import Config
from trivium.config.stages import Distill, Kl, Stage
from trivium.engine.base import EngineSettings, KlSettings, OptimizerSettings, StageSettings
from trivium.engine.installed import installed
from trivium.engine.loss_weight import LossWeights
from trivium.engine.mesh import CONTEXT, MeshShape, refuse_uneven_matrices, refuse_unshared_rows
from trivium.engine.own import Installed
from trivium.errors import ConfigError, Problem
from trivium.model.spec import ModelSpec, RopeSpec
from trivium.plan.average import StageAverage
from trivium.plan.stage import PlannedStage


def engine_settings(config: Config, spec: ModelSpec, token_bytes: NDArray[np.integer] | None = None) -> EngineSettings:
    """The settings of `[optimizer]`, `[engine]` and the run's seed, for a model of this shape."""
    engine = config.engine
    return EngineSettings(
        spec=spec,
        optimizer=optimizer_settings(config.optimizer),
        seed=config.run.seed,
        device=engine.device,
        precision=engine.precision,
        micro_batch_size=engine.micro_batch_size,
        compile=engine.compile,
        deterministic=engine.deterministic,
        recompute=engine.recompute,
        reshard_after_forward=engine.reshard_after_forward,
        float8=engine.float8,
        context_method=engine.parallel.context_method,
        token_bytes=token_bytes,
        make_model=family_model(config),
    )


def family_model(config: Config) -> Installed | None:
    """What makes the model in place of the decoder, where `model.family` is the path of a function."""
    family = config.model.family
    return None if family is None or not config.model.is_function else installed(family, "model.family")


def stage_loss(stage: Stage, index: int) -> Installed | None:
    """What a stage minimises in place of cross-entropy, where its `loss` names a function."""
    return None if stage.loss is None else installed(stage.loss, f"stages[{index}].loss")


def optimizer_settings(given: Optimizer) -> OptimizerSettings:
    """What an engine is given of an optimizer; all that changes from step to step comes with each step."""
    options = tuple((key, _frozen(value)) for key, value in sorted(given.options.items()))
    return OptimizerSettings(given.name, given.betas, given.eps, given.no_decay, given.grad_clip, options)


def _frozen(value: Any) -> Any:
    """Lists as tuples: settings can be hashed."""
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value


def unknown_losses(stages: Iterable[Stage]) -> Iterator[Problem]:
    """A stage's loss is one that an installed package has."""
    for index, stage in enumerate(stages):
        try:
            stage_loss(stage, index)
        except ConfigError as error:
            yield from error.problems


def stage_settings(
    stage: Stage,
    rope: RopeSpec | None,
    *,
    begins: bool,
    references: Mapping[str, Path] | None = None,
    optimizer: StageOptimizer | None = None,
    average: StageAverage | None = None,
    average_before: StageAverage | None = None,
    loss: Installed | None = None,
) -> StageSettings:
    """What a stage changes in the engine; `begins` is False where a run resumes in its middle.

    `references` are the folders of frozen models, by the term that needs one. Without one the stage's `kl` or `distill`
    is ignored: enough to evaluate and to export, which need no `optimizer` either.
    `average` is what the stage keeps, `average_before` what the stage before it kept, and `loss` what it minimises in
    place of cross-entropy.
    """
    folders = references or {}
    return StageSettings(
        seq_len=stage.seq_len,
        rope=rope,
        document_mask=stage.document_mask,
        token_losses=loss,
        z_loss=stage.z_loss,
        loss_weight=LossWeights(stage.loss_weight or {}),
        kl=None if stage.kl is None or "kl" not in folders else _kl_settings(stage.kl, folders["kl"]),
        distill=None
        if stage.distill is None or "distill" not in folders
        else _distill_settings(stage.distill, folders["distill"]),
        reset_optimizer=begins and (stage.reset_optimizer if optimizer is None else optimizer.is_fresh),
        recompute=stage.engine.recompute,
        micro_batch_size=stage.engine.micro_batch_size,
        context=stage.engine.context,
        precision=stage.engine.precision,
        optimizer=None if optimizer is None else optimizer_settings(optimizer.settings),
        average=None if average is None else average.settings,
        begin_average=begins and average is not None and average.begins,
        start_from=average_before.settings if begins and stage.start_from and average_before else None,
    )


def _kl_settings(kl: Kl, reference: Path) -> KlSettings:
    assert kl.beta is not None, "a checked stage has a beta"
    return KlSettings(kl.beta, reference, kl.direction, kl.precision)


def _distill_settings(distill: Distill, teacher: Path) -> KlSettings:
    assert distill.beta is not None, "a checked stage has a beta"
    how = distill.precision, distill.temperature, distill.top_k
    return KlSettings(distill.beta, teacher, "forward", *how)


def planned_settings(
    planned: PlannedStage,
    *,
    begins: bool,
    references: Mapping[str, Path],
    optimizer: StageOptimizer,
    average_before: StageAverage | None = None,
) -> StageSettings:
    """What a stage of a plan changes in the engine, with what it has of the model."""
    settings = stage_settings(
        planned.config,
        planned.rope,
        begins=begins,
        references=references,
        optimizer=optimizer,
        average=planned.average,
        average_before=average_before,
        loss=stage_loss(planned.config, planned.index),
    )
    teacher = None if settings.distill is None else replace(settings.distill, spec=planned.teacher)
    return replace(settings, distill=teacher, freeze=planned.freeze, vocab=planned.vocab)


def refuse_teachers(settings: EngineSettings, mesh: MeshShape, stages: Iterable[PlannedStage]) -> None:
    """A teacher's matrices and heads must divide over the ranks as the model's do."""
    problems = []
    for stage in stages:
        if stage.teacher is None:
            continue
        shape = stage_mesh(mesh, stage.config)
        try:
            refuse_uneven_matrices(shape, stage.teacher)
            refuse_unshared_rows(shape, stage.teacher, settings.context_method == "ulysses")
        except ConfigError as error:
            what = "; ".join(
                f"{each.where} {each.what}".replace("the model's", "the teacher's") for each in error.problems
            )
            problems.append(Problem(f"stages[{stage.index}].distill.path", what))
    if problems:
        raise ConfigError(problems)


def mesh_shape(parallel: Parallel, ranks: int, local_devices: int | None = None) -> MeshShape:
    """The mesh of all ranks' devices (one each, unless given); refused where `[engine.parallel]` needs another number.

    Without `shard` the model is sharded over all devices that the other axes leave.
    """
    devices = ranks * (local_devices or 1)
    others = parallel.replicate * parallel.context * parallel.tensor
    shard = devices // others if parallel.shard is None else parallel.shard
    shape = MeshShape(parallel.replicate, max(1, shard), parallel.context, parallel.tensor)
    if shape.size != devices:
        product = f"{shape} is {shape.size}"
        many = "1 rank was" if ranks == 1 else f"{ranks} ranks were"
        found = f"{many} launched. Launch {shape.size}, or change one of them."
        if local_devices is not None:
            found = f"there {'is 1 device' if devices == 1 else f'are {devices} devices'}. Change one of them."
        raise ConfigError([Problem("engine.parallel", f"{product}, but {found}")])
    _refuse_divided_ranks(shape, local_devices or 1, "engine.parallel.tensor")
    return shape


def stage_mesh(mesh: MeshShape, stage: Stage) -> MeshShape:
    """How the devices of a launch are divided in a stage."""
    return mesh if stage.engine.context is None else mesh.with_context(stage.engine.context)


def refuse_stage_meshes(
    settings: EngineSettings, mesh: MeshShape, stages: Mapping[int, Stage], local_devices: int | None = None
) -> None:
    """`engine.context` of these stages must divide the devices that share one copy's parameters, and fit the model."""
    shards, by_heads = mesh.parameter_shards, settings.context_method == "ulysses"
    problems: dict[str, Problem] = {}
    for index, stage in stages.items():
        context = stage.engine.context or mesh.context
        where = CONTEXT if stage.engine.context is None else f"stages[{index}].engine.context"
        if shards % context:
            what = f"is {context}, which does not divide the {shards} ranks of shard x context. Write a divisor of it,"
            before = f", and end this launch before it with --until {stage.name}" if index else ""
            problems[where] = Problem(where, f"{what} or launch another number of ranks for this stage{before}.")
            continue
        try:
            _refuse_divided_ranks(mesh.with_context(context), local_devices or 1, where)
            refuse_unshared_rows(mesh.with_context(context), settings.spec, by_heads, where)
        except ConfigError as error:
            problems |= {problem.where: problem for problem in error.problems}
    if problems:
        raise ConfigError(list(problems.values()))


def _refuse_divided_ranks(shape: MeshShape, devices: int, where: str) -> None:
    """Devices that share rows are all of one rank's, or all of some ranks'."""
    group = shape.context * shape.tensor
    if max(group, devices) % min(group, devices):
        what = f"makes {group} devices share rows, and a rank has {devices}: one must divide the other. Change it."
        raise ConfigError([Problem(where, what)])
