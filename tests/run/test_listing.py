"""`trivium runs`: one line a run, whatever the files of one of them hold."""

import io
from pathlib import Path

import pytest

from trivium.run.folder import RunFolder
from trivium.run.listing import list_runs, show_runs
from trivium.screen import terminal


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


def saved(folder: RunFolder, *steps: int) -> None:
    """Checkpoints of a run, each with one file of its engine."""
    for step in steps:
        folder.fresh_draft(step)
        (folder.draft_path(step) / "engine").mkdir()
        (folder.draft_path(step) / "engine" / "weights").write_bytes(b"weights")
        folder.commit(step, {"step": step}, {})


@pytest.mark.parametrize(
    ("name", "content", "checkpoint", "damaged", "shown"),
    [
        (None, None, 20, (), " 20"),
        ("COMPLETE", b'{"files": {"sta', 10, (20,), " 10 (20 damaged)"),
        ("COMPLETE", b"{}", 10, (20,), " 10 (20 damaged)"),
        ("engine/weights", b"wei", 10, (20,), " 10 (20 damaged)"),
        ("../step-00000010/COMPLETE", b"", 20, (), " 20"),
    ],
)
def test_a_damaged_checkpoint_is_not_listed_as_the_last(
    run: Path, name: str | None, content: bytes, checkpoint: int, damaged: tuple[int, ...], shown: str
) -> None:
    saved(RunFolder(run), 10, 20)
    if name is not None:
        (run / "checkpoints" / "step-00000020" / name).write_bytes(content)
    runs = list_runs(run.parent)
    assert [(each.checkpoint, each.damaged, each.step) for each in runs] == [(checkpoint, damaged, checkpoint)]
    console = terminal()
    console.file = io.StringIO()
    show_runs(runs, console)
    assert console.file.getvalue().rstrip().endswith(shown)


def test_a_run_whose_checkpoints_are_all_damaged_has_none(run: Path) -> None:
    saved(RunFolder(run), 10)
    (run / "checkpoints" / "step-00000010" / "COMPLETE").write_text("null")
    (listed,) = list_runs(run.parent)
    assert (listed.checkpoint, listed.damaged, listed.step) == (None, (10,), 0)
