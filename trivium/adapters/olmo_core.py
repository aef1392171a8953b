"""A plan -> OLMo-core's data loader and learning rate, for its Trainer.

    data_loader = StagedDataLoader(plan, work_dir="work", dp_world_size=get_world_size(), dp_rank=get_rank())
    trainer = TrainerConfig(..., max_duration=Duration.steps(plan.total_steps)).build(train_module, data_loader)
    # the train module's: scheduler=PlanScheduler(plan=plan)

The plan is one epoch. Row length and batch size change with the stages; the train module divides a batch into passes of
`rank_microbatch_size` tokens. It divides a rank's loss by the rank's own loss tokens, so that ranks with fewer of them
count for more, as with its own loaders.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from olmo_core.data.data_loader import DataLoaderBase
from olmo_core.optim.scheduler import Scheduler

from trivium.adapters.refuse import refuse
from trivium.adapters.steps import Steps
from trivium.errors import PlanError, Problem
from trivium.plan.plan import Plan
from trivium.rows.batch import Batch

LOOP = "OLMo-core's Trainer"


class StagedDataLoader(DataLoaderBase):  # type: ignore[misc]
    """The rows of one data-parallel rank, step by step; the global batch size, in tokens, is that of the next step.

    `can` are the parts of a plan that your train module does by itself.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        work_dir: str | Path,
        dp_world_size: int = 1,
        dp_rank: int = 0,
        fs_local_rank: int | None = None,
        can: Collection[str] = (),
    ) -> None:
        refuse(plan, LOOP, can)
        self.plan = plan.readable()
        self.steps = Steps(self.plan, dp_rank, dp_world_size, form="olmo_core", tensors=True)
        ranks = {"dp_world_size": dp_world_size, "dp_rank": dp_rank, "fs_local_rank": fs_local_rank}
        super().__init__(work_dir=work_dir, global_batch_size=self._tokens_at(0), **ranks)

    @property
    def global_batch_size(self) -> int:
        """Tokens of the next step, on all ranks."""
        return self._tokens_at(int(self.batches_processed))

    @global_batch_size.setter
    def global_batch_size(self, tokens: int) -> None:
        what = f"cannot become {tokens:,} tokens: the plan has the size of every step. Write it in the config's stages."
        raise PlanError([Problem("global_batch_size", what)])

    @property
    def total_batches(self) -> int:
        """Steps of the whole run."""
        return self.plan.total_steps

    def reshuffle(self, epoch: int | None = None, **_: Any) -> None:
        """The plan has an order of its own; there is no second epoch."""
        if epoch is not None and epoch > 1:
            what = (
                f"ends after {self.total_batches:,} steps. Write max_duration = Duration.steps({self.total_batches})."
            )
            raise PlanError([Problem("", f"the plan {what}")])
        self._epoch = 1

    def state_dict(self) -> dict[str, Any]:
        """The loader's at the step that comes next."""
        return self.steps.loader.state_at(self.batches_processed)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue on any number of ranks; refuses a plan whose earlier steps differ."""
        self.steps.load_state_dict(state_dict)
        self.batches_processed = self.steps.loader.step

    def get_mock_batch(self) -> dict[str, Any]:
        """Zeros in the shape of the next step."""
        step = min(self.batches_processed, self.total_batches - 1)
        stage = self.plan.stage_at(step)
        empty = np.zeros((stage.size_at(step) // self.dp_world_size, stage.seq_len), np.int32)
        return self._arrays(Batch(empty, empty, empty, empty, empty[:, 0], ()))

    def global_num_tokens_in_batch(self, batch: dict[str, Any]) -> int:
        """Tokens of a step on all ranks, padding included."""
        return int(batch["input_ids"].numel() * self.dp_world_size)

    def _iter_batches(self) -> Iterator[dict[str, Any]]:
        for _, batch in self.steps.batches(self.batches_processed):
            yield self._arrays(batch)

    def _arrays(self, batch: Batch) -> dict[str, Any]:
        arrays = self.steps.arrays(batch)
        return {name: array.tolist() if name == "max_doc_lens" else array for name, array in arrays.items()}

    def _tokens_at(self, step: int) -> int:
        step = min(step, self.plan.total_steps - 1)
        stage = self.plan.stage_at(step)
        return stage.size_at(step) * stage.seq_len


@dataclass
class PlanScheduler(Scheduler):  # type: ignore[misc]
    """The plan's learning rate, as a multiplier of the optimizer's own."""

    plan: Any = None

    def get_lr(self, initial_lr: Any, current: int, t_max: int) -> Any:
        """At the step that is being taken, which the Trainer counts from 1."""
        return initial_lr * self.plan.lr_multiplier(min(current, self.plan.total_steps) - 1)
