"""From a base model to one that answers: what it gains, what it forgets, and every odd shape of its data."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from math import ceil, isfinite
from pathlib import Path

import pytest

from tests.support.events import steps_taken
from tests.support.scripts import make_data
from tests.support.training import StoppingTrainer, events
from trivium.report.compare import compare_runs
from trivium.train.trainer import Trainer

BASE = """
[run]
name = "base"
[model]
layers = 2
width = 96
heads = 3
max_seq_len = 192
[tokenizer]
kind = "bytes"
[engine]
device = "cpu"
[optimizer]
name = "muon"
lr = { matrix = 0.02, rest = 3e-3 }
momentum = { start = 0.85, end = 0.95, steps = 30 }
grad_clip = 1.0
[schedule]
shape = "wsd"
to = 0.1
[sources.web]
kind = "tokens"
path = "web"
validation = 0.05
[evaluate]
tokens = "10k"
[[stages]]
name = "pretrain"
steps = 60
mixture = { web = 1.0 }
seq_len = 128
batch_size = 16
"""
MID = """
[run]
name = "mid"
[model]
init = "runs/base"
[engine]
device = "cpu"
[sources.web]
kind = "tokens"
path = "web"
validation = 0.05
[sources.spelling]
kind = "chat"
task = "spelling"
size = 5000
[sources.counting]
kind = "chat"
task = "counting"
size = 100
[sources.chats]
kind = "chat"
path = "chats.jsonl"
[sources.spelling-test]
kind = "chat"
task = "spelling"
split = "test"
stop = 60
validation_only = true
[evaluate]
sources = ["web", "spelling-test"]
tokens = "10k"
tasks = ["spelling"]
questions = 40
max_new_tokens = 40
[[stages]]
name = "tasks"
epochs = { spelling = 1, counting = 1, chats = 1 }
sources = ["spelling", "counting", "chats"]
packing = "crop"
lr = { shape = "wsd", decay = { fraction = 0.2 } }
evaluate = true
"""
LONG = "The tide comes in twice a day, and goes out as often. " * 8


def talk(question: str, answer: str) -> str:
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return json.dumps({"messages": messages}) + "\n"


@contextmanager
def standing_in(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a base model, its text, a few conversations (two of them longer than a row), and a config."""
    folder = tmp_path_factory.mktemp("midtraining")
    make_data().write_sources(folder)
    chats = [talk(f"What is {number}?", f"It is {number}.") for number in range(8)]
    chats += [talk(LONG, "Yes."), talk("And then?", LONG)]
    (folder / "chats.jsonl").write_text("".join(chats))
    (folder / "base.toml").write_text(BASE)
    (folder / "mid.toml").write_text(MID)
    with standing_in(folder):
        Trainer("base.toml", show=False).run()
    return folder


@pytest.fixture
def base(trained: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The tests work in that folder, each with runs of its own names."""
    monkeypatch.chdir(trained)
    return trained


def midtrain(name: str, *overrides: str, trainer: type[Trainer] = Trainer) -> Trainer:
    return trainer("mid.toml", [f"run.name={name}", *overrides], show=False).run()


class Stopped(StoppingTrainer):
    stop_at = 3


def weights(name: str) -> list[bytes]:
    """Everything that the engine keeps at the end of a run."""
    final = sorted(Path("runs", name, "checkpoints").glob("step-*"))[-1]
    return [path.read_bytes() for path in sorted((final / "engine").glob("*.safetensors"))]


@pytest.mark.slow
def test_a_midtraining_learns_to_spell_words_it_has_not_seen(base: Path) -> None:
    trainer = midtrain("whole")
    assert trainer.config.optimizer.name == "muon"
    assert (trainer.stage.seq_len, trainer.stage.batch_size) == (128, 16)
    before, after = events("scored", "whole")
    assert before["scores"]["spelling"]["score"] == 0
    assert after["scores"]["spelling"]["score"] > 0.3
    (change,) = compare_runs([Path("runs/whole")])
    assert (change.sources["spelling-test"]["loss"].change or 0) < -3
    assert change.scores["spelling"].change == after["scores"]["spelling"]["score"]


@pytest.mark.slow
def test_replay_and_kl_each_keep_the_base_from_being_forgotten(base: Path) -> None:
    short = "stages.0.steps=25", "evaluate.tasks=[]"
    midtrain("alone", *short)
    midtrain("replayed", *short, "stages.0.replay={ web = 0.2 }")
    midtrain("held", *short, "stages.0.kl={ beta = 1.0 }")
    changes = compare_runs([Path("runs", name) for name in ("alone", "replayed", "held")])
    alone, replayed, held = (change.sources["web"]["loss"].change for change in changes)
    assert alone is not None
    assert replayed is not None
    assert held is not None
    assert alone > 0.5
    assert max(replayed, held) < 0.8 * alone


@pytest.mark.slow
@pytest.mark.parametrize("packing", ["crop", "bestfit"])
def test_crop_fills_every_row_and_bestfit_loses_nothing_and_both_resume_exactly(base: Path, packing: str) -> None:
    said = f"stages.0.packing={packing}", "stages.0.batch_size=4", "evaluate.tasks=[]", "stages.0.evaluate=false"
    few = *said, "sources.spelling.size=100", "sources.counting.size=40", "sources.chats.max_epochs=50"
    whole = midtrain(f"{packing}-whole", *few)
    for given in whole.plan.stages[0].uses.values():
        figures, epochs = given.figures, given.epochs
        assert figures is not None
        assert epochs is not None
        if packing == "crop":
            open_slots = figures.rows * 129 - figures.tokens  # rows of 128 and a token that is a target only
            assert open_slots < 129 * ceil(epochs)  # none but in the last row of an epoch
            assert figures.consumed > figures.tokens  # what was dropped; the plan shows its share
        else:
            assert figures.consumed == figures.tokens
    midtrain(f"{packing}-stopped", *few, trainer=Stopped)
    midtrain(f"{packing}-stopped", *few)
    assert weights(f"{packing}-whole") == weights(f"{packing}-stopped")


@pytest.mark.slow
def test_rows_with_nothing_to_learn_and_conversations_longer_than_a_row(base: Path) -> None:
    """A question of four rows and an answer of four, one row a step: steps without a target, and nothing is NaN."""
    said = "stages.0.sources=['chats']", "stages.0.epochs={ chats = 1 }", "stages.0.batch_size=1"
    short = "stages.0.packing=bestfit", "evaluate.tasks=[]", "stages.0.evaluate=false"
    midtrain("long", *said, *short)
    steps = list(steps_taken(Path("runs/long/events.jsonl")).values())
    assert all(isfinite(step["loss"]) and isfinite(step["grad_norm"]) for step in steps)
    masked = [step for step in steps if step["loss_tokens"] == 0]
    assert masked
    assert all(step["loss"] == 0 for step in masked)
    # Every answer has counted whole once: the words and the token that ends the turn.
    answers = [*(f"It is {number}." for number in range(8)), "Yes.", LONG]
    assert sum(step["loss_tokens"] for step in steps) >= sum(len(answer) + 1 for answer in answers)


@pytest.mark.slow
def test_the_optimizer_may_start_with_the_state_of_the_base(base: Path) -> None:
    said = "stages.0.steps=2", "stages.0.batch_size=2", "evaluate.tasks=[]", "stages.0.evaluate=false"
    fresh = midtrain("fresh", *said)
    warm = midtrain("warm", *said, "model.init_optimizer=true")
    first = [steps_taken(Path("runs", name, "events.jsonl"))[1]["loss"] for name in ("fresh", "warm")]
    assert first[0] == first[1]  # the same weights and rows
    assert weights("fresh") != weights("warm")
    assert (fresh.settings_at(0).momentum, warm.settings_at(0).momentum) == (0.85, 0.95)
    assert "optimizer" in events("weights", "warm")[0]["text"].partition(":")[0]
