"""What a rehearsal says at its end, from figures that are given."""

import io
from dataclasses import replace

from rich.console import Console

from tests.support.plans import plan_of
from trivium.engine.devices import reported_device
from trivium.engine.memory import DeviceMemory
from trivium.plan.stage import CompleteStage
from trivium.train.rehearse import Rehearsed, closing_lines, show_rehearsed

H100 = DeviceMemory("NVIDIA H100 80GB HBM3", 85 * 10**9, 60 * 10**9, 70 * 10**9, 0)


def rehearsed(*memories: int) -> list[Rehearsed]:
    plan = plan_of(*({"steps": 3600, "name": f"stage-{number}"} for number in range(len(memories))))
    stages = [CompleteStage.of(stage) for stage in plan.stages]
    return [
        Rehearsed(stage, 0.5, 1.0, 2.0, 3.0, memory * 10**9)
        for stage, memory in zip(stages, memories, strict=True)
        if stage is not None
    ]


def test_the_tightest_stage_the_hours_and_the_cost_of_the_run() -> None:
    assert closing_lines(rehearsed(20, 60, 40), 8, H100, reported_device(H100.name)) == [
        "tightest: stage-1, 60.00 GB of 85.0 GB",
        "whole run: 1.5 hours of steps, 12 device hours, about $30.00 at $2.50 an hour",
    ]


def test_a_process_without_a_device_has_hours_alone() -> None:
    assert closing_lines(rehearsed(1), 1, None, None) == ["tightest: stage-0, 1.00 GB", "whole run: 0.5 hours of steps"]


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
