"""Times so far and left, and how validation stood before."""

from dataclasses import replace

import pytest

from tests.support.events import step
from trivium.run.events import Evaluated, Started
from trivium.train.screens.standing import Launch, Standing, clock, work_between

EVALUATED = replace(Evaluated.without_validation(5, "general"), fingerprint="rows")
STARTED = Started(step=0, run="run", resumed=False, total_steps=1, world_size=1, versions={}, settings={})


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "0:00"), (41.6, "0:42"), (3600, "1:00:00"), (3723, "1:02:03"), (2 * 86400 + 11045, "2 d 03:04:05")],
)
def test_a_clock_shows_what_is_there(seconds: float, shown: str) -> None:
    assert clock(seconds) == shown


def test_time_left_is_counted_by_work_from_the_second_step_on(launch: Launch) -> None:
    now = [0.0]
    standing = Standing(launch, lambda: now[0])
    now[0] = 100.0  # the first step compiles
    standing.write(step(1))
    assert standing.times == "1:40"
    plan = launch.plan()
    now[0] = 110.0
    standing.write(step(2))
    longer = work_between(plan, 2, plan.total_steps) / work_between(plan, 1, 2)
    assert standing.left == pytest.approx(10 * longer)
    now[0] = 111.0
    assert standing.left == pytest.approx(10 * longer - 1)
    standing.write(step(plan.total_steps))
    assert standing.left == pytest.approx(0)


def test_a_stage_of_longer_rows_takes_longer(launch: Launch) -> None:
    plan = launch.plan()
    per_token = [
        work_between(plan, stage.start, stage.end) / (plan.tokens_before(stage.end) - plan.tokens_before(stage.start))
        for stage in plan.stages
    ]
    lengths = [stage.seq_len for stage in plan.stages]
    assert max(lengths) > min(lengths)
    assert per_token.index(max(per_token)) == lengths.index(max(lengths))


def test_validation_is_compared_with_the_last_one_on_the_same_rows(launch: Launch) -> None:
    standing = Standing(replace(launch, validation=lambda: replace(EVALUATED, step=3, loss=4.0)))
    standing.write(STARTED)
    assert standing.change == ""
    standing.write(replace(EVALUATED, loss=3.5))
    assert standing.change == "was 4.0000 at step 3 (-0.5000)"
    standing.write(replace(EVALUATED, step=6, loss=3.0, fingerprint="other rows"))
    assert standing.change == ""
