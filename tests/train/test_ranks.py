"""A run on many ranks: the same batches on any of them, bit for bit after a kill, one voice, no hang."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.scripts import ROOT
from tests.support.training import write_kl_stages
from tests.support.two_ranks import on_two_ranks
from trivium.ask.export import export_checkpoint
from trivium.run.events import read_events
from trivium.run.folder import RunFolder
from trivium.train.trainer import Trainer

KILLS = 4


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two sources and a config of four stages; the tests work there."""
    write_kl_stages(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def play(folder: Path, *scenario: str) -> tuple[dict[str, Any], list[dict[str, Any]], str]:
    """What a scenario found, what its ranks printed, and what went to standard error."""
    command = [sys.executable, "-m", "tests.train.ranked", str(folder), *scenario]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    *printed, found = [json.loads(line) for line in ran.stdout.splitlines()]
    return found, printed, ran.stderr


@pytest.mark.slow
def test_a_run_goes_from_1_to_2_to_4_ranks_and_from_layout_to_layout(folder: Path) -> None:
    found, _, _ = play(folder, "elastic")
    whole, parts = found["whole"], found["parts"]
    assert list(whole["rows"]) == [str(step) for step in range(19)]
    assert parts["rows"] == whole["rows"]
    assert parts["losses"].keys() == whole["losses"].keys()
    assert list(parts["losses"].values()) == pytest.approx(list(whole["losses"].values()), rel=1e-5)
    assert parts["losses of rows"] == pytest.approx(whole["losses of rows"], rel=1e-4)
    assert len(whole["losses of rows"]) == sum(map(len, whole["rows"].values()))
    assert list(whole["kl"]) == [str(step) for step in range(7, 20)]
    assert list(parts["kl"].values()) == pytest.approx(list(whole["kl"].values()), rel=1e-4, abs=1e-7)
    # The first and the third stop fall between two evaluations, so that both runs have taken the same ones.
    assert parts["validation"] == pytest.approx(whole["validation"], rel=1e-5)
    assert parts["started"] == [
        [0, 1, {}],
        [3, 2, {"layout.shard": "1 -> 2", "world_size": "1 -> 2"}],
        [6, 4, {"engine.parallel.shard": '"absent" -> 4', "layout.shard": "2 -> 4", "world_size": "2 -> 4"}],
        [
            9,
            4,
            {
                "engine.parallel.replicate": '"absent" -> 2',
                "engine.parallel.shard": '4 -> "absent"',
                "layout.replicate": "1 -> 2",
                "layout.shard": "4 -> 2",
            },
        ],
        [
            12,
            4,
            {
                "engine.parallel.replicate": '2 -> "absent"',
                "engine.parallel.tensor": '"absent" -> 2',
                "layout.replicate": "2 -> 1",
                "layout.tensor": "1 -> 2",
            },
        ],
    ]
    written = {path.name for path in RunFolder(Path("runs/parts")).checkpoints()[-1].engine.iterdir()}
    assert written == {"engine.json", "tensors.json", *(f"rank-{rank:05}.safetensors" for rank in range(4))}
    said = export_checkpoint(Path("runs/parts"), Path("out"))
    assert said.startswith("out: step 19 of runs/parts, ")
    longer = Trainer("run.toml", ["run.name=parts", "stages.3.steps=4"], show=False).run()
    assert longer.finished


@pytest.mark.slow
def test_a_run_goes_from_whole_rows_to_four_ranks_that_share_them_and_to_two(folder: Path) -> None:
    found, _, _ = play(folder, "elastic", "1")
    whole, parts = found["whole"], found["parts"]
    assert parts["rows"] == whole["rows"]
    assert list(parts["losses"].values()) == pytest.approx(list(whole["losses"].values()), rel=1e-5)
    assert list(parts["kl"].values()) == pytest.approx(list(whole["kl"].values()), rel=1e-4, abs=1e-7)
    assert parts["validation"] == pytest.approx(whole["validation"], rel=1e-5)
    layouts = [changes for _, _, changes in parts["started"]]
    assert [layout.get("layout.context") for layout in layouts] == [None, "1 -> 4", "4 -> 2", None]


@pytest.mark.slow
@pytest.mark.parametrize("shared", [0, 1], ids=["rows of their own", "rows that they share"])
def test_two_ranks_killed_anywhere_end_bit_for_bit_as_two_that_were_not(folder: Path, shared: int) -> None:
    found, _, _ = play(folder, "killed", str(KILLS), str(shared))
    assert len(found["codes"]) == KILLS
    for died in found["codes"]:
        *ranks, victim = died
        assert ranks[victim]
    assert found["calm"]["step"] == 19
    assert len(found["calm"]["steps"]) == 19
    assert found["killed"] == found["calm"]


@pytest.mark.slow
def test_what_goes_wrong_on_one_rank_ends_all_with_one_message(folder: Path) -> None:
    found, printed, errors = play(folder, "troubles")
    assert found["stopped"] == {
        "codes": [0, 0],
        "saved": 5,
        "steps": 5,
        "preempted": [[5, "SIGTERM"]],
        "ended": [[False, 5, 2]],
    }
    codes = [found[each] for each in ("broken", "unknown", "uneven", "product", "past", "one rank")]
    assert codes == [[2, 1], [2, 2], [2, 2], [2, 2], [2, 2], [2, 2]]
    assert found["waiting"] == [[3, 3]] * 2  # so that a cluster starts the run again, whichever rank it asks
    assert found["gone"] == [2, -signal.SIGKILL]
    assert [line["rank"] for line in printed] == [0] * 9
    broken, unknown, uneven, product, past, one, gone, *stops = (line["error"] for line in printed)
    lost = "the connection to another rank is lost: its process was killed, or its machine is gone."
    assert gone == f"{lost} Start the run again: it resumes."
    told = "stopped while waiting for web. Start the run again."
    assert stops == [told, f"rank 1 failed: StoppedError: {told}"]
    assert broken == "rank 1 failed: RuntimeError: out of luck"
    assert (
        "source web: web/000.ds: document 0 has the token id 600 (its token 5), the vocabulary is 0 to 511" in unknown
    )
    by = " (set on the command line)"
    assert uneven == (
        f"run.toml: stages[1].batch_size{by}: is 5 rows, which 2 ranks cannot share evenly. Write 4 or 6.\n"
        f"run.toml: stages[3].batch_size{by}: is 3 rows, which 2 ranks cannot share evenly. Write 2 or 4."
    )
    assert product.partition(": ")[2] == (
        "engine.parallel: replicate 1 x shard 4 x tensor 1 is 4, but 2 ranks were launched. "
        "Launch 4, or change one of them."
    )
    assert past.startswith('cannot resume at step 5: stages[0].mixture.code was "0.25" and is now "0.5"')
    assert one.startswith(f"rank 1: run.toml: run.seed{by}: ")
    assert found["stuck"] == [2, 1]
    assert errors.count("rank 1 failed: RuntimeError: out of luck") == 1
    assert "rank 1 failed (RuntimeError), and did not end\n" in errors
    assert found["slow"] == [0, 0]
    assert found["slowest"] == [1 if step % 2 else None for step in range(19)]
    assert [text.partition(":")[0] for text in found["said"] if "rank" in text] == ["rank 1 is slow"]


FAILING = """
import threading

import torch
from torch import distributed

from trivium.cli.main import main
from trivium.engine.torch.ranks import saving_group
from trivium.train.trainer import Trainer

step = Trainer.train_step


def failing(self, batch, now):
    if self.ranks.rank == 1 and now.step == 2:
        alone = {"group": saving_group()}
        threading.Thread(target=distributed.all_reduce, args=(torch.zeros(1),), kwargs=alone).start()
        raise RuntimeError("out of luck")
    return step(self, batch, now)


Trainer.train_step = failing
main()
"""


@pytest.mark.slow
@pytest.mark.usefixtures("folder")
def test_a_rank_that_fails_ends_at_once_though_a_thread_of_it_waits_for_the_others() -> None:
    first, second = on_two_ranks(FAILING, "train", "run.toml", expected=(2, 1))
    assert first == "rank 1 failed: RuntimeError: out of luck\n"
    assert second.endswith("RuntimeError: out of luck\n")
    assert "terminate called" not in second


@pytest.mark.slow
def test_a_disk_without_room_bad_steps_and_a_halt_are_agreed_by_all_ranks_and_said_once(folder: Path) -> None:
    found, printed, errors = play(folder, "faults")
    assert found["room"] == [0, 0]
    assert found["not saved"] == [[9, "rank 1: [Errno 27] File too large"]]
    assert found["saved"][:3] == [3, 6, 10]  # 6 is also where a stage begins
    assert found["saved"][3] in (10, 11)  # as soon as it is known that it failed
    assert found["saved"][-1] == 19
    assert found["must"] == [2, 2]
    assert found["must have"] == [3]
    assert found["guard"] == [2, 2]
    assert found["dry"] == [0, 0]
    assert found["left"] == ["code", "run.toml", "runs", "web"]
    must, guard, *_ = (line["error"] for line in printed)
    where = "runs/must/checkpoints: the checkpoint of step 6 (boundary) cannot be written: "
    assert must.startswith(where)
    assert guard.startswith("steps 4 to 5: the loss is ")
    assert [line["rank"] for line in printed[:2]] == [0, 0]
    assert found["halted"][0] == 4
    assert {"rank-0.txt", "rank-1.txt", "rank-0-exchanges.json"} <= found["stacks"].keys()
    assert "gloo:" in found["stacks"]["rank-0-exchanges.json"]
    assert "(guard.stall_minutes): ended. Stacks: runs/halted/stacks/rank-0.txt" in errors
    assert "no progress for " in found["stacks"]["rank-0.txt"]
    assert "in train_step" in found["stacks"]["rank-1.txt"]


@pytest.mark.slow
def test_a_worker_of_torchrun_that_is_told_to_stop_stops_all(folder: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "trivium", "train", "run.toml", "stages.3.steps=100000", "schedule={}"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with subprocess.Popen(command, env=environment, **pipes) as run:
        assert run.stdout is not None
        for line in run.stdout:
            if line.startswith("step 20 "):
                workers = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
                os.kill(int(workers[-1]), signal.SIGTERM)
                break
        rest = run.stdout.read()
    assert rest.count("SIGTERM: the step is finished, a checkpoint comes next") == 1
    (ended,) = [event for event in read_events(Path("runs/run/events.jsonl")) if event["event"] == "ended"]
    last = RunFolder(Path("runs/run")).checkpoints()[-1]
    assert (ended["finished"], ended["steps"], ended["world_size"]) == (False, last.step, 2)
    assert last.state()["world_size"] == 2
