"""A run's folder is read as it was written, truncated lines and resumes included, and followed while it grows."""

import ast
import json
from dataclasses import fields
from pathlib import Path

import pytest

from tests.support.events import steps_taken
from tests.support.runs import WrittenRun, eventful_run
from trivium.errors import UsageError
from trivium.report.charts import Chart
from trivium.report.parts.loss import validation_section
from trivium.report.read import EventLog, RunFiles
from trivium.report.run import shown_runs
from trivium.report.summary import best_evaluation
from trivium.run.events import Evaluated, Sampled, Saved, Scored, StepTaken


def test_columns_hold_what_the_events_file_says_of_each_step(run_folder: Path) -> None:
    truth = steps_taken(run_folder / "events.jsonl")
    columns = RunFiles(run_folder).log.steps
    assert columns.steps.tolist() == list(truth) == list(range(1, 301))
    assert columns.column("loss").tolist() == [event["loss"] for event in truth.values()]
    steps, web = columns.known("loss_by_source/web")
    assert dict(zip(steps.tolist(), web.tolist(), strict=True)) == {
        step: event["loss_by_source"]["web"] for step, event in truth.items() if "web" in event["loss_by_source"]
    }


def test_what_a_resume_undid_is_forgotten_and_what_it_cost_is_not(tmp_path: Path) -> None:
    log = RunFiles(eventful_run(tmp_path / "run").folder).log
    assert [event.step for event in log.of(Evaluated)] == [0, 100, 150, 150, 240, 240, 300]  # no 120
    assert [event.step for event in log.resumes] == [100, 200]
    assert [event.step for event in log.of(Saved)] == [100, 150, 300]
    assert log.end is not None


def test_what_is_asked_again_after_a_resume_counts_once(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "run")
    for launch in (0, 5):
        run.start(launch)
        if not launch:
            run.take(0, 5)
        run.tell(Scored(step=5, scores={}, overall=float(launch), seconds=0.0))
        for prompt in ("The", "A"):
            run.tell(Sampled(step=5, prompt=prompt, text=f" text {launch}"))
    log = RunFiles(run.folder).log
    assert [event.overall for event in log.of(Scored)] == [5.0]
    assert [(event.prompt, event.text) for event in log.of(Sampled)] == [("The", " text 5"), ("A", " text 5")]


def test_a_run_is_followed_as_it_grows(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "run")
    files = RunFiles(run.folder)
    assert len(files.log.steps) == 0
    mark = files.mark()
    run.start()
    run.take(0, 5)
    assert files.mark() != mark
    files.update()
    assert files.log.steps.steps.tolist() == [1, 2, 3, 4, 5]
    assert files.log.end is None
    run.take(5, 7)
    run.end(7)
    files.update()
    assert files.log.steps.steps.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert files.log.end is not None
    run.start(5)
    files.update()
    assert files.log.steps.steps.tolist() == [1, 2, 3, 4, 5]
    assert files.log.end is None


def test_a_line_that_is_half_written_is_read_once_it_is_whole(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "run")
    run.start()
    run.take(0, 2)
    path = run.folder / "events.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    files = RunFiles(run.folder)
    assert files.log.steps.steps.tolist() == [1]
    path.write_bytes(whole)
    files.update()
    assert files.log.steps.steps.tolist() == [1, 2]


def test_a_folder_that_is_not_a_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        RunFiles(tmp_path)
    assert str(caught.value) == f"{tmp_path}: has no plan.json. Give a run's folder, such as runs/small."
    (tmp_path / "plan.json").write_text("{")
    with pytest.raises(UsageError) as caught:
        RunFiles(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path / 'plan.json'}: is not what a run writes: Expecting property name enclosed in double quotes: "
        "line 1 column 2 (char 1). It is written when the run starts: resume it once."
    )
    (tmp_path / "plan.json").write_text('{"stages": [], "sources": {}}')
    (tmp_path / "config.toml").write_text("[run")
    with pytest.raises(UsageError) as caught:
        RunFiles(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path / 'config.toml'}: is not TOML: ")


def test_what_another_hand_wrote_is_skipped_or_named(tmp_path: Path) -> None:
    run = eventful_run(tmp_path / "run")
    before = RunFiles(run.folder).log
    run.tell_raw("evaluated", 300)
    run.tell_raw("step", 301, lr=None)
    run.tell_raw("ended", 302, finished=True, steps="all", peak_memory=1, training_seconds=1, best={}, world_size=1)
    run.tell_raw("scored", 303, scores={"arc": {}}, overall=0.5, seconds=1)
    run.tell_raw("step", 304, lr={"matrix": "high"}, loss_by_source={"web": [1]}, loss="low")
    run.tell_raw("notice", 306, text="a", time="now")
    (run.folder / "rows" / "step-00000154.json").write_text("[{")
    (run.folder / "config.toml").write_bytes(b"# \xff\n")
    files = RunFiles(run.folder)
    assert files.log.of(Evaluated) == before.of(Evaluated)
    assert files.log.end == before.end
    assert files.log.of(Scored) == before.of(Scored)
    assert files.rows == {"rows/step-00000154.json": []}
    (run.folder / "rows" / "step-00000154.json").write_text('[{"source": "web", "pieces": [{"document": "first"}]}]')
    assert RunFiles(run.folder).rows == {"rows/step-00000154.json": []}
    for name, keys in (("plan.json", "stages"), ("lineage.json", "run, step")):
        whole = (run.folder / name).read_text() if name == "plan.json" else None
        for content in ("{}", "[]", '{"stages": 1, "run": "runs/base", "step": "4"}'):
            (run.folder / name).write_text(content)
            with pytest.raises(UsageError) as caught:
                RunFiles(run.folder)
            what = f"it lacks {keys}. It is written when the run starts: resume it once."
            assert str(caught.value) == f"{run.folder / name}: is not what a run writes: {what}"
        if whole is not None:
            (run.folder / name).write_text(whole)


def test_a_fork_that_was_never_started_is_said_to_be_one(tmp_path: Path) -> None:
    (tmp_path / "lineage.json").write_text('{"run": "runs/base", "step": 4}')
    with pytest.raises(UsageError) as caught:
        RunFiles(tmp_path)
    what = "is a fork that has not been started. Start it first: trivium train."
    assert str(caught.value) == f"{tmp_path}: {what}"


def test_every_column_that_the_page_draws_is_a_field_of_a_step() -> None:
    """Names of columns are strings: each must be in the schema, or the chart would be empty."""
    asked = set()
    for path in (Path(__file__).parents[2] / "trivium" / "report").rglob("*.py"):
        for call in (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)):
            if isinstance(call.func, ast.Attribute) and call.func.attr in ("column", "known", "under", "source_series"):
                asked |= {str(leaf.value) for leaf in ast.walk(call.args[0]) if isinstance(leaf, ast.Constant)}
    names = {name.partition("/")[0] for name in asked} - {""}
    assert {"epochs", "lr", "loss_by_source", "loss_tokens_by_source", "seconds"} <= names
    assert names <= {field.name for field in fields(StepTaken)}


@pytest.mark.parametrize(
    ("key", "value", "what"),
    [
        ("seq_len", [], "stages.0.seq_len: Input should be a valid integer"),
        ("shares", {"web": "x"}, "stages.0.shares.web: Input should be a valid number"),
        ("batch_size", 0, "stages.0.batch_size: Input should be greater than or equal to 1"),
        ("uses", {"web": {}}, "stages.0.uses.web.rows: Field required"),
    ],
)
def test_a_plan_that_no_run_wrote_is_named_with_its_key(tmp_path: Path, key: str, value: object, what: str) -> None:
    eventful_run(tmp_path / "made")
    path = tmp_path / "made" / "plan.json"
    plan = json.loads(path.read_text())
    plan["stages"][0][key] = value
    path.write_text(json.dumps(plan))
    with pytest.raises(UsageError) as caught:
        RunFiles(tmp_path / "made")
    told = f"is not what a run writes: {what}. It is written when the run starts: resume it once."
    assert str(caught.value) == f"{path}: {told}"


def evaluated(step: int, loss: float, *, averaged: bool = False) -> Evaluated:
    figures = {"loss_by_source": {"web": loss}, "bits_per_byte_by_source": {}, "fingerprint": f"rows {averaged}"}
    seconds = {"tokens": 1, "seconds": 0.0}
    return Evaluated(step=step, stage="one", loss=loss, bits_per_byte=None, averaged=averaged, **figures, **seconds)  # type: ignore[arg-type]


def test_figures_of_the_average_are_apart_from_those_of_the_weights(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "run")
    run.start()
    run.take(0, 10)
    for step in (5, 10):
        run.tell(evaluated(step, 4.0 - step / 10))
        run.tell(evaluated(step, 3.0 - step / 10, averaged=True))
    files = RunFiles(run.folder)
    assert [event.loss for event in files.log.measured(Evaluated)] == [3.5, 3.0]
    assert [event.loss for event in files.log.of_average(Evaluated)] == [2.5, 2.0]
    (shown,) = shown_runs([files])
    assert best_evaluation(shown).loss == 3.0  # type: ignore[union-attr]
    charts = [block for block in validation_section([shown]).blocks if isinstance(block, Chart)]
    lines = {series.label: list(series.values) for series in charts[0].series}
    assert lines == {"overall": [3.5, 3.0], "overall, average": [2.5, 2.0], "web": [3.5, 3.0]}


def test_where_only_the_average_is_measured_its_figures_are_the_runs(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "run")
    run.start()
    run.take(0, 10)
    run.tell(evaluated(0, 5.0))  # before there was an average
    run.tell(evaluated(5, 3.0, averaged=True))
    log = RunFiles(run.folder).log
    assert [event.loss for event in log.measured(Evaluated)] == [3.0]
    assert log.of_average(Evaluated) == []
    assert EventLog().measured(Scored) == EventLog().of_average(Scored) == []
