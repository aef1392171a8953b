"""What a step's event says of its cost, beside a plain count."""

from pathlib import Path

import pytest

from tests.support.events import steps_taken
from tests.support.plans import plan_of
from tests.support.training import train
from trivium.engine.memory import DeviceMemory
from trivium.engine.ranks import Ranks, Value
from trivium.train import meter
from trivium.train.meter import Compared, Meter

GB = 10**9


class TwoRanks(Ranks):
    """Rank 0 of two; the other takes as long, and its device has a gigabyte more of everything, and two retries."""

    size = 2

    def __init__(self, late: float = 0.0) -> None:
        self.calls = 0
        self.late = late  # seconds that the other rank takes longer before its passes

    def gather(self, value: Value) -> list[Value]:
        self.calls += 1
        assert isinstance(value, list)
        alone, together, *memory = value
        other = [alone + self.late, together - self.late, *([memory[0] + GB, memory[1] + GB, 2] if memory else [])]
        return [value, other]  # type: ignore[list-item]


class Sixty:
    """Sixty gigabytes are predicted for every stage."""

    def of(self, stage: int) -> int:
        return 60 * GB


@pytest.fixture
def resets(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """A device of 80 GB, of which 62 were held; and the times that its peaks were reset."""
    found = []

    def memory(*, reset: bool = False) -> DeviceMemory:
        found.extend([True] * reset)
        return DeviceMemory("NVIDIA H100 80GB HBM3", 80 * GB, 62 * GB, 70 * GB, 0)

    monkeypatch.setattr(meter, "device_memory", memory)
    return found


def test_ranks_compare_their_devices_memory_every_ten_steps_and_where_a_stage_ends(resets: list[bool]) -> None:
    ranks, said = TwoRanks(), list[str]()
    compared = Compared(ranks, said.append, Sixty())  # type: ignore[arg-type]
    compared.enter(0)
    found = [compared.took(0.5, 0.3, ends_stage=step == 13) for step in range(14)]
    assert [step for step, each in enumerate(found) if each] == [9, 13]
    figures = {"active": 63 * GB, "reserved": 71 * GB, "retries": 2, "total": 80 * GB, "predicted": 60 * GB}
    assert found[9] == found[13] == {"device_memory": figures}
    assert (ranks.calls, len(resets)) == (2, 1)
    full = "71.0 of 80.0 GB are reserved, 2 retries of the allocator"
    assert said == [f"the GPU's memory is nearly full, and steps are slower: {full}"]
    compared.enter(1)
    compared.took(0.5, 0.3, ends_stage=True)
    assert (len(resets), len(said)) == (2, 2)


def test_without_devices_the_end_of_a_stage_costs_no_call() -> None:
    ranks = TwoRanks()
    compared = Compared(ranks, print)
    compared.enter(0)
    assert [compared.took(0.5, 0.3, ends_stage=True) for _ in range(10)] == [{}] * 10
    assert ranks.calls == 1


@pytest.mark.parametrize(("late", "names"), [(0.25, True), (0.05, False)])
def test_a_rank_that_the_others_wait_for_is_found_though_all_steps_take_the_same_time(late: float, names: bool) -> None:
    said = list[str]()
    compared = Compared(TwoRanks(late), said.append)
    found = [compared.took(1.0, 0.8, ends_stage=False) for _ in range(30)]
    # A rank that waits has passes of 0.8 s; without the wait they take 0.8 s less what the other one is late.
    alone, passes = 0.2, 0.8 - late
    figures = {"slowest_rank": 1, "slowest_seconds": alone + late + passes, "median_seconds": alone + passes}
    slowest = [each for each in found if each]
    assert slowest == ([pytest.approx(figures)] * 3 if names else [])
    times = "1.000 s where half of them take 0.750 s or less"
    assert said == ([f"rank 1 is slow: the others wait for it, {times}"] if names else [])


@pytest.mark.usefixtures("folder")
def test_a_steps_event_has_the_running_mean_and_what_the_step_cost() -> None:
    trainer = train("evaluate.every=100")
    events = steps_taken(Path("runs/run/events.jsonl"))
    biased, seconds = 0.0, 0.0
    for step in range(1, 20):
        event = events[step]
        biased = 0.9 * biased + 0.1 * event["loss"]
        seconds += event["seconds"] if step > 10 else 0.0  # the first ten warm up
        assert event["mean_loss"] == pytest.approx(biased / (1 - 0.9**step), rel=1e-9)
        assert event["training_seconds"] == pytest.approx(seconds, rel=1e-9)
        assert event["percent"] == pytest.approx(100 * step / 19)
        assert event["tokens_per_second"] == pytest.approx(event["tokens"] / event["seconds"])
        assert event["lr_multiplier"] == trainer.plan.lr_multiplier(step - 1)
        assert event["epochs"] == pytest.approx(trainer.plan.epochs_before(step))
        assert event["mfu"] is None or event["mfu"] > 0
    work = [trainer.plan.model.flops(stage.seq_len) * (stage.tokens or 0) for stage in trainer.plan.stages]
    assert events[19]["flops"] == pytest.approx(sum(work))


def test_more_than_the_peak_of_a_device_is_not_shown() -> None:
    meter = Meter(plan_of({"steps": 1}), peak_flops=1e12)  # type: ignore[arg-type]
    assert [meter._mfu(flops) for flops in (0.5e12, 1e12, 1.1e12)] == [0.5, 1.0, None]
