"""A plan -> a `LightningDataModule` and a callback: batches, learning rate, rotary positions, exact resume.

    trainer = lightning.Trainer(max_steps=plan.total_steps, accumulate_grad_batches=2, callbacks=[StageCallback(plan)])
    trainer.fit(module, StagedDataModule(plan), ckpt_path="last")

    def training_step(self, batch, index):          # of a module around a model of transformers
        return self.model(**batch).loss

Every step has `accumulate_grad_batches` micro-batches, and their rows vary with the stage's batch size. Lightning takes
the mean of the losses of micro-batches and ranks. So that each token counts alike, divide a micro-batch's summed loss
by its `num_items_in_batch`, as the models of transformers do. Ranks add up their loss tokens once a step.
"""

from collections.abc import Collection, Iterator
from typing import Any

import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer

from trivium.adapters.forms import Form
from trivium.adapters.refuse import refuse, refuse_micro_batches
from trivium.adapters.steps import Steps, parts
from trivium.adapters.transformers_rope import RopeOfStages
from trivium.errors import ConfigError, Problem, ResumeError
from trivium.plan.plan import Plan

LOOP = "Lightning's Trainer"


class MicroBatches:
    """A plan's steps from the trainer's own on, each in micro-batches; Lightning keeps its state in checkpoints."""

    def __init__(self, steps: Steps, trainer: Trainer) -> None:
        self.steps, self.trainer = steps, trainer

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for _, batch in self.steps.batches(self.trainer.global_step):
            count = self.trainer.accumulate_grad_batches
            mean = self._all_ranks(batch.loss_tokens()) / (count * self.trainer.world_size)
            for part in parts(batch, count):
                yield self.steps.arrays(part) | {"num_items_in_batch": mean.clamp(min=1e-9)}

    def _all_ranks(self, tokens: int) -> torch.Tensor:
        counted = torch.tensor(float(tokens), dtype=torch.float64, device=self.trainer.strategy.root_device)
        return self.trainer.strategy.reduce(counted, reduce_op="sum").float()

    def state_dict(self) -> dict[str, Any]:
        """The loader's at the trainer's step, whatever was fetched ahead."""
        return self.steps.loader.state_at(self.trainer.global_step)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Refuses a plan whose earlier steps differ, and a checkpoint from between the micro-batches of a step."""
        taken = self.trainer.fit_loop.epoch_loop.batch_progress.current.ready
        count = self.trainer.accumulate_grad_batches
        if taken % count:
            what = f"cannot resume: after {taken:,} micro-batches, a step has taken {taken % count} of its {count}"
            raise ResumeError(f"{what}. Resume from a checkpoint of every_n_train_steps.")
        self.steps.load_state_dict(state)


class StagedDataModule(LightningDataModule):
    """The batches of a plan, in the form that the models of transformers take, or in another.

    `can` are the parts of a plan that your module does by itself, such as "z_loss" in its `training_step`.
    """

    def __init__(self, plan: Plan, *, form: str | Form = "huggingface", can: Collection[str] = ()) -> None:
        super().__init__()
        refuse(plan, LOOP, {"rope", *can})
        self.plan = plan.readable()
        self.form = form

    def train_dataloader(self) -> Any:
        """This rank's micro-batches from the trainer's step on."""
        trainer = self.trainer
        assert trainer is not None, "a trainer asks for its batches"
        refuse_set_up(trainer)
        count, ranks = trainer.accumulate_grad_batches, trainer.world_size
        refuse_micro_batches(self.plan, count, ranks, "accumulate_grad_batches")
        pinned = trainer.strategy.root_device.type == "cuda"
        how: dict[str, Any] = {"form": self.form, "tensors": True, "pin_memory": pinned}
        return MicroBatches(Steps(self.plan, trainer.global_rank, ranks, **how), trainer)


class StageCallback(Callback):
    """What a plan changes from step to step: the learning rate of every step, and a stage's rotary positions.

    The optimizer's own learning rates are the peak: give it `plan.peak_lr["rest"]`. Where a stage begins, a module that
    has a method `on_stage_start(stage)` is called.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan.readable()
        self._rope = RopeOfStages(self.plan)
        self._stage = -1

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Before each micro-batch."""
        step = min(trainer.global_step, self.plan.total_steps - 1)
        multiplier = self.plan.lr_multiplier(step)
        for optimizer in trainer.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group.setdefault("initial_lr", group["lr"]) * multiplier
        self._rope.enter(_with_rope(pl_module), step)
        stage = self.plan.stage_at(step)
        if stage.index != self._stage:
            self._stage = stage.index
            getattr(pl_module, "on_stage_start", lambda _: None)(stage)


def _with_rope(module: torch.nn.Module) -> torch.nn.Module:
    """The first module whose config has rotary positions, or the module itself."""
    has = (each for each in module.modules() if hasattr(getattr(each, "config", None), "rope_parameters"))
    return next(has, module)


def refuse_set_up(trainer: Trainer) -> None:
    """A trainer whose learning rate would not be the plan's."""
    problems = []
    if not any(isinstance(each, StageCallback) for each in trainer.callbacks):  # type: ignore[attr-defined]
        what = "lack StageCallback(plan), without which the learning rate is not the plan's. Add it."
        problems.append(Problem("callbacks", what))
    if trainer.lr_scheduler_configs:
        what = "returns a scheduler, and the plan has the learning rate of every step. Return the optimizer alone."
        problems.append(Problem("configure_optimizers", what))
    if problems:
        raise ConfigError(problems)
