"""A checkpoint is complete or absent, and one launch has the folder."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from trivium.engine.ranks import Ranks
from trivium.errors import ResumeError, SaveError
from trivium.run.folder import COMPLETE, RunFolder, find_checkpoint
from trivium.run.restore import find_resume_checkpoint
from trivium.run.saver import Retention


def make_checkpoint(folder: RunFolder, step: int, content: str = "weights") -> None:
    folder.fresh_draft(step)
    draft = folder.draft_path(step)
    (draft / "engine").mkdir()
    (draft / "engine" / "model.bin").write_text(content)
    folder.commit(step, {"step": step}, {})


def steps(folder: RunFolder) -> list[int]:
    return [checkpoint.step for checkpoint in folder.checkpoints()]


def test_a_draft_is_no_checkpoint(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    make_checkpoint(folder, 5)
    folder.fresh_draft(9)
    draft = folder.draft_path(9)
    (draft / "state.json").write_text("{}")
    assert steps(folder) == [5]
    assert folder.checkpoints()[0].state() == {"step": 5}


def test_what_has_no_complete_does_not_exist(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    make_checkpoint(folder, 5)
    make_checkpoint(folder, 9)
    (folder.checkpoints()[1].path / COMPLETE).unlink()
    assert steps(folder) == [5]


def torn(path: Path) -> None:
    """The first half of a file."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def listing(**changes: object) -> Callable[[Path], object]:
    """Writes a COMPLETE that lists the checkpoint's files, but for these changes; None removes a file from it."""

    def write(path: Path) -> None:
        files = json.loads(path.read_text())["files"] | changes
        path.write_text(json.dumps({"files": {name: each for name, each in files.items() if each is not None}}))

    return write


WEIGHTS = "engine/model.bin"
HARMS_OF_A_LIST: list[Callable[[Path], object]] = [
    torn,
    lambda path: path.write_bytes(b""),
    lambda path: path.write_text("[1]"),
    lambda path: path.write_text('{"files": {}}'),
    lambda path: path.write_text('{"files": ' + "[" * 10_000),
    listing(**{WEIGHTS: None}),
    listing(**{"state.json": None}),
    listing(**{WEIGHTS: {"bytes": None, "hash": ""}}),
    listing(**{WEIGHTS: {"bytes": 7}}),
    listing(**{WEIGHTS: "7"}),
    listing(**{"engine/../../../outside": {"bytes": 0, "hash": ""}}),
]
HARMS: list[tuple[str, Callable[[Path], object], str]] = [
    (WEIGHTS, lambda path: path.write_text("weight"), "had 7 bytes, has 6"),
    (WEIGHTS, lambda path: path.write_text("Weights"), "its content has changed since it was written"),
    (WEIGHTS, lambda path: path.unlink(), "is missing"),
    *((COMPLETE, harm, "is corrupt: truncated, or changed since it was written") for harm in HARMS_OF_A_LIST),
]


def go_on_from(folder: RunFolder, second: RunFolder | None = None) -> tuple[int | None, list[str]]:
    """The step of the checkpoint that a launch goes on from, and what is said."""
    said: list[str] = []
    found = find_resume_checkpoint(folder, second, (5,), said.append, Ranks())
    return None if found is None else found.step, said


@pytest.mark.parametrize(("name", "harm", "found"), HARMS)
def test_a_damaged_checkpoint_is_set_aside_and_the_one_before_is_used(
    tmp_path: Path, name: str, harm: Callable[[Path], object], found: str
) -> None:
    folder = RunFolder(tmp_path / "run")
    make_checkpoint(folder, 5)
    make_checkpoint(folder, 9)
    last = folder.checkpoints()[1].path
    harm(last / name)
    aside = f"{last}: is damaged ({last / name}: {found}); it is set aside as damaged-step-00000009."
    assert go_on_from(folder) == (5, [aside])
    assert steps(folder) == [5]
    assert last.with_name("damaged-step-00000009").is_dir()
    make_checkpoint(folder, 7)
    folder.keep_only(Retention(keep=1, boundaries=frozenset(), total_steps=100).kept(steps(folder), None))
    assert go_on_from(folder) == (7, [])  # what is damaged keeps no good one from being the last


def test_where_no_checkpoint_is_sound_the_run_is_refused(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    make_checkpoint(folder, 5)
    make_checkpoint(folder, 9)
    first, last = (each.path for each in folder.checkpoints())
    (first / WEIGHTS).unlink()
    torn(last / COMPLETE)
    with pytest.raises(ResumeError) as error:
        go_on_from(folder)
    faults = f"{last / COMPLETE}: is corrupt: truncated, or changed since it was written; {first / WEIGHTS}: is missing"
    assert str(error.value) == (
        f"{folder.path}: no checkpoint is sound, and a run never starts over by itself: {faults}. "
        "Put one back, or give run.name another name."
    )
    assert steps(folder) == [5, 9]


def test_the_second_place_helps_out_with_its_last_sound_copy_and_the_references(tmp_path: Path) -> None:
    folder, second = RunFolder(tmp_path / "run"), RunFolder(tmp_path / "copies")
    for step in (5, 7, 9, 12):
        make_checkpoint(second, step)
    make_checkpoint(folder, 9)
    torn(folder.checkpoints()[0].path / COMPLETE)
    copies = {each.step: each.path for each in second.checkpoints()}
    (copies[12] / WEIGHTS).write_text("weight")
    own = folder.checkpoints_folder / "step-00000009"
    assert go_on_from(folder, second) == (
        9,
        [
            f"{copies[12]}: is damaged ({copies[12] / WEIGHTS}: had 7 bytes, has 6), and not copied from there.",
            (
                f"{own}: is damaged ({own / COMPLETE}: is corrupt: truncated, or changed since it was written); "
                "it is set aside as damaged-step-00000009."
            ),
            f"checkpoint of step 5 copied from {second.path}",
            f"checkpoint of step 9 copied from {second.path}",
        ],
    )
    assert steps(folder) == [5, 9]


def test_drafts_that_a_kill_left_are_removed_by_the_next_launch(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    make_checkpoint(folder, 5)
    folder.fresh_draft(9)
    (folder.checkpoints_folder / ".copy-step-00000007").mkdir()
    folder.lock()
    folder.unlock()
    assert [path.name for path in folder.checkpoints_folder.iterdir()] == ["step-00000005"]


def test_a_folder_that_cannot_be_written_to_is_one_message(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    folder = RunFolder(tmp_path / "runs" / "run")
    with pytest.raises(SaveError) as error:
        folder.lock()
    assert str(error.value) == (
        f"{folder.path}: cannot be written to: Not a directory. "
        "Make room, or give run.folder a place that you may write to."
    )


def test_the_same_step_again_replaces_the_checkpoint(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    make_checkpoint(folder, 5)
    make_checkpoint(folder, 5, "others")
    assert (folder.checkpoints()[0].engine / "model.bin").read_text() == "others"
    assert folder.checkpoints()[0].verify() is None


def test_a_replacement_that_was_killed_between_its_renames_is_undone(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    make_checkpoint(folder, 5)
    path = folder.checkpoints()[0].path
    path.rename(path.with_name(f".old-{path.name}"))
    assert steps(folder) == []
    folder.lock()
    folder.unlock()
    assert steps(folder) == [5]


def test_retention_keeps_the_last_ones_boundaries_milestones_the_best_and_the_final_one(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    for step in (10, 20, 30, 40, 50, 60, 100):
        make_checkpoint(folder, step)
    retention = Retention(keep=2, boundaries=frozenset({20, 70}), total_steps=100, milestones=30)
    folder.keep_only(retention.kept(steps(folder), best=40))
    assert steps(folder) == [20, 30, 40, 60, 100]


def test_a_checkpoint_is_found_by_its_run_its_step_or_its_own_folder(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    make_checkpoint(folder, 5)
    make_checkpoint(folder, 9)
    assert find_checkpoint(folder.path, None).step == 9
    assert find_checkpoint(folder.path, 5).step == 5
    assert find_checkpoint(folder.checkpoints()[0].path, None).step == 5
    with pytest.raises(ResumeError) as error:
        find_checkpoint(folder.path, 7)
    assert str(error.value) == f"{folder.path}: has no checkpoint of step 7. It has: 5, 9."
    shutil.rmtree(folder.path)
    with pytest.raises(ResumeError) as error:
        find_checkpoint(folder.path, None)
    assert str(error.value) == f"{folder.path}: has no checkpoint. Give a run's folder, or one of its checkpoints."


def test_a_second_launch_is_kept_out(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.lock()
    script = (
        "import sys; from pathlib import Path; from trivium.run.folder import RunFolder\n"
        "from trivium.errors import ResumeError\n"
        "try: RunFolder(Path(sys.argv[1])).lock()\n"
        "except ResumeError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(folder.path)], capture_output=True, text=True, check=True)
    assert "is training this run. Stop it first, or give run.name another name." in done.stdout
    folder.unlock()
    done = subprocess.run([sys.executable, "-c", script, str(folder.path)], capture_output=True, text=True, check=True)
    assert done.stdout == ""


def test_of_a_refused_launch_nothing_stays(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "runs" / "run")
    run.lock()
    run.events.touch()
    run.unlock()
    assert list((tmp_path / "runs").iterdir()) == []
    run.lock()
    run.events.write_text("{}\n")
    run.unlock()
    assert sorted(path.name for path in run.path.iterdir()) == [".lock", "events.jsonl"]


def test_only_folders_named_by_their_step_are_checkpoints(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    make_checkpoint(folder, 5)
    path = folder.checkpoints()[0].path
    for name in ("step-00000018.bak", "damaged-step-00000009"):
        shutil.copytree(path, path.with_name(name))
    assert steps(folder) == [5]
    assert find_checkpoint(folder.path, None).step == 5
    damaged = path.with_name("damaged-step-00000009")
    with pytest.raises(ResumeError) as error:
        find_checkpoint(damaged, None)
    assert str(error.value) == f"{damaged}: is not a checkpoint. Give a run's folder, or one of its step-... folders."
    with pytest.raises(ResumeError) as error:
        find_checkpoint(path, 9)
    assert str(error.value) == f"{path}: is the checkpoint of step 5, not 9. Leave the step out."


def test_a_lineage_that_is_corrupt_is_one_message(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.lineage is None
    path = tmp_path / "lineage.json"
    for text in ('{"run": "runs/ba', "[]", '{"run": "runs/base"}', '{"run": "runs/base", "step": "4"}'):
        path.write_text(text)
        with pytest.raises(ResumeError) as caught:
            _ = folder.lineage
        assert str(caught.value) == (
            f"{path}: is corrupt: truncated, or changed since it was written. "
            "Put it back, or delete it: the run then forgets what it forked."
        )
