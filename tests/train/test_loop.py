"""What happens between the steps of a launch."""

import gc

import pytest

from tests.support.training import losses
from trivium.engine.base import StepStats
from trivium.errors import UsageError
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


@pytest.mark.usefixtures("folder")
def test_a_launch_ends_before_a_stage_and_the_next_goes_on_as_if_it_had_not() -> None:
    assert Trainer("run.toml", ["run.name=whole"], show=False).run().finished
    first = Trainer("run.toml", show=False, until="two").run()
    assert (first.step, first.reached, first.finished) == (first.plan.stages[1].start, True, False)
    assert Trainer("run.toml", show=False, until=first.step + 2).run().step == first.step + 2
    assert Trainer("run.toml", show=False).run().finished
    assert losses("run") == losses("whole")


@pytest.mark.usefixtures("folder")
def test_a_launch_that_is_to_end_before_a_stage_that_is_not_there_is_refused() -> None:
    with pytest.raises(UsageError, match=r'no stage "twu"\. Did you mean "two"\?'):
        Trainer("run.toml", show=False, until="twu")
    with pytest.raises(UsageError, match=r"--until: there is no step 9,999: the run has 19\. Leave it out\."):
        Trainer("run.toml", show=False, until=9999)
