"""torchtitan's configs: the learning rate at every step, and what its schedules cannot be."""

import itertools
from pathlib import Path

import pytest

from tests.support.torchtitan import notes, plan_of, refusal, stage, tables
from tests.support.torchtitan_itself import (
    their_multipliers,
)


@pytest.mark.slow
def test_the_learning_rate_is_theirs_at_every_step(file: Path) -> None:
    falls = (("linear", 0.0), ("linear", 0.1), ("cosine", 0.1), ("sqrt", 0.1))
    lengths = itertools.product((0, 3, 30), (None, 0.0, 0.3, 0.95), (None, 10, 40))
    for (warmup, ratio, total), (shape, to) in itertools.product(lengths, falls):
        table = {"warmup_steps": warmup, "decay_type": shape, "min_lr_factor": to}
        table |= {} if ratio is None else {"decay_ratio": ratio}
        table |= {} if total is None else {"total_steps": total}
        training = tables({"lr_scheduler": table, "training": {"steps": 20, "global_batch_size": 8}})
        plan = plan_of(file, stage("a", 0), training=training)
        steps = min(20, total or 20)
        ours = [plan.lr_multiplier(step) for step in range(steps)]
        assert ours == pytest.approx(their_multipliers(table, 20, steps)), table


@pytest.mark.parametrize(
    "keys",
    [
        "warmup_steps = {}\nsteps = 20\nbatch_size = 8",
        "steps = 20\nbatch_size = 8\n[lr_scheduler]\nwarmup_steps = {}",
        "warmup_steps = {}\nsteps = 20\nglobal_batch_size = 8",
    ],
    ids=["2024", "spring of 2025", "the key alone"],
)
@pytest.mark.parametrize("warmup", [0, 1, 4, 30])
def test_a_warm_up_of_an_old_file_has_one_step_more(file: Path, keys: str, warmup: int) -> None:
    """Theirs then: step n of a warm-up over w steps has n / (w + 1), and what follows falls to zero."""
    data = 'dataset_type = "nanoset"\ndataset_folders = ["data/web"]\n'
    plan = plan_of(file, training=f"[training]\n{data}{keys.format(warmup)}\n", world_size=1)
    expected = [
        (step + 1) / (warmup + 1) if step < warmup else 1 - (step - warmup) / max(1, 20 - warmup) for step in range(20)
    ]
    assert [plan.lr_multiplier(step) for step in range(20)] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("scheduler", "said"),
    [
        ("", "warmup_steps: is absent, which means 200, over the schedule's 20 steps: taken as 20."),
        ("warmup_steps = 30", "warmup_steps: is 30, over the schedule's 20 steps: taken as 20."),
        (
            "warmup_steps = 10\ndecay_ratio = 0.75",
            "decay_ratio: makes 15 steps, over the 10 after the warm-up: taken as 10.",
        ),
    ],
)
def test_a_schedule_longer_than_the_run_is_cut_and_it_is_said(file: Path, scheduler: str, said: str) -> None:
    training = f"[lr_scheduler]\n{scheduler}\n[training]\nsteps = 20\nglobal_batch_size = 8\n"
    assert notes(file, stage("a", 0), training=training) == [f"lr_scheduler.{said}"]


@pytest.mark.parametrize(
    ("table", "what"),
    [
        ("[lr_scheduler]\nwarmup_steps = -1", "warmup_steps: is -1. It must be a whole number, at least 0."),
        (
            '[lr_scheduler]\nwarmup_steps = 2\ndecay_type = "exp"',
            'decay_type: is "exp". Write "linear", "cosine" or "sqrt".',
        ),
        (
            "[lr_scheduler]\nwarmup_steps = 2\ndecay_ratio = 2",
            "decay_ratio: is 2. It must be between 0 and 1. Write decay_ratio = 0.2.",
        ),
        ('[optimizer]\nname = "SGD"', 'name: is "SGD". Write AdamW or Muon.'),
        (
            '[optimizer]\nname = "Adam"',
            'name: is "Adam". Its weight decay (0.1) is a part of the gradient. Write AdamW, or weight_decay = 0.',
        ),
        ("[lr_scheduler]\ntotal_steps = 0", "total_steps: is 0. It must be a whole number, at least 1."),
    ],
)
def test_what_their_optimizer_and_schedule_cannot_be_is_refused(file: Path, table: str, what: str) -> None:
    training = f"{table}\n[training]\nsteps = 20\nglobal_batch_size = 8\n"
    where = table.split("]")[0].removeprefix("[")
    assert refusal(file, stage("a", 0), training=training) == [f"{where}.{what}"]
