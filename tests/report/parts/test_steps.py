"""What a page shows of a run's steps."""

from dataclasses import replace
from pathlib import Path

from tests.support.pages import charts_of, data_in, tables_of
from tests.support.runs import WrittenRun
from trivium.report.page import write_report


def test_the_memory_of_devices_is_shown_by_stage_beside_what_was_predicted(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "made", steps=40)
    run.start()
    second = run.plan["stages"][1]["start"]
    for step in range(second + 3):
        event = run.step_taken(step)
        sizes = {"active": 60, "reserved": 64, "total": 85} | ({"predicted": 57} if step < second else {})
        memory = {"retries": step, **{name: size * 10**9 for name, size in sizes.items()}}
        run.tell(replace(event, device_memory=memory if step in (1, 5, second + 1) else None))
    data = data_in(write_report([tmp_path / "made"], tmp_path / "page.html"))
    assert tables_of(data)["device-memory"] == [
        ["general", "60.00 GB", "64.00 GB", "85.00 GB", "57.00 GB", "-5.0%", "5"],
        ["long", "60.00 GB", "64.00 GB", "85.00 GB", "", "", f"{second + 1}"],
    ]
    assert [series["label"] for series in charts_of(data)["device-memory-chart"]["series"]] == [
        *("active", "reserved", "predicted")
    ]


def test_a_run_without_devices_has_no_table_of_their_memory(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "made", steps=40)
    run.start()
    run.take(0, 5)
    data = data_in(write_report([tmp_path / "made"], tmp_path / "page.html"))
    assert "device-memory" not in tables_of(data)
    assert charts_of(data)["memory"]["title"] == "Memory of the process"
