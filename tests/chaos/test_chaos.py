"""A small share of `make chaos`, and that its comparison finds what it looks for."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos.compare import compare_folders, compare_runs
from tests.chaos.run import play
from tests.chaos.scenarios import HEAD, KEEPS_ALL, SHORT, settings, write_input
from tests.support.training import train
from trivium.files import flushed_facts
from trivium.run.folder import RunFolder

STEP = "checkpoints/step-00000003"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "seed"), [("copy", 9), ("prepare", 8)])
def test_what_is_killed_at_random_moments_ends_as_what_was_not(tmp_path: Path, name: str, seed: int) -> None:
    """Seeds of two early kills: the run's folder is lost after the second, and a worker is its victim."""
    tally = play(name, kills=2, seed=seed, folder=tmp_path / name)
    assert tally.differences == []
    assert tally.kills == 2
    assert tally.tensors > 0


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of six steps in two stages that keeps every checkpoint."""
    folder = tmp_path_factory.mktemp("runs")
    write_input(folder)
    (folder / "calm").mkdir()
    (folder / "calm/run.toml").write_text(HEAD + settings(5) + SHORT)
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder / "calm")
        train(*KEEPS_ALL, "stages.0.steps=3", "stages.1.steps=3", "stages.1.fade.steps=2")
    return folder / "calm"


@pytest.fixture
def other(trained: Path, tmp_path: Path) -> Path:
    """The same run, of which only the boundary and the end were kept."""
    shutil.copytree(trained, tmp_path / "other")
    RunFolder(tmp_path / "other/runs/run").keep_only([3, 6])
    return tmp_path / "other"


def write_into(checkpoint: Path, name: str, content: bytes) -> None:
    """Write a file of a checkpoint as if the run had saved it so."""
    (checkpoint / name).write_bytes(content)
    complete = json.loads((checkpoint / "COMPLETE").read_text())
    complete["files"][name] = flushed_facts(checkpoint / name)
    (checkpoint / "COMPLETE").write_text(json.dumps(complete))


def flip_bit(run: Path) -> None:
    content = bytearray((run / STEP / "engine/rank-00000.safetensors").read_bytes())
    content[-1] ^= 1
    write_into(run / STEP, "engine/rank-00000.safetensors", bytes(content))


def change_state(run: Path) -> None:
    state = json.loads((run / STEP / "state.json").read_text())
    state["meter"]["weighted_loss"] += 1e-12
    write_into(run / STEP, "state.json", json.dumps(state).encode())


def change_loss(run: Path) -> None:
    """One of two events of a step has another loss."""
    lines = (run / "events.jsonl").read_text().splitlines()
    taken = next(json.loads(line) for line in lines if '"event": "step"' in line)
    again = json.dumps(taken | {"loss": taken["loss"] + 1e-12})
    (run / "events.jsonl").write_text("\n".join([again, *lines]) + "\n")


def lose_event(run: Path) -> None:
    lines = (run / "events.jsonl").read_text().splitlines()
    kept = [line for line in lines if '"event": "evaluated"' not in line]
    (run / "events.jsonl").write_text("\n".join(kept) + "\n")


def lose_boundary(run: Path) -> None:
    shutil.rmtree(run / STEP)


def leave_draft(run: Path) -> None:
    (run / "checkpoints/.draft-00000004").mkdir()


def test_a_run_that_kept_less_has_no_differences(trained: Path, other: Path) -> None:
    compared = compare_runs(trained, other)
    assert compared.differences == []
    assert compared.tensors > 40


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (flip_bit, "rank-00000.safetensors/"),
        (change_state, "state.json .meter.weighted_loss: "),
        (change_loss, "step at 1 is not in the other: "),
        (lose_event, "has no such evaluated at "),
        (lose_boundary, "has no checkpoints of [3]"),
        (leave_draft, ".draft-00000004: is left over"),
    ],
)
def test_every_difference_is_found(trained: Path, other: Path, change: Callable[[Path], None], message: str) -> None:
    change(other / "runs/run")
    differences = compare_runs(trained, other).differences
    assert differences
    assert all(message in each for each in differences)


def test_other_bytes_missing_files_and_drafts_are_found(tmp_path: Path) -> None:
    for name in ("calm", "other"):
        (tmp_path / name / "out").mkdir(parents=True)
        (tmp_path / name / "out/00000.ds").write_bytes(name.encode())
    (tmp_path / "calm/out/manifest.json").write_text("{}")
    (tmp_path / "other/out/.00001.ds.draft").write_text("")
    compared = compare_folders(tmp_path / "calm", tmp_path / "other")
    names = [each.rpartition(": ")[0].rpartition("/")[2] for each in compared.differences]
    assert [each.partition(":")[0] for each in names] == ["files", "00000.ds", ".00001.ds.draft"]
