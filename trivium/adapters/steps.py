"""Plan + rank -> the steps of a run as plain arrays by name: what most loops need, and nothing else.

    steps = trivium.Steps(plan, rank=0, world_size=1, form="huggingface", tensors=True)
    DataLoader(steps, batch_size=None, num_workers=2)       # torch's, torchdata's: by step
    for batch in steps: ...                                 # in order, from the current step on

Attention that goes across documents (`document_mask = false`) and sources whose `loss_weight` is 0 are in the arrays.
A step costs what the Loader's does, and the copy to the dtypes of its form.
"""

from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from trivium.adapters.forms import FORMS, Form
from trivium.config.sources import StreamSource
from trivium.engine.loss_weight import LossWeights
from trivium.errors import PlanError, Problem, UsageError
from trivium.loader.loader import Loader
from trivium.plan.plan import Plan
from trivium.rows.batch import IGNORED, Batch


class Steps:
    """One rank's rows of every step: `steps[41_337]`, or one after the other, with a state to resume from.

    `form` is a name (plain, huggingface, maxtext, megatron, olmo_core) or a function of your own from a Batch to arrays
    by name. With `tensors` they are torch tensors, with `pin_memory` in memory that a GPU copies from directly. Ranks
    must be able to share every batch from step `start` on, up to step `end` where others go on from there.
    """

    def __init__(
        self,
        plan: Plan,
        rank: int = 0,
        world_size: int = 1,
        *,
        form: str | Form = "plain",
        tensors: bool = False,
        pin_memory: bool = False,
        start: int = 0,
        end: int | None = None,
    ) -> None:
        self.loader = Loader(plan, rank, world_size, start=start, end=end)
        self.form = _form(form)
        self.tensors = tensors or pin_memory
        self.pin_memory = pin_memory

    def __len__(self) -> int:
        """Steps of the whole run."""
        return len(self.loader)

    def __getitem__(self, step: int) -> dict[str, Any]:
        """The arrays of a step, in any order of calls; the state is then that after this step."""
        if not -len(self) <= step < len(self):
            raise IndexError(f"there is no step {step:,}: the run has {len(self):,}.")
        if self._streams:
            what = "is a stream, which is read in order: iterate over the steps instead of asking for one."
            raise PlanError([Problem(f"sources.{name}", what) for name in self._streams])
        step = int(step) % len(self)
        self.loader.step = step + 1
        return self.arrays(self.batch(step))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The arrays of every step from the current one on."""
        return (self.arrays(batch) for _, batch in self.batches())

    def batch(self, step: int) -> Batch:
        """A step's rows before they are given names."""
        return self._with_stage(step, self.loader.batch(step))

    def rows(self, step: int, start: int, stop: int) -> Batch:
        """Some of a step's rows before they are given names."""
        return self._with_stage(step, self.loader.rows(step, start, stop))

    def batches(self, start: int | None = None) -> Iterator[tuple[int, Batch]]:
        """Every step from `start` on (by default from the current one), before its arrays are given names."""
        for step, batch in self.loader.batches(start):
            yield step, self._with_stage(step, batch)

    def arrays(self, batch: Batch) -> dict[str, Any]:
        """A batch in the form that was asked for."""
        arrays: dict[str, Any] = self.form(batch)
        if self.tensors:
            import torch

            arrays = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}
        if self.pin_memory:
            arrays = {name: tensor.pin_memory() for name, tensor in arrays.items()}
        return arrays

    def state_dict(self) -> dict[str, Any]:
        """The step after the last one that was given, and what decided the steps before it: plain values."""
        return self.loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved step, on any number of ranks; refuses a plan whose earlier steps differ."""
        self.loader.load_state_dict(state)

    def close(self) -> None:
        """Let the threads of streams end."""
        self.loader.close()

    @cached_property
    def _streams(self) -> list[str]:
        sources = self.loader.plan.config.sources
        return [name for name, source in sorted(sources.items()) if isinstance(source, StreamSource)]

    def _with_stage(self, step: int, batch: Batch) -> Batch:
        """The batch with what the stage says about attention and loss in its arrays."""
        stage = self.loader.plan.stage_at(step).config
        if not stage.document_mask:
            batch = batch.joined()
        weights = LossWeights(stage.loss_weight or {}).of_rows(batch)
        if weights is not None and not weights.all():
            batch.targets[weights == 0] = IGNORED
        return batch


def parts(batch: Batch, count: int, where: str = "") -> list[Batch]:
    """The rows of a batch in `count` micro-batches of nearly equal size: 10 rows in 4 are 3, 2, 3 and 2."""
    if batch.num_rows < count:
        rows = "1 row" if batch.num_rows == 1 else f"{batch.num_rows} rows"
        what = f"a step has {rows} on this rank, which {count} micro-batches cannot share. Ask for fewer of them."
        raise PlanError([Problem(where, what)])
    bounds = [-(-batch.num_rows * part // count) for part in range(count + 1)]
    return [batch.rows(first, stop) for first, stop in pairwise(bounds)]


def _form(form: str | Form) -> Form:
    if not isinstance(form, str):
        return form
    if form not in FORMS:
        raise UsageError(f'the form "{form}" is not known. Write one of {", ".join(FORMS)}, or give a function.')
    return FORMS[form]
