"""Each gate is passed by what is equal, and names what is not."""

import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.support.command_line import trivium
from tests.support.training import write_four_stages
from trivium.errors import UsageError
from trivium.files import flushed_facts
from trivium.prove.gates import Gate, Proof, Question, equivalence, repeatability, restart_replay
from trivium.prove.show import show_proof
from trivium.prove.worker import Job, ProvingTrainer
from trivium.run.folder import RunFolder


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run in two launches."""
    folder = tmp_path_factory.mktemp("runs")
    write_four_stages(folder)
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        for steps in (4, 19):
            ProvingTrainer(Job("run.toml", [], None, steps)).run()
    return RunFolder(folder / "runs/run")


@pytest.fixture
def other(trained: RunFolder, tmp_path: Path) -> RunFolder:
    """The same run, to be changed."""
    shutil.copytree(trained.path, tmp_path / "other")
    return RunFolder(tmp_path / "other")


def flip_bit(run: RunFolder) -> None:
    checkpoint = run.checkpoints()[-1]
    name = "engine/rank-00000.safetensors"
    content = bytearray((checkpoint.path / name).read_bytes())
    content[-1] ^= 1
    (checkpoint.path / name).write_bytes(content)
    complete = json.loads((checkpoint.path / "COMPLETE").read_text())
    complete["files"][name] = flushed_facts(checkpoint.path / name)
    (checkpoint.path / "COMPLETE").write_text(json.dumps(complete))


def change_events(run: RunFolder, change: Callable[[dict[str, Any]], object]) -> None:
    events = [json.loads(line) for line in run.events.read_text().splitlines()]
    for event in events:
        change(event)
    run.events.write_text("".join(f"{json.dumps(event)}\n" for event in events))


def test_runs_that_are_equal_pass_both_gates_of_bits(trained: RunFolder, other: RunFolder) -> None:
    repeated, replayed = repeatability(trained, other), restart_replay(trained, other)
    assert repeated.passed
    assert replayed.passed
    assert repeated.compared.endswith(" figures equal")
    assert replayed.compared == f"resumed at step 4; {repeated.compared}"


def test_one_bit_of_one_tensor_fails_both_gates_of_bits(trained: RunFolder, other: RunFolder) -> None:
    flip_bit(other)
    for gate in (repeatability(trained, other), restart_replay(trained, other)):
        assert not gate.passed
        assert "rank-00000.safetensors/" in gate.differences[0]


def test_a_launch_that_started_over_has_replayed_nothing(trained: RunFolder, other: RunFolder) -> None:
    change_events(other, lambda event: event.update(step=0) if event["event"] == "started" else None)
    gate = restart_replay(trained, other)
    assert gate.differences[-1].endswith("the second launch did not resume from a checkpoint")


def test_losses_may_differ_by_rounding_and_not_by_more(trained: RunFolder, other: RunFolder) -> None:
    def change(event: dict[str, Any]) -> None:
        if event["event"] == "step":
            event["loss"] *= 1 + (1e-3 if event["step"] == 7 else 1e-5)

    change_events(other, change)
    gate = equivalence(trained, other)
    assert [difference.partition(":")[0] for difference in gate.differences] == ["step 7"]
    assert gate.compared == "19 batches equal by hash; losses differ by 1.0e-03 at most, 1e-04 allowed"


def test_a_step_whose_engine_was_given_another_row_is_named(trained: RunFolder, other: RunFolder) -> None:
    given = other.path / "given/rank-00000.jsonl"
    lines = given.read_text().splitlines()
    lines[3] = lines[3].replace(json.loads(lines[3])[3][1], "another")
    given.write_text("\n".join(lines))
    gate = equivalence(trained, other)
    assert gate.differences == ("step 3: the batches differ",)
    assert gate.compared.startswith("18 batches equal by hash; ")


def test_steps_of_which_nobody_knows_what_was_given_prove_nothing(trained: RunFolder, other: RunFolder) -> None:
    shutil.rmtree(other.path / "given")
    for pair in ((trained, other), (other, trained), (other, other)):
        assert equivalence(*pair).differences == tuple(f"step {step}: the batches differ" for step in range(19))


def test_what_proves_nothing_is_refused(trained: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trained.path.parent.parent)
    with pytest.raises(UsageError, match="--against: is 2, as --ranks is"):
        Question(Path("run.toml"), ranks=2, against=2).answer(print)
    with pytest.raises(UsageError, match="--steps: 3 steps are too few"):
        Question(Path("run.toml"), steps=3).answer(print)


def test_a_table_has_the_gates_and_what_differs() -> None:
    gates = Gate("repeatability", "4 tensors equal"), Gate("equivalence", "1 batch", tuple("abcdefg"))
    proof = Proof(2, 1, 8, {"engine": "torch", "device": "cpu", "precision": "float32"}, {"torch": "2.13"}, gates)
    file = io.StringIO()
    show_proof(proof, Console(file=file, width=100))
    lines = [line.rstrip() for line in file.getvalue().splitlines()]
    assert lines == [
        "torch 2.13, cpu, float32: 8 steps on 2 ranks and on 1",
        "gate           passed  compared",
        "repeatability  yes     4 tensors equal",
        "equivalence    no      1 batch",
        *(f"equivalence: {each}" for each in "abcde"),
        "equivalence: and 2 more",
    ]


@pytest.mark.slow
def test_two_ranks_of_this_machine_pass_all_gates(tmp_path: Path) -> None:
    write_four_stages(tmp_path)
    code, out, err = trivium(tmp_path, "prove", "run.toml", "--steps", "8", "--json")
    assert code == 0, err
    proof = json.loads(out)
    assert [(gate["name"], gate["passed"]) for gate in proof["gates"]] == [
        ("repeatability", True),
        ("equivalence", True),
        ("restart replay", True),
    ]
    assert (proof["ranks"], proof["against"], proof["steps"]) == (2, 1, 8)
    assert proof["settings"]["deterministic"] is True
