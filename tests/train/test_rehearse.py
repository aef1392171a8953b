"""What a rehearsal says at its end, from figures that are given."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from tests.support.plans import plan_of
from trivium.engine.memory import DeviceMemory
from trivium.errors import UsageError
from trivium.plan.stage import CompleteStage
from trivium.train.rehearse import Rehearsed, closing_lines, rehearse_run, show_rehearsed

H100 = DeviceMemory("NVIDIA H100 80GB HBM3", 85 * 10**9, 60 * 10**9, 70 * 10**9, 0)


def rehearsed(*memories: int) -> list[Rehearsed]:
    plan = plan_of(*({"steps": 3600, "name": f"stage-{number}"} for number in range(len(memories))))
    stages = [CompleteStage.of(stage) for stage in plan.stages]
    return [
        Rehearsed(stage, stage.batch_size, 0.5, 1.0, 2.0, 3.0, memory * 10**9)
        for stage, memory in zip(stages, memories, strict=True)
        if stage is not None
    ]


def test_the_tightest_stage_the_hours_and_the_cost_of_the_run() -> None:
    assert closing_lines(rehearsed(20, 60, 40), 8, H100, 2.5) == [
        "tightest: stage-1, 60.00 GB of 85.0 GB",
        "whole run: 1.5 hours of steps, 12 device hours, about $30.00 at $2.50 an hour",
    ]


def test_hours_of_a_size_that_changes_are_by_rows() -> None:
    plan = plan_of({"steps": 100, "batch_size": {"from": 2, "to": 4, "over": 1600, "by": 2}})
    stage = CompleteStage.of(plan.stages[0])
    assert stage is not None
    largest = stage.largest_since(0)
    assert (largest.step, largest.size) == (50, 4)
    assert Rehearsed(stage, largest.size, 2.0, 0, 0, 0, 0).seconds == 50 * 2.0 + 50 * 1.0


def test_a_process_without_a_device_has_hours_alone() -> None:
    assert closing_lines(rehearsed(1), 1, None, None) == ["tightest: stage-0, 1.00 GB", "whole run: 0.5 hours of steps"]


def test_a_price_that_is_given_counts_before_that_of_a_known_device() -> None:
    for price, cost in ((None, "$10.00 at $2.50"), (1.25, "$5.00 at $1.25")):
        file = io.StringIO()
        show_rehearsed(rehearsed(60), 8, H100, Console(file=file, width=140), price)
        assert file.getvalue().splitlines()[-1] == (
            f"whole run: 0.5 hours of steps, 4 device hours, about {cost} an hour"
        )


def test_a_process_without_a_device_costs_what_its_price_says() -> None:
    (_, run) = closing_lines(rehearsed(1), 1, None, 0.5)
    assert run == "whole run: 0.5 hours of steps, about $0.25 at $0.50 an hour"


def test_a_price_that_nothing_has_is_refused_before_the_rehearsal() -> None:
    for price in (0.0, float("inf"), float("nan")):
        with pytest.raises(UsageError, match=r"^--price: is (0|inf|nan). Give the dollars for an hour of a device"):
            rehearse_run(Path("no.toml"), [], Console(), dialect=None, world_size=1, price=price)


def test_a_prediction_is_shown_with_its_error() -> None:
    (found,) = rehearsed(60)
    file = io.StringIO()
    show_rehearsed(
        [replace(found, reserved=70 * 10**9, retries=3, predicted=57 * 10**9)], 8, H100, Console(file=file, width=140)
    )
    header, row = file.getvalue().splitlines()[:2]
    assert header.split()[-5:] == ["active", "reserved", "retries", "predicted", "error"]
    assert row.split()[-8:] == ["60.00", "GB", "70.00", "GB", "3", "57.00", "GB", "-5.0%"]


def test_a_process_without_a_device_shows_its_own_memory_by_that_name() -> None:
    file = io.StringIO()
    show_rehearsed(rehearsed(60), 1, None, Console(file=file, width=140))
    header, row = file.getvalue().splitlines()[:2]
    assert header.split()[-2:] == ["process", "memory"]
    assert row.split()[-2:] == ["60.00", "GB"]
