"""`[optimizer]` and the stages -> the optimizer of each stage, and where its state starts fresh.

    a stage with no optimizer table       has the optimizer of the run so far
    a table without a name                changes its keys for this stage alone
    a table with a name                   takes the place of `[optimizer]` from this stage on; keys that it leaves out
                                          are `[optimizer]`'s

An optimizer's state is kept from stage to stage and belongs to one name: under another name it starts fresh. So a
stage that says nothing never loses it, and going back to an earlier optimizer has to be written.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from trivium.config.optimizer import Optimizer
from trivium.config.stages import Stage


@dataclass(frozen=True, slots=True)
class StageOptimizer:
    """A stage's optimizer, every key resolved."""

    settings: Optimizer
    is_fresh: bool  # its state starts anew at the stage's first step
    began: int  # the stage at whose start its state began

    def changes_from(self, other: "StageOptimizer") -> dict[str, tuple[object, object]]:
        """Keys in which it differs from another, with both values."""
        both = {key: (getattr(other.settings, key), getattr(self.settings, key)) for key in Optimizer.model_fields}
        return {key: values for key, values in both.items() if values[0] != values[1]}


def stage_optimizers(run: Optimizer, stages: Sequence[Stage]) -> tuple[StageOptimizer, ...]:
    """The optimizer of every stage; `stages` have `[defaults]` merged into them."""
    resolved = _resolved(run, stages)
    is_fresh = [stages[0].reset_optimizer if stages else False]
    is_fresh += [
        stage.reset_optimizer or after.name != before.name
        for stage, (before, after) in zip(stages[1:], pairwise(resolved), strict=True)
    ]
    began = 0
    found = []
    for index, settings in enumerate(resolved):
        began = index if is_fresh[index] else began
        found.append(StageOptimizer(settings, is_fresh[index], began))
    return tuple(found)


def _resolved(run: Optimizer, stages: Sequence[Stage]) -> list[Optimizer]:
    found = []
    last_named = run
    for stage in stages:
        own = stage.optimizer
        written = {} if own is None else {key: getattr(own, key) for key in own.model_fields_set}
        settings = (run if "name" in written else last_named).model_copy(update=written)
        last_named = settings if "name" in written else last_named
        found.append(settings)
    return found
