"""torchtitan's Trainer with the stages of a config: what it reads, its rates, row lengths, sizes and positions by step.

The plan is made as soon as the ranks have met, and before torchtitan builds anything; it fills torchtitan's own config
(steps, the longest row, dataloader, optimizer, schedule, validator). From then on only a step's passes and a stage's
first step are ours.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from math import inf
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed.distributed_c10d import _get_default_store
from torchtitan.distributed import ParallelDims
from torchtitan.models.common.attention import FlexAttention, VarlenAttention
from torchtitan.tools.logging import logger
from torchtitan.trainer import Trainer

from trivium.adapters.torchtitan import pipeline, versions
from trivium.adapters.torchtitan.cpu import sum_gradients
from trivium.adapters.torchtitan.data import NoTokenizer, StagedDataLoader
from trivium.adapters.torchtitan.optimizer import PlannedOptimizers, PlannedRates
from trivium.adapters.torchtitan.passes import Passes, evaluated_length
from trivium.adapters.torchtitan.planned import Planned, make_planned
from trivium.adapters.torchtitan.refusals import not_heeded
from trivium.adapters.torchtitan.rope import set_rope
from trivium.adapters.torchtitan.validator import SourceValidator
from trivium.errors import ConfigError, Problem, UsageError
from trivium.plan.stage import CompleteStage
from trivium.train.validation import refuse_impossible

Microbatch = tuple[dict[str, Tensor], Tensor]


@dataclass(kw_only=True, slots=True)
class Stages:
    """Which config's stages a run has."""

    config: str = ""
    """Path of the config (run.toml)."""

    overrides: list[str] = field(default_factory=list)
    """KEY=VALUE of the config to change, such as stages.0.steps=10."""

    until: str = ""
    """The stage or step before which this launch ends; empty: the run's end."""


def staged(config: Trainer.Config, path: str | Path, overrides: Sequence[str] = (), *, until: str | int = "") -> Any:
    """torchtitan's config of a run -> the same with the stages of ours; give it to torchtitan as any other."""
    if type(config) is not Trainer.Config:
        raise UsageError(f"{type(config).__qualname__} has a trainer of its own, and stages need torchtitan's Trainer.")
    theirs = {each.name: getattr(config, each.name) for each in fields(config)}
    # Graphs of CUDA have one shape, and stages several.
    theirs["training"] = replace(config.training, disable_cuda_graphs=True)
    return StagedTrainer.Config(**theirs, stages=Stages(config=str(path), overrides=list(overrides), until=str(until)))


def first_step(config: Trainer.Config) -> int:
    """The step that a launch resumes at, as torchtitan's checkpoints in a folder here tell; 0 of a fresh one."""
    checkpoint = config.checkpoint
    if not checkpoint.enable:
        return 0
    if checkpoint.load_step >= 0:
        return int(checkpoint.load_step)
    found = Path(config.dump_folder, checkpoint.folder).glob("step-*/.metadata")
    return max((int(each.parent.name.removeprefix("step-")) for each in found), default=0)


class StagedTrainer(Trainer):
    """Every step by the plan of a config."""

    @dataclass(kw_only=True, slots=True)
    class Config(Trainer.Config):
        stages: Stages = field(default_factory=Stages)

    planned: Planned
    passes: Passes
    entered: CompleteStage | None = None
    shape: tuple[int, int] | None = None  # of the last step's passes

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        if self.device.type == "cpu":
            sum_gradients(self.model_parts)

    def init_distributed(self) -> ParallelDims:
        """Meet the other ranks, plan, and fill torchtitan's config with it."""
        config = self.config
        backend = versions.spmd_backend(config.parallelism.spmd_backend)
        config.parallelism = replace(config.parallelism, spmd_backend=backend)
        dims = super().init_distributed()
        model = config.model_spec.model
        store, rank, size = _get_default_store(), distributed.get_rank(), distributed.get_world_size()
        self.planned = make_planned(config.stages.config, config.stages.overrides, model, store, rank, size)
        self.passes = self._passes(dims)
        with self.planned.places.named():
            self._refuse()
        self._fill()
        return dims

    def _passes(self, dims: ParallelDims) -> Passes:
        config = self.config
        training, parallelism = config.training, config.parallelism
        at_once, rows = 1, training.local_batch_size
        if dims.pp_enabled:
            rows = parallelism.pipeline_parallel_microbatch_size
            at_once = training.local_batch_size // rows
        tensor = dims.tp if parallelism.enable_sequence_parallel else 1
        divisor = tensor * (2 * dims.cp if dims.cp > 1 else 1)
        readers = dims.get_mesh("batch").size() if dims.dp_enabled else 1
        until, plan = config.stages.until, self.planned.plan
        end = plan.step_of(until) if until else plan.total_steps
        return Passes(plan, readers, rows * training.seq_len, at_once, divisor, first_step(config), end)

    def _refuse(self) -> None:
        """What depends on the launch, and what torchtitan's attention cannot do."""
        plan = self.planned.plan
        problems = list(self.passes.problems())
        attention = getattr(self.config.model_spec.model.first_attention, "inner_attention", None)
        if not isinstance(attention, FlexAttention.Config | VarlenAttention.Config):
            for stage in plan.stages:
                if stage.config.document_mask:
                    what = f"is true, and {type(attention).__qualname__} masks no documents. Write false, or take flex"
                    problems.append(Problem(f"stages[{stage.index}].document_mask", f"{what} or varlen attention."))
        if problems:
            raise ConfigError(problems)
        refuse_impossible(plan, has_evaluator=False)
        if tables := not_heeded(plan):
            names = ", ".join(f"[{table}]" for table in tables)
            logger.info(f"torchtitan's config decides how the run is computed and kept: {names} of ours is not read")

    def _fill(self) -> None:
        """torchtitan's config of this launch, with what the plan decides."""
        config, plan, end = self.config, self.planned.plan, self.passes.end
        assert end is not None, "a launch has an end"
        evaluated = evaluated_length(plan)
        longest = max(evaluated or 0, *(stage.seq_len for stage in plan.stages))
        config.training = replace(config.training, steps=end, seq_len=longest, global_batch_size=-1)
        config.tokenizer, config.dataloader = NoTokenizer.Config(), StagedDataLoader.Config(passes=self.passes)
        is_ours = "optimizer" in plan.config.model_fields_set
        if is_ours:
            how = config.optimizer.implementation
            config.optimizer = PlannedOptimizers.Config(settings=plan.optimizers[0].settings, implementation=how)
        config.lr_scheduler = PlannedRates.Config(plan=plan, is_ours=is_ours, warmup_steps=0)
        config.validator = SourceValidator.Config(enable=evaluated is not None, passes=self.passes)
        if end < plan.total_steps:  # the run goes on from its last checkpoint
            config.checkpoint = replace(config.checkpoint, last_save_model_only=False, last_save_in_hf=False)

    def train_step(self, data_iterator: Iterator[Microbatch]) -> None:
        """One update of the plan's next step."""
        step = self.step - 1
        self._enter(step)
        self.lr_schedulers.set(step)
        shape = self.passes.rows(step), self.planned.plan.stage_at(step).seq_len
        if self.parallel_dims.pp_enabled and shape != self.shape:
            pipeline.forget_shapes(self.pp_schedule)
        self.shape = shape
        self.gradient_accumulation_steps = self.passes.count(step) // self.num_pipeline_parallel_microbatches
        super().train_step(data_iterator)

    def _enter(self, step: int) -> None:
        """What changes with a stage: at its first step, and where a launch begins in its middle."""
        plan = self.planned.plan
        stage = plan.stage_at(step)
        if self.entered is not None and self.entered.index == stage.index:
            return
        self.entered = stage
        optimizer = plan.optimizers[stage.index]
        if self.planned.has_rope and stage.rope is not None:
            set_rope(self.model_parts, stage.rope)
        if "optimizer" in plan.config.model_fields_set:
            clip = optimizer.settings.grad_clip
            self.config.training = replace(self.config.training, max_norm=inf if clip is None else clip)
        begins = step == stage.start
        if begins and optimizer.is_fresh:
            for each in self.optimizers:
                each.state.clear()
        rows, where = stage.size_at(step), "begins" if begins else f"goes on at step {step:,}"
        logger.info(f"stage {stage.name} {where}: rows of {stage.seq_len:,}, {rows:,} in a step")
        if self.config.validator.enable:
            self.validator.document_mask = stage.config.document_mask
            if begins and self.validator.begins_with(step):
                self.validator.validate(self.model_parts, step)

    def pp_forward_backward_step(
        self, *, input_dict_mbs: list[dict[str, Tensor]], label_mbs: list[Tensor], global_valid_tokens: Tensor
    ) -> Tensor:
        """As torchtitan's, by the methods that this torch has."""
        made = [self.post_dataloading_process(*each) for each in zip(input_dict_mbs, label_mbs, strict=True)]
        ends = self.pp_has_first_stage, self.pp_has_last_stage
        with self.train_context():
            loss = pipeline.run(self.pp_schedule, made, *ends, learns=True, global_valid_tokens=global_valid_tokens)
        return torch.tensor([-1.0], device=self.device) if loss is None else loss.to(self.device)

    def close(self) -> None:
        """Let the threads of streams end too."""
        if hasattr(self, "dataloader") and isinstance(self.dataloader, StagedDataLoader):
            self.dataloader.steps.close()
        super().close()
