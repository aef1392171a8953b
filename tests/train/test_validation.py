"""Evaluations: when they come, and bits per byte beside a plain count."""

import math
from pathlib import Path
from typing import Any

import pytest

from tests.support.training import SMALL_MODEL, events, train
from trivium.engine.base import EvalStats
from trivium.errors import ConfigError, PlanError
from trivium.rows.batch import Batch
from trivium.run.events import Ended, Evaluated, as_event
from trivium.text.tokenizer import ByteTokenizer
from trivium.train.trainer import Trainer

CONFIG = (
    SMALL_MODEL
    + """
[tokenizer]
kind = "bytes"
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
)


@pytest.fixture(autouse=True)
def _run_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run.toml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)


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


def test_a_stage_with_weights_has_a_weighted_loss_beside_the_plain_one() -> None:
    counting = 'sources.counting={ kind = "chat", task = "counting", size = 60, validation = 0.2, loss_on = "all" }'
    plain = [counting, "evaluate.at_start=true", "stages.0.steps=1"]
    train(*plain)
    (without,), (step,) = events("evaluated"), events("step")
    assert without["weighted_loss"] is None
    assert "weighted_loss" not in step["extra"]
    train(*plain, "run.name=weighted", "stages.0.loss_weight={ counting = 0.25 }")
    (event,), (step,) = events("evaluated", "weighted"), events("step", "weighted")
    assert (event["loss"], event["loss_by_source"]) == (without["loss"], without["loss_by_source"])
    low, high = sorted([event["loss_by_source"]["spelling"], event["loss"]])
    assert low < event["weighted_loss"] < high  # nearer to the source that weighs more
    assert step["extra"]["objective"] == step["extra"]["weighted_loss"] != step["loss"]
    shown = as_event(event)
    assert isinstance(shown, Evaluated)
    assert f"validation {event['loss']:.4f}, {event['weighted_loss']:.4f} weighted, " in shown.line()


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


TWO_STAGES = """
[sources.counting]
kind = "chat"
task = "counting"
size = 60
validation_only = true
[[stages]]
name = "two"
steps = 3
seq_len = 32
batch_size = 4
loss_on = "all"
rope = { theta = 50_000 }
evaluate = true
"""


class Reading(Trainer):
    """Keeps the rows of each evaluation: source, tokens and targets."""

    read: dict[tuple[int, str], list[tuple[str, list[int], list[int]]]]

    def val_step(self, batch: Batch) -> EvalStats:
        rows = self.read.setdefault((self.step, self.stage.name), [])
        for row in range(batch.num_rows):
            name = batch.sources[int(batch.source[row])]
            rows.append((name, batch.tokens[row].tolist(), batch.targets[row].tolist()))
        return super().val_step(batch)


def test_all_stages_are_evaluated_on_the_same_rows_of_every_source_that_holds_documents_out() -> None:
    Path("run.toml").write_text(CONFIG + TWO_STAGES)
    trainer = Reading("run.toml", ["stages.0.evaluate=true"], show=False)
    trainer.read = {}
    trainer.run()
    assert list(trainer.read) == [(0, "one"), (7, "one"), (10, "two")]  # where stages meet one serves both
    first, boundary, last = trainer.read.values()
    assert first == boundary == last
    assert {len(tokens) for _, tokens, _ in first} == {64}  # the first stage's length
    assert [name for name, _, _ in first] == ["spelling"] * 4 + ["counting"] * 4  # 500 tokens are 8 rows
    targets = {name: [target for each, _, row in first if each == name for target in row] for name, _, _ in first}
    counted = {name: sum(target >= 0 for target in each) / len(each) for name, each in targets.items()}
    assert counted["counting"] < 0.8 < counted["spelling"]  # `loss_on` is the source's, not the stage's
    found = events("evaluated")
    assert len({event["fingerprint"] for event in found}) == 1
    assert set(found[0]["fingerprint_by_source"]) == {"spelling", "counting"}
    assert trainer.session.best["validation loss"] == min(event["loss"] for event in found)


def test_a_stage_that_masks_documents_otherwise_has_figures_of_its_own_where_it_begins() -> None:
    Path("run.toml").write_text(CONFIG + TWO_STAGES)
    train("stages.0.evaluate=true", "stages.1.document_mask=false")
    found = events("evaluated")
    assert [(event["step"], event["stage"]) for event in found] == [(0, "one"), (7, "one"), (7, "two"), (10, "two")]
    marks = [event["fingerprint"] for event in found]
    assert marks[0] == marks[1] != marks[2] == marks[3]


@pytest.mark.parametrize("change", ["evaluate.tokens=100", "evaluate.seq_len=32", "sources.counting.size=61"])
def test_what_is_evaluated_may_change_and_the_best_starts_again(change: str) -> None:
    Path("run.toml").write_text(CONFIG + TWO_STAGES)

    class Stopped(Trainer):
        def on_step(self, step: int, stats: object) -> None:
            self.stopping = step == 3

    Stopped("run.toml", ["evaluate.every=2"], show=False).run()
    train("evaluate.every=2", change)
    found = events("evaluated")
    assert [event["step"] for event in found] == [2, 4, 6, 7, 8, 10]
    before, after = found[:2], found[2:]
    assert {event["fingerprint"] for event in before}.isdisjoint(event["fingerprint"] for event in after)
    assert len({event["fingerprint"] for event in after}) == 1
    assert events("ended")[-1]["best"]["validation loss"] == min(event["loss"] for event in after)
    what = "validation is measured on something else than at step 4: the best starts again"
    assert [event["text"] for event in events("notice")] == [what]


def test_an_evaluation_that_cannot_happen_is_refused_unless_the_trainer_has_an_evaluator() -> None:
    Path("run.toml").write_text(CONFIG.replace("validation = 0.2\n", ""))
    asked = "evaluate.every=2", "evaluate.at_start=true", "stages.0.evaluate=true"
    with pytest.raises(ConfigError) as error:
        Trainer("run.toml", asked, show=False)
    what = "no source holds documents out to evaluate on. Write validation = 0.01 in a source, or add one with"
    keys = "evaluate.every", "evaluate.at_start", "stages[0].evaluate"
    wheres = [f"run.toml: {key} (set on the command line)" for key in keys]
    assert [str(each) for each in error.value.problems] == [
        f"{each}: {what} validation_only = true." for each in wheres
    ]
    with pytest.raises(ConfigError):  # tasks are scored at steps of their own
        Trainer("run.toml", ["evaluate.every=2", "evaluate.tasks=['spelling']"], show=False)
    Trainer("run.toml", ["stages.0.evaluate=true", "evaluate.tasks=['spelling']"], show=False)

    class Judged(Trainer):
        def evaluator(self) -> Any:
            return lambda trainer: {"steps": float(trainer.step)}

    Judged("run.toml", asked, show=False).run()
    assert [event["step"] for event in events("evaluated")] == [0, 2, 4, 6, 7]


def test_tasks_that_are_never_scored_are_refused_even_where_the_trainer_has_an_evaluator() -> None:
    class Judged(Trainer):
        def evaluator(self) -> Any:
            return lambda trainer: {"steps": float(trainer.step)}

    Path("run.toml").write_text(CONFIG)
    asked = "evaluate.tasks=['spelling']", "evaluate.every=2"
    for trainer in (Trainer, Judged):
        with pytest.raises(ConfigError) as error:
            trainer("run.toml", asked, show=False)
        assert str(error.value) == (
            "run.toml: evaluate.tasks (set on the command line): are never scored. "
            "Write evaluate.tasks_every = 1000, or evaluate = true in a stage, or leave them out."
        )
        trainer("run.toml", [*asked, "evaluate.tasks_every=2"], show=False)


def test_a_source_that_is_evaluated_and_is_not_on_disk_is_refused_before_the_first_step() -> None:
    absent = '[sources.{}]\nkind = "tokens"\npath = "{}.bin"\ndtype = "uint16"\nvalidation_only = true\n'
    tables = "".join(absent.format(name, name) for name in ("far", "away"))
    Path("run.toml").write_text(CONFIG.replace("[evaluate]\n", f"{tables}[evaluate]\n"))
    named = 'evaluate.sources=["far", "away", "spelling"]'
    with pytest.raises(PlanError) as error:
        Trainer("run.toml", [named, "evaluate.every=2"], show=False)
    what = "is evaluated, and is not on disk. Put it there, or leave it out of evaluate.sources."
    found = [str(each).partition(": ")[2] for each in error.value.problems]  # after the file and line
    assert found == [f"sources.far: {what}", f"sources.away: {what}"]
    Trainer("run.toml", [named], show=False)  # nothing is evaluated
