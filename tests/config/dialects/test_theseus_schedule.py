"""theseus's learning rates at every step, also where the optimizer's reset begins the schedule again."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.theseus import FOLDER, PMD, load, notes, plan_of, refusal, written


def test_the_optimizer_is_reset_with_every_stage_but_the_first(file: Path) -> None:
    three = {"training__tokens": [4096] * 3, "training__dataset": [[PMD]] * 3}
    written(file, **three, optimization__reset_optimizer=True)
    assert [stage.reset_optimizer for stage in load(file).config.stages] == [False, True, True]
    assert notes(file) == [FOLDER]
    stages = load(written(file, optimization__reset_optimizer=False)).raw["stages"]
    assert stages[1].keys() & {"reset_optimizer", "lr"} == set()


@pytest.mark.parametrize("steps", [[60, 30, 10], [4, 96], [3, 4, 93]], ids=["stable", "decay", "short warm-up"])
@pytest.mark.parametrize("job", ["continual/train/benchmark", None])
def test_a_reset_begins_the_schedule_again(file: Path, job: str | None, steps: list[int]) -> None:
    keys = {"reset_optimizer": True, "warmup_pct": 0.06, "decay_pct": 0.2}
    stages = {"training__tokens": [4096 * each for each in steps], "training__dataset": [[PMD]] * len(steps)}
    plan = plan_of(written(file, job=job, optimization=keys, **stages))
    schedule = their_schedule("wsd", 100, keys, steps)
    expected = [float(schedule(step)) for each in steps for step in range(each)]
    assert [plan.lr_multiplier(step) for step in range(100)] == pytest.approx(expected, abs=1e-6)


def test_a_reset_is_refused_where_no_stage_can_begin_the_schedule_again(file: Path) -> None:
    resets = {"reset_optimizer": True}
    assert refusal(written(file, optimization=resets | {"schedule": "cosine_rewarm"})) == [
        (
            "optimization/reset_optimizer: is true, and theirs begins the first stage's cosine again with every reset. "
            "Write reset_optimizer: false, or schedule: wsd."
        )
    ]
    stages = {"training__tokens": [4096 * 10, 4096 * 90]}
    assert refusal(written(file, optimization=resets | {"schedule": "wsds"}, **stages)) == [
        (
            "optimization/reset_optimizer: is true, but stage 1 goes on after the end of the decay that begins "
            "again with it. Write reset_optimizer: false."
        )
    ]


def their_schedule(name: str, steps: int, keys: dict[str, Any], stages: list[int]) -> Any:
    """Their three schedules, in optax, from what their pages say of them; the peak is 1."""
    optax = pytest.importorskip("optax")
    rise, fall = (int(steps * keys.get(key, usual)) for key, usual in (("warmup_pct", 0.005), ("decay_pct", 0.01)))
    if name == "wsd":
        parts = [optax.linear_schedule(0.01, 1, rise), optax.constant_schedule(1), optax.linear_schedule(1, 0.01, fall)]
        return optax.join_schedules(parts, [rise, steps - fall])
    if name == "wsds":
        rise, stable = int(steps * keys.get("warmup_pct", 0.01)), int(steps * keys.get("constant_pct", 0.5))
        to = keys.get("decay_lr_mult", 0.1)
        parts = [
            optax.linear_schedule(keys.get("warmup_lr_mult", 0.01), 1, rise),
            optax.constant_schedule(1),
            optax.linear_schedule(1, to, fall),
            optax.constant_schedule(to),
        ]
        return optax.join_schedules(parts, [rise, steps - fall - stable, steps - stable])
    lowest, parts, boundaries = keys.get("min_lr_mult", 0.01), [], []
    for number, length in enumerate(stages):
        peak = 1 if number == 0 else keys.get("rewarm_lr", 1e-4) / keys.get("lr", 3e-4)
        rise = max(1, int(length * keys.get("warmup_pct", 0.01)))
        parts += [optax.linear_schedule(lowest, peak, rise), optax.cosine_decay_schedule(peak, length - rise, lowest)]
        boundaries += [sum(stages[:number]), sum(stages[:number]) + rise]
    return optax.join_schedules(parts, boundaries[1:])


ABCD, BENCHMARK = "continual/train/abcd", "continual/train/benchmark"
LENGTHS = {"warmup_pct": 0.1, "decay_pct": 0.2, "constant_pct": 0.25}


@pytest.mark.parametrize(
    ("job", "keys", "name"),
    [
        (None, {}, "wsd"),
        ("gpt/train/pretrain", {"warmup_pct": 0.05, "decay_pct": 0.3}, "wsd"),
        (BENCHMARK, LENGTHS, "wsd"),
        (BENCHMARK, LENGTHS | {"schedule": "wsd"}, "wsd"),
        (BENCHMARK, LENGTHS | {"schedule": "wsd_reset"}, "wsd"),
        (BENCHMARK, LENGTHS | {"schedule": "wsds", "decay_lr_mult": 0.5, "warmup_lr_mult": 0.2}, "wsd"),
        (BENCHMARK, LENGTHS | {"schedule": "cosine_rewarm", "rewarm_lr": 2e-4}, "wsd"),
        ("gpt/train/pretrain", {"rewarm_lr": 2e-4}, "wsd"),
        (ABCD, {"schedule": "cosine_rewarm", "rewarm_lr": 2e-4}, "wsds"),
        (ABCD, {}, "wsds"),
        (ABCD, LENGTHS | {"decay_lr_mult": 0.5}, "wsds"),
        (None, LENGTHS, "wsds"),
        (None, LENGTHS | {"schedule": "wsds", "decay_lr_mult": 0.5, "warmup_lr_mult": 0.2}, "wsds"),
        (None, LENGTHS | {"schedule": "cosine_rewarm"}, "cosine_rewarm"),
        (None, {"lr": 1e-3, "rewarm_lr": 5e-4, "warmup_pct": 0.1, "min_lr_mult": 0.1}, "cosine_rewarm"),
    ],
)
def test_the_learning_rate_is_theirs_at_every_step(
    file: Path, job: str | None, keys: dict[str, Any], name: str
) -> None:
    plan = plan_of(written(file, job=job, optimization=keys, training__warmup_pct=0.5, training__decay_pct=0.5))
    schedule = their_schedule(name, 110, keys, [100, 10])
    expected = [float(schedule(step)) for step in range(110)]
    assert [plan.lr_multiplier(step) for step in range(110)] == pytest.approx(expected, abs=1e-6)


def test_a_schedule_that_their_trainer_does_not_take_decides_nothing(file: Path) -> None:
    written(file, job=BENCHMARK, optimization={"schedule": "cosine_rewarm", "rewarm_lr": 2e-4})
    assert [note for note in notes(file) if note.startswith("optimization")] == [
        (
            'optimization/schedule: has no effect here (it is "cosine_rewarm"): '
            "the trainer of this job trains with wsd whatever it says."
        ),
        "optimization/rewarm_lr: has no effect here (it is 0.0002): wsd does not read it.",
    ]
    written(file, job=BENCHMARK, optimization__schedule="wsd")
    assert not any(note.startswith("optimization") for note in notes(file))
