"""A plan -> a Grain `MapDataset` of its steps, for MaxText and other loops of JAX.

    dataset = grain_dataset(plan, jax.process_index(), jax.process_count(), form="maxtext")
    batches = iter(dataset.to_iter_dataset())     # or .mp_prefetch(grain.multiprocessing.MultiprocessingOptions(4))
    batches.set_state(batches.get_state())        # Grain's own state is the number of the next step

Every element is one process's rows of one step. Row length and batch size change with the stages, and a compiled step
is compiled again for each shape. The learning rate is `plan.settings_at(step).lr`.
"""

from collections.abc import Collection
from typing import Any

import grain

from trivium.adapters.forms import Form
from trivium.adapters.refuse import refuse
from trivium.adapters.steps import Steps
from trivium.plan.plan import Plan


class StepsDataset(grain.MapDataset[dict[str, Any]]):  # type: ignore[misc]
    """The steps of a run by number; as with every MapDataset, numbers from its length on begin again."""

    def __init__(self, steps: Steps) -> None:
        super().__init__()
        self.steps = steps

    def __len__(self) -> int:
        """Steps of the whole run."""
        return len(self.steps)

    def __getitem__(self, index: Any) -> Any:
        """A step's arrays by name."""
        if isinstance(index, slice):
            return self.slice(index)
        return self.steps[index % len(self)]


def grain_dataset(
    plan: Plan, rank: int = 0, world_size: int = 1, *, form: str | Form = "maxtext", can: Collection[str] = ()
) -> StepsDataset:
    """The steps of a plan, of which a process gets its rows; refuses what a loop over batches cannot do.

    `can` are the parts of a plan that your loop does by itself, such as "rope" or "z_loss".
    """
    refuse(plan, "a loop over a Grain dataset", can, cannot=("streams",))
    return StepsDataset(Steps(plan, rank, world_size, form=form))
