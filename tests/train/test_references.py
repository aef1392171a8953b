"""KL to a frozen reference in a run: where the reference comes from, that it stays, and what is refused."""

import json
import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import xxhash
from rich.console import Console
from safetensors.torch import load_file

from tests.support.events import steps_taken
from tests.support.scripts import ROOT
from tests.support.together import together
from tests.support.training import StoppingTrainer, write_references
from trivium.ask.export import export_checkpoint
from trivium.config.load import load
from trivium.engine.ranks import Ranks
from trivium.errors import PlanError, ResumeError
from trivium.files import hash_file
from trivium.model.folder import read_spec
from trivium.plan.make import make_plan
from trivium.run.events import read_events
from trivium.run.folder import RunFolder
from trivium.train import references
from trivium.train.references import References
from trivium.train.rehearse import rehearse_run
from trivium.train.trainer import Trainer


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a source and a config of five stages, three of them with KL; the tests work in it."""
    write_references(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> "tuple[Path, Watched]":
    """The run of the config as it is, trained once for all tests: its folder, and its trainer."""
    where = tmp_path_factory.mktemp("trained")
    write_references(where)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(where)
        return where / "runs" / "run", run()


@pytest.fixture
def base(folder: Path, trained: "tuple[Path, Watched]") -> None:
    """A run to start from, to hold to, or to compare with, at runs/base."""
    shutil.copytree(trained[0], folder / "runs" / "base")


class Watched(StoppingTrainer):
    """Notes which reference each stage holds."""

    held: dict[str, Any]

    def on_start(self) -> None:
        self.held = {}

    def on_stage(self, stage: Any) -> None:
        self.held[stage.name] = self.engine.references.get("kl")  # type: ignore[attr-defined]


def run(*overrides: str, stop_at: int = -1, **kinds: Any) -> Watched:
    trainer = Watched("run.toml", overrides, show=False, **kinds)
    trainer.stop_at = stop_at
    trainer.run()
    return trainer


def extras(run_name: str = "run") -> dict[int, dict[str, float]]:
    return {step: event["extra"] for step, event in steps_taken(Path("runs") / run_name / "events.jsonl").items()}


def weights_of(run_name: str = "run") -> str:
    return weights_in(RunFolder(Path("runs") / run_name).checkpoints()[-1].engine)


def weights_in(engine: Path) -> str:
    """A hash of the weights alone."""
    tensors = load_file(engine / "rank-00000.safetensors")
    weights = sorted(name for name in tensors if name.startswith("weights/"))
    assert weights
    return xxhash.xxh3_128_hexdigest(b"".join(tensors[name].numpy().tobytes() for name in weights))


def step_folder(step: int, run_name: str = "run") -> Path:
    return Path("runs") / run_name / "checkpoints" / f"step-{step:08d}"


@pytest.mark.usefixtures("base")
def test_each_stage_has_the_reference_it_asks_for_and_none_is_held_where_none_is_asked_for(
    trained: tuple[Path, Watched],
) -> None:
    held = trained[1].held
    assert [name for name, reference in held.items() if reference is None] == ["general", "free"]
    assert held["same"] is held["anchored"]
    assert held["anchored"].folder == step_folder(5) / "engine"
    assert held["fresh"].folder == step_folder(14) / "engine"
    figures = extras("base")
    assert figures[5] == figures[18] == {}
    assert all(set(figures[step]) == {"kl", "reference_loss", "objective"} for step in range(6, 18))
    assert figures[15]["kl"] == pytest.approx(0, abs=1e-6) != pytest.approx(figures[14]["kl"], abs=1e-4)


@pytest.mark.usefixtures("base")
def test_a_reference_keeps_the_rotary_positions_of_the_stage_that_trained_it(trained: tuple[Path, Watched]) -> None:
    held = trained[1].held
    assert held["anchored"].rope.theta == 10_000
    assert held["fresh"].rope.theta == 50_000  # of the stage before it, which asks for none
    assert extras("base")[6]["kl"] > 1e-6
    assert read_spec(step_folder(5, "base") / "engine").rope.theta == 10_000
    assert read_spec(step_folder(10, "base") / "engine").rope.theta == 50_000
    assert read_spec(step_folder(14, "base") / "engine").rope.theta == 50_000  # the stage asks for none


def test_validation_is_plain_cross_entropy(folder: Path) -> None:
    run("stages.1.evaluate=true", "run.name=with")
    run("stages.1.evaluate=true", "run.name=without", "stages.1.kl={ beta = 1e-30 }")
    first = [
        next(event for event in read_events(Path(f"runs/{name}/events.jsonl")) if event["event"] == "evaluated")
        for name in ("with", "without")
    ]
    assert first[0]["loss"] == first[1]["loss"]


@pytest.mark.slow
@pytest.mark.usefixtures("base")
def test_a_resume_in_mid_stage_holds_the_same_reference_and_ends_with_the_same_bits() -> None:
    for stop_at in (2, 5, 8, 10, 12, 14, 16, 18):
        trainer = run("run.name=parts", stop_at=stop_at)
        assert trainer.step == stop_at
    run("run.name=parts")
    assert extras("parts") == extras("base")
    assert weights_of("parts") == weights_of("base")


@pytest.mark.slow
def test_a_run_killed_anywhere_in_its_stages_with_kl_ends_bit_for_bit_as_one_that_was_not(folder: Path) -> None:
    command = [sys.executable, "-m", "tests.train.chaos", str(folder), "20", "11"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found["kills"] == 20
    assert found["calm"]["step"] == 19
    assert found["killed"] == found["calm"]


@pytest.mark.slow
@pytest.mark.usefixtures("base")
def test_references_stay_whatever_else_goes() -> None:
    run("model={ init = 'runs/base', vocab = 512 }", "stages.1.kl.reference={ stage = 'general' }")
    kept = [checkpoint.step for checkpoint in RunFolder(Path("runs/run")).checkpoints()]
    assert kept == [0, 5, 10, 14, 17, 19]


@pytest.mark.slow
@pytest.mark.usefixtures("base")
def test_the_first_stage_holds_to_the_weights_it_starts_from() -> None:
    overrides = ("model={ init = 'runs/base', vocab = 512 }", "stages.0.kl={ beta = 0.5 }")
    trainer = run(*overrides)
    assert trainer.held["general"].folder == step_folder(0) / "engine"
    assert weights_in(step_folder(0) / "engine") == weights_of("base")
    assert extras()[1]["kl"] == pytest.approx(0, abs=1e-6)
    run(*overrides, "run.name=parts", stop_at=3)
    run(*overrides, "run.name=parts")
    assert weights_of("parts") == weights_of()


@pytest.mark.slow
@pytest.mark.usefixtures("base")
def test_a_given_reference_is_a_run_a_checkpoint_or_a_hugging_face_folder() -> None:
    export_checkpoint(Path("runs/base"), Path("out"))
    figures = []
    for name, reference in {"run": "runs/base", "step": step_folder(19, "base"), "hf": "out"}.items():
        run(f"stages.0.kl={{ beta = 0.5, reference = {{ path = '{reference}' }} }}", f"run.name={name}", stop_at=4)
        figures.append(extras(name))
    assert figures[0] == figures[1] == figures[2]
    assert figures[0][1]["kl"] > 0.01


@pytest.mark.slow
def test_a_given_reference_stays_what_it_was_when_the_run_it_is_in_goes_on(folder: Path) -> None:
    longer = "stages.4.steps=4"
    run("run.name=base", longer, stop_at=20)
    given = "stages.0.kl={ beta = 0.5, reference = { path = 'runs/base' } }"
    run(given, "run.name=whole")
    run(given, "run.name=parts", stop_at=3)
    shutil.copytree(step_folder(20, "base"), "kept")
    run("run.name=base", longer)  # its last checkpoint is another now
    shutil.copytree("kept", step_folder(20, "base"), dirs_exist_ok=True)
    resumed = run(given, "run.name=parts")
    assert resumed.held["general"].folder == step_folder(20, "base") / "engine"
    assert weights_of("parts") == weights_of("whole")


@pytest.mark.usefixtures("base")
def test_ranks_hash_every_file_of_their_references_once_between_them(monkeypatch: pytest.MonkeyPatch) -> None:
    given = ["stages.0.kl={ beta = 0.5, reference = { path = 'runs/base' } }", "run.name=base"]
    plan = make_plan(load(Path("run.toml"), given).config).complete()
    hashed: list[Path] = []

    def counted(path: Path) -> str:
        hashed.append(path)
        return hash_file(path)

    monkeypatch.setattr(references, "hash_file", counted)

    def check(ranks: Ranks, step: int = 4) -> dict[str, Any]:
        own = References(plan, RunFolder(Path("runs/base")), ranks)
        own.check(step)
        return own.found

    found = together(4, check)
    of_run = [path for path in step_folder(19, "base").rglob("*") if path.is_file() and path.name != "COMPLETE"]
    assert sorted(hashed) == sorted(of_run)
    assert found == [check(Ranks())] * 4
    hashed.clear()
    together(4, lambda ranks: check(ranks, 6))  # the checkpoint of step 5 is a reference of two stages
    of_step = [path for path in step_folder(5, "base").rglob("*") if path.is_file() and path.name != "COMPLETE"]
    assert sorted(hashed) == sorted(of_step)


@pytest.mark.usefixtures("base")
def test_a_step_of_a_run_may_be_given() -> None:
    trainer = run("stages.0.kl={ beta = 0.5, reference = { path = 'runs/base', step = 5 } }", stop_at=2)
    assert trainer.held["general"].folder == step_folder(5, "base") / "engine"


def refusal(*overrides: str) -> str:
    taken = len(extras()) if Path("runs/run/events.jsonl").exists() else 0
    with pytest.raises(PlanError) as error:
        run(*overrides)
    assert (len(extras()) if Path("runs/run/events.jsonl").exists() else 0) == taken
    return re.sub(r"^run\.toml(:\d+)?: ", "", str(error.value), flags=re.MULTILINE)


def test_a_reference_that_is_missing_or_damaged_is_refused_before_training(folder: Path) -> None:
    run(stop_at=7)
    weights = step_folder(5) / "engine" / "rank-00000.safetensors"
    sound = weights.read_bytes()
    weights.write_bytes(sound[:-1] + bytes([sound[-1] ^ 1]))
    damaged = f"its reference is damaged ({weights}: its content has changed since it was written). "
    advice = "Put it back, or take away that checkpoint and all that came after it."
    assert refusal() == (
        f"stages[1].kl.reference: {damaged}{advice}\nstages[2].kl.reference: {damaged}{advice}"  # every stage of it
    )
    weights.write_bytes(sound)
    shutil.move(step_folder(5), "away")
    missing = "its reference is the checkpoint of step 5, which is not in runs/run. "
    advice = "Put it back, or give reference another path."
    assert refusal() == f"stages[1].kl.reference: {missing}{advice}\nstages[2].kl.reference: {missing}{advice}"
    shutil.move("away", step_folder(5))
    run()


@pytest.mark.slow
@pytest.mark.usefixtures("base")
def test_a_boundary_that_is_damaged_is_taken_again_from_before_it() -> None:
    run("checkpoint.keep=9", stop_at=7)
    (step_folder(5) / "engine" / "rank-00000.safetensors").write_bytes(b"")
    shutil.rmtree(step_folder(7))
    run("checkpoint.keep=9")
    assert step_folder(5).with_name("damaged-step-00000005").is_dir()
    assert weights_of() == weights_of("base")


@pytest.mark.slow
def test_a_given_reference_that_is_missing_damaged_or_another_is_refused(
    folder: Path, trained: tuple[Path, Watched]
) -> None:
    given = "stages.0.kl={ beta = 0.5, reference = { path = 'runs/base' } }"
    where = "stages[0].kl.reference (set on the command line): "
    none = "runs/base: has no checkpoint. Give a run's folder, or one of its checkpoints."
    assert refusal(given) == where + none
    run("run.name=base", "model.ffn=64", "stages.0.steps=1")
    engine = step_folder(15, "base") / "engine"
    other = f"{engine} is a model of another shape: ffn is 64 and not 128. Give one of the same shape."
    assert refusal(given) == where + other
    shutil.rmtree("runs/base")
    shutil.copytree(trained[0], folder / "runs" / "base")
    run(given, stop_at=2)
    engine = step_folder(19, "base") / "engine"
    weights = engine / "rank-00000.safetensors"
    sound = weights.read_bytes()
    weights.write_bytes(sound[:-1])
    fault = f"{weights}: had {len(sound):,} bytes, has {len(sound) - 1:,}"
    damaged = f"{engine.parent}: is damaged ({fault}). Put it back, or give another."
    assert refusal(given) == where + damaged
    shutil.rmtree(engine.parent)
    gone = f"{engine} is gone since the run began. Put it back, or give another reference."
    assert refusal(given) == where + gone


def test_another_reference_in_mid_stage_is_another_past(folder: Path) -> None:
    run(stop_at=7)
    with pytest.raises(ResumeError) as error:
        run("stages.1.kl.reference={ path = 'web' }")
    assert str(error.value) == (
        'cannot resume at step 7: stages[1].kl.reference.path was absent and is now "web", and steps 0 to 6 have been '
        "taken. Put it back, or fork an earlier checkpoint: trivium fork runs/run --at STEP new.toml"
    )


@contextmanager
def files_no_larger_than(size: int) -> Iterator[None]:
    """A disk on which larger files cannot be written."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.slow
@pytest.mark.usefixtures("base")
def test_a_boundary_that_cannot_be_written_stops_the_run_and_a_later_launch_goes_on() -> None:
    run(stop_at=4)
    with files_no_larger_than(50_000), pytest.raises(Exception, match=r"File too large"):
        run()
    assert [checkpoint.step for checkpoint in RunFolder(Path("runs/run")).checkpoints()] == [4]
    assert max(extras()) == 5
    run()
    assert weights_of() == weights_of("base")


def test_a_dry_run_and_a_rehearsal_leave_nothing_behind(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = run(dry_run=True)
    assert trainer.finished
    rehearse_run(Path("run.toml"), [], Console(width=120), dialect=None, world_size=1)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [
        "stage",
        "general",
        "anchored",
        "same",
        "fresh",
        "free",
        "tightest:",
        "whole",
    ]
    assert sorted(path.name for path in folder.iterdir()) == ["run.toml", "web"]


def test_lines_of_steps_say_how_far_the_reference_is(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Trainer("run.toml", ["track.every=1"]).run()
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("step 5 ") or "kl " in line]
    steps = [line for line in lines if "tokens/s" in line]
    assert "kl" not in steps[0]
    assert all("  kl " in line for line in steps[1:])
    assert len(steps) == 13


def test_an_anneal_holds_to_the_model_as_it_was_when_the_stage_it_ends_began(folder: Path) -> None:
    trainer = run("run.anneal={ start = 0.95, lr = { shape = 'linear' } }", "stages.4.kl={ beta = 0.1 }")
    assert trainer.held["free"].folder == step_folder(17) / "engine"
    assert trainer.held["anneal"] is trainer.held["free"]
