"""`trivium runs`: one line a run, whatever the files of one of them hold."""

from pathlib import Path

import pytest

from trivium.run.listing import list_runs


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A folder of runs, with one that has only its plan."""
    path = tmp_path / "runs" / "small"
    path.mkdir(parents=True)
    (path / "plan.json").write_text("{}")
    return path


def test_a_corrupt_lineage_hides_no_run(run: Path) -> None:
    other = run.with_name("other")
    other.mkdir()
    (other / "lineage.json").write_text('{"run": "runs/sm')
    assert [(each.name, each.lineage) for each in list_runs(run.parent)] == [
        ("other", "lineage.json is corrupt"),
        ("small", ""),
    ]


def test_wrongly_typed_events_hide_no_run(run: Path) -> None:
    (run / "events.jsonl").write_text(
        '{"event": "stage", "step": 3, "time": 1.0, "stage": 0, "name": "general", "changes": {}}\n'
        '{"event": "started", "step": 0, "time": 2.0, "run": "small", "resumed": false, "total_steps": "ten", '
        '"world_size": 1, "versions": {}, "settings": {}}\n'
        '{"event": "notice", "step": "four", "text": ""}\n'
    )
    (listed,) = list_runs(run.parent)
    assert (listed.state, listed.step, listed.total_steps, listed.stage) == ("new", 3, None, "general")
