"""How a step's rows are divided into passes."""

from pathlib import Path

import pytest

from tests.adapters.torchtitan.conftest import planned
from trivium.adapters.torchtitan.passes import Passes


def test_a_pass_has_as_many_tokens_as_torchtitans_config_allows(stages: Path) -> None:
    passes = Passes(planned(), readers=1, tokens=256)
    # Stages have 8 rows of 32, 16 of 64 and 16 of 16 tokens.
    assert [(passes.rows(step), passes.count(step)) for step in (0, 4, 8)] == [(8, 1), (4, 4), (16, 1)]


def test_passes_are_equal_and_have_one_row_at_least(stages: Path) -> None:
    three = Passes(planned("stages.1.batch_size=6"), readers=2, tokens=64 * 2)
    assert (three.rows(4), three.count(4)) == (1, 3)  # 3 rows of a rank: 2 do not divide them
    one = Passes(planned(), readers=1, tokens=10)
    assert (one.rows(4), one.count(4)) == (1, 16)


def test_the_configs_micro_batch_size_comes_first(stages: Path) -> None:
    plan = planned("engine.micro_batch_size=2", "stages.2.engine.micro_batch_size=8")
    passes = Passes(plan, readers=1, tokens=4096)
    assert [passes.rows(step) for step in (0, 4, 8)] == [2, 2, 8]


def test_a_pipeline_takes_a_fixed_number_of_micro_batches_at_once(stages: Path) -> None:
    passes = Passes(planned(), readers=2, tokens=128, at_once=4)
    assert [(passes.rows(step), passes.count(step)) for step in (0, 4, 8)] == [(1, 4), (2, 4), (2, 4)]


def test_what_ranks_cannot_share_is_said_of_every_stage(stages: Path) -> None:
    passes = Passes(planned("stages.0.seq_len=30"), readers=3, tokens=128, at_once=2, divisor=4)
    shared = "but 3 ranks read rows of their own, and a pipeline takes 2 micro-batches at once"
    assert [str(problem) for problem in passes.problems()] == [
        "stages[0].seq_len: is 30, and torchtitan's ranks share rows of a multiple of 4 slots. Write 28 or 32.",
        f"stages[0].batch_size: is 8, {shared}. Write 6 or 12.",
        f"stages[1].batch_size: is 16, {shared}. Write 12 or 18.",
        f"stages[2].batch_size: is 16, {shared}. Write 12 or 18.",
    ]


def test_stages_that_a_launch_does_not_reach_may_need_other_ranks(stages: Path) -> None:
    plan = planned("stages.0.batch_size=9", "stages.2.batch_size=15")
    assert list(Passes(plan, readers=2, tokens=128, start=4, end=8).problems()) == []
    (problem,) = Passes(plan, readers=2, tokens=128, start=3, end=8).problems()
    assert str(problem) == "stages[0].batch_size: is 9, but 2 ranks read rows of their own. Write 8 or 10."


@pytest.mark.parametrize("step", [0, 5, 11])
def test_all_rows_of_a_step_are_passed(stages: Path, step: int) -> None:
    plan = planned("stages.1.batch_size={ from = 4, to = 16, by = 4, over = 1024 }")
    passes = Passes(plan, readers=2, tokens=100)
    assert passes.rows(step) * passes.count(step) * 2 == plan.stage_at(step).size_at(step)
