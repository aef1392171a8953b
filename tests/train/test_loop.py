"""What happens between the steps of a launch."""

import gc

import pytest

from trivium.engine.base import StepStats
from trivium.train import loop
from trivium.train.trainer import Trainer


class Counting(Trainer):
    """Counts the collections of Python's garbage that came before each step's end."""

    collections: list[int]

    def on_start(self) -> None:
        self.collections = []

    def on_step(self, step: int, stats: StepStats) -> None:
        assert not gc.isenabled()
        self.collections.append(gc.get_stats()[2]["collections"])


class Stopping(Trainer):
    """Stops in the hook after a step."""

    def on_step(self, step: int, stats: StepStats) -> None:
        if step == 3:
            self.stopping = True


@pytest.mark.usefixtures("folder")
def test_a_hook_that_stops_a_run_stops_it_after_that_step() -> None:
    assert Stopping("run.toml", show=False).run().step == 4


@pytest.mark.usefixtures("folder")
def test_garbage_is_collected_at_fixed_steps_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "GARBAGE_STEPS", 4)
    trainer = Counting("run.toml", ["evaluate.every=10"], show=False, dry_run=True)
    trainer.run()
    collected = [
        step
        for step, (one, two) in enumerate(zip(trainer.collections, trainer.collections[1:], strict=False))
        if two > one
    ]
    assert [step + 1 for step in collected] == [4, 8, 10, 12, 16]
    assert gc.isenabled()
