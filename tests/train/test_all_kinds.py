"""One config that mixes every kind of source in a stage, and changes them in the next."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.command_line import trivium
from tests.support.corpus import write_source
from tests.support.training import SMALL_MODEL, events, losses, train
from trivium.train.trainer import Trainer

ROOT = Path(__file__).parents[2]
CONFIG = (
    SMALL_MODEL
    + """
[tokenizer]
kind = "bytes"
[checkpoint]
every = 2
[sources.files]
kind = "tokens"
path = "files"
[sources.pages]
kind = "text"
path = "pages.jsonl"
validation = 0.2
[sources.table]
kind = "huggingface"
dataset = "table"
[sources.flow]
kind = "stream"
dataset = "flow"
lanes = 2
[sources.talk]
kind = "chat"
path = "talk.jsonl"
[sources.spell]
kind = "chat"
task = "spelling"
size = 40
[defaults]
seq_len = 64
batch_size = 12
[[stages]]
name = "first"
steps = 5
mixture = { files = 0.25, pages = 0.25, table = 0.125, flow = 0.125, talk = 0.125, spell = 0.125 }
[[stages]]
name = "second"
steps = 4
mixture = { pages = 0.25, flow = 0.5, talk = 0.25 }
seq_len = 32
packing = "crop"
loss_on = "all"
evaluate = true
"""
)
WORDS = ("harbour", "lighthouse", "mill", "train", "heron", "baker", "river", "window")


def texts(count: int, seed: int) -> list[str]:
    draw = np.random.default_rng(seed)
    return [" ".join(draw.choice(WORDS, draw.integers(4, 30))) + f" number {seed} {index}" for index in range(count)]


def write_lines(path: Path, records: list[object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_source(tmp_path / "files", [[8] * 30], "uint16")
    write_lines(tmp_path / "pages.jsonl", [{"text": text} for text in texts(60, 1)])
    (tmp_path / "table").mkdir()
    pq.write_table(pa.table({"text": texts(40, 2)}), tmp_path / "table/train.parquet")
    write_lines(tmp_path / "flow/train.jsonl", [{"text": text} for text in texts(80, 3)])
    talks = [
        {"messages": [{"role": "user", "content": f"say {text}"}, {"role": "assistant", "content": text}]}
        for text in texts(40, 4)
    ]
    write_lines(tmp_path / "talk.jsonl", list(talks))
    (tmp_path / "run.toml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRIVIUM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    return tmp_path


def printed(*arguments: str) -> str:
    """What a command prints, run in this process."""
    code, out, err = trivium(Path(), *arguments, environment={"COLUMNS": "120", "HF_HUB_OFFLINE": "1"})
    assert code == 0, err
    return out


@pytest.mark.slow
def test_every_kind_of_source_in_one_run(folder: Path) -> None:
    trained = printed("train", "run.toml", "run.name=by-command")
    assert "finished: 9 steps" in trained
    plan = json.loads(printed("plan", "run.toml", "--json"))
    assert [stage["steps"] for stage in plan["stages"]] == [5, 4]
    shown = printed("plan", "run.toml")
    assert all(f" {name} " in shown for name in ("files", "pages", "table", "flow", "talk", "spell"))
    rows = printed("inspect", "run.toml", "--step", "0")
    assert all(f": {name}, " in rows for name in ("files", "pages", "table", "flow", "talk", "spell"))
    found = printed("inspect", "run.toml", "--find", "number 1 7")
    assert "pages" in found
    assert "step" in found


@pytest.mark.slow
def test_such_a_run_resumes_exactly(folder: Path) -> None:
    class Stopped(Trainer):
        def on_step(self, step: int, stats: object) -> None:
            self.stopping = step in (2, 6)

    train("run.name=whole")
    for _ in range(3):
        Stopped("run.toml", ["run.name=parts"], show=False).run()
    assert len(losses("whole")) == 9
    assert losses("parts") == losses("whole")
    sources = {name for event in events("step", "whole") for name in event["loss_tokens_by_source"]}
    assert sources == {"files", "pages", "table", "flow", "talk", "spell"}
