"""Scores and texts during a run, over ranks and at its boundaries; training does not know of them."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.events import steps_taken
from trivium.errors import PlanError
from trivium.run.events import read_events
from trivium.train.trainer import Trainer

CONFIG = """
[run]
name = "run"
[model]
layers = 1
width = 32
heads = 2
max_seq_len = 96
[tokenizer]
kind = "bytes"
[engine]
device = "cpu"
[optimizer]
lr = 0.003
[sources.spelling]
kind = "chat"
task = "spelling"
size = 60
validation = 0.2
[defaults]
seq_len = 64
batch_size = 4
[[stages]]
name = "one"
steps = 3
[[stages]]
name = "two"
steps = 3
evaluate = true
"""
ASKED = (
    'evaluate.tasks=["spelling", "counting"]',
    "evaluate.tasks_every=2",
    "evaluate.questions=3",
    "evaluate.max_new_tokens=8",
    'evaluate.prompts=["Spell", "How"]',
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "run.toml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*overrides: str) -> Trainer:
    return Trainer("run.toml", overrides, show=False).run()


def events(kind: str, name: str = "run") -> list[dict[str, Any]]:
    return [event for event in read_events(Path("runs") / name / "events.jsonl") if event["event"] == kind]


def losses(name: str) -> list[float]:
    return [event["loss"] for event in steps_taken(Path("runs") / name / "events.jsonl").values()]


class Stopped(Trainer):
    """A run that is told to stop after four steps."""

    def on_step(self, step: int, stats: object) -> None:
        self.stopping = step == 3


def test_scores_come_when_they_are_due_and_change_nothing_of_training(folder: Path) -> None:
    run("run.name=plain")
    run("run.name=asked", *ASKED)
    Stopped("run.toml", ["run.name=stopped", *ASKED], show=False).run()
    run("run.name=stopped", *ASKED)
    assert losses("asked") == losses("plain") == losses("stopped")
    final = "checkpoints/step-00000006/engine"
    saved = [sorted(Path("runs", name, final).glob("*.safetensors")) for name in ("plain", "asked", "stopped")]
    assert saved[0]
    assert [path.read_bytes() for path in saved[0]] == [path.read_bytes() for path in saved[1]]
    assert [path.read_bytes() for path in saved[0]] == [path.read_bytes() for path in saved[2]]
    # Every second step, before the second stage and after it; once a step.
    scored = events("scored", "asked")
    assert [event["step"] for event in scored] == [2, 3, 4, 6]
    assert set(scored[0]["scores"]) == {"spelling", "counting"}
    assert scored[0]["scores"]["spelling"]["questions"] == 3
    assert set(scored[0]["fingerprint_by_task"]) == {"spelling", "counting"}
    assert len({event["fingerprint"] for event in (*scored, *events("scored", "stopped"))} - {""}) == 1
    sampled = events("sampled", "asked")
    assert [(event["step"], event["prompt"]) for event in sampled] == [
        (step, prompt) for step in (0, 3, 6) for prompt in ("Spell", "How")
    ]
    assert events("scored", "stopped")[-1]["scores"] == scored[-1]["scores"]
    assert events("sampled", "stopped")[-1]["text"] == sampled[-1]["text"]


def test_a_task_that_is_not_there_is_refused_before_the_first_step(folder: Path) -> None:
    with pytest.raises(PlanError) as caught:
        run(*ASKED, 'evaluate.tasks=[{ task = "arc", path = "nowhere" }]')
    what = "nowhere: is not there. Name a JSONL or Parquet file, or a folder of them."
    assert str(caught.value) == f"run.toml: evaluate.tasks[0] (set on the command line): {what}"
    assert not Path("runs/run/events.jsonl").exists()


def test_a_prompt_longer_than_a_row_is_refused_before_the_first_step(folder: Path) -> None:
    with pytest.raises(PlanError) as caught:
        run(f'evaluate.prompts=["Spell", "{"a" * 240}"]')
    where = "run.toml: evaluate.prompts[1] (set on the command line)"
    assert str(caught.value) == f"{where}: has 241 tokens, and rows have 96. Shorten it."
    assert not Path("runs/run/events.jsonl").exists()
