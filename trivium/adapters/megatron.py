"""A plan -> a dataset in the form of Megatron's GPTDataset, and the provider that its training script asks for.

    train_valid_test_datasets_provider = datasets_provider(plan, global_batch_size=256, config=gpt_dataset_config)

Samples are the rows of the run in the order in which they are consumed, so that Megatron's sequential sampler gives
every step its rows on any number of data-parallel ranks, and `consumed_samples` resumes anywhere. Megatron has one row
length and one global batch size, so that all stages must have these; the learning rate is Megatron's own schedule.
"""

from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from itertools import accumulate
from typing import Any

import torch
from megatron.core.datasets.gpt_dataset import GPTDatasetConfig
from megatron.core.datasets.megatron_dataset import MegatronDataset
from megatron.core.datasets.utils import Split

from trivium.adapters.refuse import refuse
from trivium.adapters.steps import Steps
from trivium.errors import PlanError, Problem
from trivium.plan.plan import Plan, ReadablePlan
from trivium.rows.batch import Batch

LOOP = "Megatron"
Provider = Callable[[Sequence[int]], tuple["StagedGPTDataset | None", None, None]]


class StagedGPTDataset(MegatronDataset):  # type: ignore[misc]
    """Rows of a run by number: tokens, labels, loss_mask and position_ids, and an attention_mask where asked for."""

    def __init__(self, plan: ReadablePlan, config: GPTDatasetConfig) -> None:
        self.steps = Steps(plan, form="megatron", tensors=True)
        self._plan = plan
        self._ends = list(accumulate(stage.rows for stage in plan.stages))
        super().__init__(plan, plan.fingerprint(plan.total_steps), [], self._ends[-1], Split.train, config)

    def __len__(self) -> int:
        """Rows of the whole run."""
        return self._ends[-1]

    def __getitem__(self, idx: int | None) -> dict[str, Any]:
        """A row by its number; without a number one that counts for nothing, as GPTDataset gives it."""
        step, row = self.place_of(idx or 0)
        batch = self.steps.rows(step, row, row + 1)
        sample = {name: tensor[0] for name, tensor in self.steps.arrays(batch).items()}
        if self.config.create_attention_mask:
            sample["attention_mask"] = hidden(batch)
        if idx is None:
            sample["loss_mask"] = torch.zeros_like(sample["loss_mask"])
        return sample

    def place_of(self, sample: int) -> tuple[int, int]:
        """The step that a sample belongs to, and its row there."""
        if not 0 <= sample < len(self):
            raise IndexError(f"sample {sample:,} does not exist: the run has {len(self):,} rows, counted from 0.")
        stage = self._plan.stages[bisect_right(self._ends, sample)]
        step, row = stage.batches.place_of(sample - (self._ends[stage.index] - stage.rows))
        return stage.start + step, row


def hidden(batch: Batch) -> torch.Tensor:
    """Of a batch of one row, (1, T, T): True where a token does not see another, as Megatron has it."""
    segments = torch.from_numpy(batch.segments)
    same = segments[:, :, None] == segments[:, None, :]
    return ~(same & torch.ones_like(same).tril())


def datasets_provider(
    plan: Plan,
    *,
    global_batch_size: int,
    config: GPTDatasetConfig,
    is_built_on_rank: Callable[[], bool] = lambda: True,
    can: Collection[str] = (),
) -> Provider:
    """What Megatron's `pretrain` takes; gives a dataset for training, and none for validation and tests.

    `is_built_on_rank` says which ranks read: as in Megatron, the first tensor rank of the first and last pipeline
    stages. `can` are the parts of a plan that your training script does by itself.
    """
    refuse(plan, LOOP, can, cannot=("streams",))
    readable = plan.readable()
    problems = [*_other_sizes(readable, global_batch_size, config)]
    if problems:
        raise PlanError(problems)

    def provider(train_val_test_num_samples: Sequence[int]) -> tuple[StagedGPTDataset | None, None, None]:
        rows = sum(stage.rows for stage in readable.stages)
        asked = train_val_test_num_samples[0]
        if asked is not None and asked > rows:
            what = f"asks for {asked:,} samples, and the plan has {rows:,}. Write --train-iters {readable.total_steps}."
            raise PlanError([Problem("train_val_test_num_samples", what)])
        return (StagedGPTDataset(readable, config) if is_built_on_rank() else None), None, None

    provider.is_distributed = True  # type: ignore[attr-defined]  # every rank asks, not the first tensor rank alone
    return provider


def _other_sizes(plan: ReadablePlan, global_batch_size: int, config: GPTDatasetConfig) -> list[Problem]:
    """Stages whose rows or batches are not Megatron's, and documents that its attention would join."""
    problems = []
    for stage in plan.stages:
        where = f"stages[{stage.index}]"
        sizes = {piece.size for piece in stage.batch_pieces}
        if sizes != {global_batch_size}:
            shown = " and ".join(f"{size:,}" for size in sorted(sizes))
            what = f"is {shown}, and Megatron's global batch size is {global_batch_size:,} in every step."
            problems.append(Problem(f"{where}.batch_size", f"{what} Write {global_batch_size}."))
        if stage.seq_len != config.sequence_length:
            what = f"is {stage.seq_len:,}, and Megatron's --seq-length is {config.sequence_length:,} in every step."
            problems.append(Problem(f"{where}.seq_len", f"{what} Write {config.sequence_length}."))
        if stage.config.document_mask and not config.create_attention_mask:
            what = (
                "is true, and Megatron makes no attention mask from data. Write false, or create_attention_mask=True."
            )
            problems.append(Problem(f"{where}.document_mask", what))
    return problems
