"""Scores and texts during a run, over ranks and at its boundaries; training does not know of them."""

from pathlib import Path

import pytest

from tests.support.training import SMALL_MODEL, StoppingTrainer, events, losses, train
from trivium.errors import PlanError

CONFIG = (
    SMALL_MODEL
    + """
max_seq_len = 96
[tokenizer]
kind = "bytes"
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
)
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


class Stopped(StoppingTrainer):
    stop_at = 4


def test_scores_come_when_they_are_due_and_change_nothing_of_training(folder: Path) -> None:
    train("run.name=plain")
    train("run.name=asked", *ASKED)
    Stopped("run.toml", ["run.name=stopped", *ASKED], show=False).run()
    train("run.name=stopped", *ASKED)
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
        train(*ASKED, 'evaluate.tasks=[{ task = "arc", path = "nowhere" }]')
    what = "nowhere: is not there. Name a JSONL or Parquet file, or a folder of them."
    assert str(caught.value) == f"run.toml: evaluate.tasks[0] (set on the command line): {what}"
    assert not Path("runs/run/events.jsonl").exists()


def test_a_prompt_longer_than_a_row_is_refused_before_the_first_step(folder: Path) -> None:
    with pytest.raises(PlanError) as caught:
        train(f'evaluate.prompts=["Spell", "{"a" * 240}"]')
    where = "run.toml: evaluate.prompts[1] (set on the command line)"
    assert str(caught.value) == f"{where}: has 241 tokens, and rows have 96. Shorten it."
    assert not Path("runs/run/events.jsonl").exists()
