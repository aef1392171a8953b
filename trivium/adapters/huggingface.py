"""A plan -> a Hugging Face `Trainer` that trains by it: batches, learning rate, rotary positions, exact resume.

    trainer = StagedTrainer(plan, model=model, args=TrainingArguments(output_dir="runs/hf", ...))
    trainer.train(resume_from_checkpoint=True)

Every step has `gradient_accumulation_steps` micro-batches, and their rows vary with the stage's batch size.
accelerate finds nothing to split or to skip: every rank makes its own rows, of any step. The loader's state is in the
checkpoint's trainer_state.json, so that a plan whose earlier steps differ is refused.
"""

from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

from trivium.adapters.refuse import refuse, refuse_micro_batches
from trivium.adapters.steps import Steps, parts
from trivium.adapters.transformers_rope import RopeOfStages
from trivium.errors import ConfigError, Problem, ResumeError
from trivium.plan.plan import Plan

LOOP = "The Hugging Face Trainer"
STATE = "trivium"  # the entry of trainer_state.json among the callbacks' states


class MicroBatches:
    """A plan's steps from one on, each as the same number of micro-batches."""

    def __init__(self, steps: Steps, count: int, begin: Callable[[], int]) -> None:
        self.steps, self.count, self.begin = steps, count, begin

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for _, batch in self.steps.batches(self.begin()):
            for part in parts(batch, self.count):
                yield self.steps.arrays(part)


class StagedTrainer(Trainer):
    """A Trainer that reads a plan; everything else is as in any Trainer.

    The plan decides `max_steps` (where it is not given), `learning_rate` and its schedule. `can` are the parts of a
    plan that a subclass of yours does by itself, such as "z_loss" in its `compute_loss`.
    """

    def __init__(self, plan: Plan, *, args: TrainingArguments, can: Collection[str] = (), **options: Any) -> None:
        refuse(plan, LOOP, {"rope", *can})
        self.plan = plan = plan.readable()
        refuse_arguments(args)
        refuse_micro_batches(plan, args.gradient_accumulation_steps, args.world_size, "gradient_accumulation_steps")
        args.max_steps = plan.total_steps if args.max_steps <= 0 else min(args.max_steps, plan.total_steps)
        args.learning_rate = plan.peak_lr["rest"]
        args.ignore_data_skip = True  # a loader begins at any step: nothing is read to be thrown away
        super().__init__(args=args, **options)
        # With a cache, these models do not tell documents apart by their positions.
        model: Any = self.model
        model.config.use_cache = False
        self.add_callback(EnterStages(plan))
        pinned = args.dataloader_pin_memory and torch.cuda.is_available()
        ranks = self.accelerator
        how: dict[str, Any] = {"form": "huggingface", "tensors": True, "pin_memory": pinned}
        self.steps = Steps(plan, ranks.process_index, ranks.num_processes, **how)

    def get_train_dataloader(self) -> Any:
        """This rank's micro-batches from the current step on."""
        return MicroBatches(self.steps, self.args.gradient_accumulation_steps, self._begin)

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """The plan's learning rate, as a multiplier of `learning_rate`."""
        last = self.plan.total_steps - 1
        used: Any = optimizer or self.optimizer
        self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(
            used, lambda step: self.plan.lr_multiplier(min(step, last))
        )
        self._created_lr_scheduler = True
        return self.lr_scheduler

    def _begin(self) -> int:
        """The step that a launch begins with: 0, or a checkpoint's, whose earlier steps are those of the plan."""
        step = self.state.global_step
        states: Any = self.state.stateful_callbacks
        saved = states.get(STATE)
        if saved is None:
            if step:
                what = "was not written by a StagedTrainer, so that its data cannot be known"
                raise ResumeError(f"the checkpoint of step {step:,} {what}. Start from its weights in a new run.")
            return step
        self.steps.load_state_dict(saved["attributes"])
        return step

    def _save_checkpoint(self, *arguments: Any, **options: Any) -> None:
        state = self.steps.loader.state_at(self.state.global_step)
        states: Any = self.state.stateful_callbacks
        states[STATE] = {"args": {}, "attributes": state}
        super()._save_checkpoint(*arguments, **options)


class EnterStages(TrainerCallback):
    """What a stage changes in the model, before its first step."""

    def __init__(self, plan: Plan) -> None:
        self._rope = RopeOfStages(plan.readable())

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Rotary positions of the stage."""
        self._rope.enter(kwargs["model"], state.global_step)


def refuse_arguments(args: TrainingArguments) -> None:
    """Arguments with which losses would depend on the number of ranks, or that ask for another order of the data."""
    problems = []
    if args.world_size > 1 and not args.average_tokens_across_devices:
        what = "is False: ranks with fewer loss tokens would count for more. Write True, which is the default."
        problems.append(Problem("average_tokens_across_devices", what))
    if args.auto_find_batch_size:
        what = "is True, and the plan decides the rows of a step. Raise gradient_accumulation_steps instead."
        problems.append(Problem("auto_find_batch_size", what))
    if problems:
        raise ConfigError(problems)
