"""Evaluations: when they come, and bits per byte beside a plain count."""

import math
from pathlib import Path
from typing import Any

import pytest

from tests.support.training import train
from trivium.engine.base import EvalStats
from trivium.rows.batch import Batch
from trivium.run.events import Ended, as_event, read_events
from trivium.text.tokenizer import ByteTokenizer
from trivium.train.trainer import Trainer

CONFIG = """
[run]
name = "run"
[model]
layers = 1
width = 32
heads = 2
[tokenizer]
kind = "bytes"
[engine]
device = "cpu"
[sources.spelling]
kind = "chat"
task = "spelling"
size = 60
validation = 0.2
loss_on = "all"
[evaluate]
tokens = 500
[[stages]]
name = "one"
steps = 7
seq_len = 64
batch_size = 2
"""


@pytest.fixture(autouse=True)
def _run_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run.toml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)


def events(kind: str) -> list[dict[str, Any]]:
    return [event for event in read_events(Path("runs/run/events.jsonl")) if event["event"] == kind]


@pytest.mark.parametrize(
    ("said", "steps"),
    [
        (["evaluate.every=3"], [3, 6, 7]),
        (["evaluate.every=3", "evaluate.at_start=true"], [0, 3, 6, 7]),
        (["evaluate.every=7", "evaluate.at_start=true", "stages.0.evaluate=true"], [0, 7]),
        (["evaluate.at_start=true"], [0]),
        ([], []),
    ],
)
def test_evaluations_come_before_the_first_step_every_n_and_after_the_last(said: list[str], steps: list[int]) -> None:
    train(*said)
    assert [event["step"] for event in events("evaluated")] == steps


def test_the_closing_line_has_the_lowest_bits_per_byte() -> None:
    train("evaluate.every=2", "evaluate.at_start=true", "optimizer.lr=0.01")
    lowest = min(event["bits_per_byte"] for event in events("evaluated"))
    assert lowest < events("evaluated")[0]["bits_per_byte"]
    (record,) = events("ended")
    assert record["best"]["bits per byte"] == lowest
    ended = as_event(record)
    assert isinstance(ended, Ended)
    assert ended.line().endswith(f", best bits per byte {lowest:.4f}")


class Recording(Trainer):
    """Keeps the targets of an evaluation, and the loss of each."""

    seen: list[tuple[int, float]]

    def val_step(self, batch: Batch) -> EvalStats:
        nats = self.engine.nats(batch)
        self.seen += zip(batch.targets.ravel().tolist(), nats.ravel().tolist(), strict=True)
        return super().val_step(batch)


@pytest.mark.parametrize("engine", ["torch", "jax"])
def test_bits_per_byte_leave_out_the_nats_of_tokens_that_have_no_bytes(engine: str) -> None:
    trainer = Recording("run.toml", ["evaluate.at_start=true", "stages.0.steps=1", f"engine.name={engine}"], show=False)
    trainer.seen = []
    trainer.run()
    counted = [(target, loss) for target, loss in trainer.seen if target >= 0]
    text = [loss for target, loss in counted if target < 256]  # a token of one byte; the markers have none
    assert 0.7 * len(counted) < len(text) < len(counted)
    assert max(target for target, _ in counted) < ByteTokenizer().vocab
    (event,) = events("evaluated")
    assert event["bits_per_byte"] == pytest.approx(sum(text) / math.log(2) / len(text), rel=1e-6)
    assert event["loss"] == pytest.approx(sum(loss for _, loss in counted) / len(counted), rel=1e-6)


def test_an_evaluation_reads_the_rows_that_its_tokens_fill() -> None:
    class Counting(Trainer):
        rows = 0

        def val_step(self, batch: Batch) -> EvalStats:
            self.rows += batch.num_rows
            return super().val_step(batch)

    said = "evaluate.tokens=192", "evaluate.at_start=true", "stages.0.steps=1"
    trainer = Counting("run.toml", said, show=False)
    trainer.run()
    assert trainer.rows == 3  # of 64 tokens
