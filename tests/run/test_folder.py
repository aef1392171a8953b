"""A checkpoint is complete or absent, and one launch has the folder."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trivium.engine.ranks import Ranks
from trivium.errors import ResumeError, SaveError, UsageError
from trivium.run.folder import COMPLETE, LOCK, RunFolder, find_checkpoint
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
    assert json.loads((folder.checkpoints()[0].path / "state.json").read_text()) == {"step": 5}


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


def test_of_a_refused_launch_only_the_lock_stays(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "runs" / "run")
    run.lock()
    lock = (run.path / LOCK).stat().st_ino
    run.events.touch()
    run.unlock()
    assert [path.name for path in run.path.iterdir()] == [LOCK]
    assert not run.is_begun
    run.lock()
    assert (run.path / LOCK).stat().st_ino == lock
    run.events.write_text("{}\n")
    run.unlock()
    assert sorted(path.name for path in run.path.iterdir()) == [LOCK, "events.jsonl"]


def test_a_lock_that_is_a_link_is_refused_and_what_it_leads_to_is_left_alone(tmp_path: Path) -> None:
    valued = tmp_path / "thesis.txt"
    valued.write_text("three years")
    makers: list[Callable[[Path], object]] = [
        lambda lock: lock.symlink_to(valued),
        lambda lock: lock.hardlink_to(valued),
        os.mkfifo,
        Path.mkdir,
    ]
    for number, make in enumerate(makers):
        run = RunFolder(tmp_path / f"run-{number}")
        run.path.mkdir()
        make(run.path / LOCK)
        with pytest.raises(UsageError) as error:
            run.lock()
        what = "is a link, a pipe or a folder, and a lock is a plain file. Delete it."
        assert str(error.value) == f"{run.path / LOCK}: {what}"
        assert not run.is_locked
    assert valued.read_text() == "three years"


def test_looking_at_a_run_keeps_no_launch_out(tmp_path: Path) -> None:
    run, over = RunFolder(tmp_path / "run"), threading.Event()
    run.lock()
    run.unlock()

    def look() -> None:
        while not over.is_set():
            _ = RunFolder(run.path).is_locked

    lookers = [threading.Thread(target=look) for _ in range(4)]
    for each in lookers:
        each.start()
    try:
        for _ in range(200):
            run.lock()
            assert run.is_locked
            run.unlock()
    finally:
        over.set()
        for each in lookers:
            each.join()


def test_of_two_launches_at_a_folder_that_is_replaced_one_gets_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, other, flock = RunFolder(tmp_path / "run"), RunFolder(tmp_path / "run"), fcntl.flock

    def replaced_before(file: Any, how: int) -> None:
        """What another process may do between the opening of a lock and its locking."""
        monkeypatch.undo()
        shutil.rmtree(run.path)
        other.lock()
        flock(file, how)

    monkeypatch.setattr("trivium.files.fcntl.flock", replaced_before)
    with pytest.raises(ResumeError, match="is training this run"):
        run.lock()
    other.unlock()


def test_a_fork_takes_the_place_of_a_refused_launch_and_never_of_a_running_one(tmp_path: Path) -> None:
    run, other = RunFolder(tmp_path / "run"), RunFolder(tmp_path / "run")
    other.lock()

    def fork() -> None:
        with run.whole() as unfinished:
            (unfinished.path / "lineage.json").write_text("{}")

    with pytest.raises(ResumeError, match="is training this run"):
        fork()
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    lock = (run.path / LOCK).stat().st_ino
    other.unlock()
    fork()
    assert sorted(path.name for path in run.path.iterdir()) == [LOCK, "lineage.json"]
    assert (run.path / LOCK).stat().st_ino == lock
    run.lock()
    run.unlock()


def test_a_kill_while_pruning_leaves_nothing_for_good(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    for step in (5, 9):
        make_checkpoint(folder, step)
    script = (
        "import shutil, sys; from pathlib import Path; from trivium.run.folder import RunFolder\n"
        "shutil.rmtree = lambda path, **_: (next(Path(path).rglob('model.bin')).unlink(), os.kill(os.getpid(), 9))\n"
        "import os; RunFolder(Path(sys.argv[1])).keep_only([9])\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(folder.path)], check=False)
    assert done.returncode == -9
    assert steps(folder) == [9]
    folder.lock()
    folder.unlock()
    assert [path.name for path in folder.checkpoints_folder.iterdir()] == ["step-00000009"]


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
