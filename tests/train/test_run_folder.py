"""A checkpoint is complete or absent, and one launch has the folder."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from trivium.errors import ResumeError
from trivium.train.checkpoint import Retention, last_sound
from trivium.train.run_folder import COMPLETE, RunFolder, find_checkpoint


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


@pytest.mark.parametrize(
    ("harm", "found"),
    [
        (lambda path: path.write_text("weight"), "had 7 bytes, has 6"),
        (lambda path: path.write_text("Weights"), "its content has changed since it was written"),
        (lambda path: path.unlink(), "is missing"),
    ],
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(tmp_path: Path, harm: object, found: str) -> None:
    folder = RunFolder(tmp_path / "run")
    make_checkpoint(folder, 5)
    make_checkpoint(folder, 9)
    path = folder.checkpoints()[1].path / "engine" / "model.bin"
    harm(path)  # type: ignore[operator]
    said: list[str] = []
    sound = last_sound(folder, lambda problem: said.append(str(problem)))
    assert sound is not None
    assert sound.step == 5
    assert said == [f"{path.parent.parent}: is damaged ({path}: {found}); the checkpoint before it is used."]


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
    assert str(error.value) == f"{folder.path}: has no checkpoint of step 7. There is: 5, 9."
    shutil.rmtree(folder.path)
    with pytest.raises(ResumeError) as error:
        find_checkpoint(folder.path, None)
    assert str(error.value) == f"{folder.path}: has no checkpoint. Give a run's folder, or one of its checkpoints."


def test_a_second_launch_is_kept_out(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.lock()
    script = (
        "import sys; from pathlib import Path; from trivium.train.run_folder import RunFolder\n"
        "from trivium.errors import ResumeError\n"
        "try: RunFolder(Path(sys.argv[1])).lock()\n"
        "except ResumeError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(folder.path)], capture_output=True, text=True, check=True)
    assert "is training this run. Stop it first, or give run.name another name." in done.stdout
    folder.unlock()
    done = subprocess.run([sys.executable, "-c", script, str(folder.path)], capture_output=True, text=True, check=True)
    assert done.stdout == ""
