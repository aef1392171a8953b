"""What each stage gained and forgot, from runs' files alone."""

import io
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from trivium.errors import UsageError
from trivium.report.changes import Change
from trivium.report.compare import compare_runs, show_changes
from trivium.run.event_file import EventFile
from trivium.run.events import Evaluated, Scored, StageBegan, Started


def started(step: int) -> Started:
    return Started(step=step, run="mid", resumed=step > 0, total_steps=20, world_size=1, versions={}, settings={})


def stage(step: int, name: str) -> StageBegan:
    return StageBegan(step=step, stage=0, name=name, changes={})


def evaluated(step: int, stage: str, rows: str = "rows", **losses: float) -> Evaluated:
    figures: dict[str, Any] = {
        "fingerprint_by_source": dict.fromkeys(losses, rows),
        "loss_by_source": losses,
        "bits_per_byte_by_source": {name: loss / 2 if name == "web" else None for name, loss in losses.items()},
    }
    return Evaluated(step=step, stage=stage, loss=0.0, bits_per_byte=None, tokens=1, seconds=0.0, **figures)


def scored(step: int, overall: float, questions: str = "questions", **scores: float) -> Scored:
    rest = {"right": 0, "questions": 1, "chance": 0.0, "centred": 0.0}
    figures: Any = {name: {**rest, "score": score} for name, score in scores.items()}
    asked: Any = {"fingerprint": questions, "fingerprint_by_task": dict.fromkeys(scores, questions)}
    return Scored(step=step, scores=figures, overall=overall, seconds=0.0, **asked)


def write_run(folder: Path, name: str, *events: Any) -> Path:
    folder.mkdir()
    planned = {"steps": 10, "tokens": 80, "seq_len": 8, "batch_size": 1, "packing": "bestfit", "fade_rows": 0}
    planned |= {"shares": None, "lr_multiplier": {}}
    stages = [{**planned, "name": "base", "start": 0, "end": 10}, {**planned, "name": "mid", "start": 10, "end": 20}]
    (folder / "plan.json").write_text(json.dumps({"run": name, "stages": stages, "sources": {}}))
    file = EventFile(folder / "events.jsonl")
    for event in events:
        file.write(event)
    file.close()
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Two stages, the second gone through twice: what a resume undid does not count."""
    return write_run(
        tmp_path / "mid",
        "mid",
        started(0),
        stage(0, "base"),
        evaluated(0, "base", web=5.0),
        evaluated(5, "base", web=3.0),
        evaluated(10, "base", web=2.0),
        scored(10, 0.1, spelling=0.0, counting=0.2),
        stage(10, "mid"),
        evaluated(10, "mid", web=2.5, talk=6.0),
        evaluated(15, "mid", web=9.0, talk=9.0),
        started(12),
        evaluated(20, "mid", web=3.0, talk=1.0),
        scored(20, 0.6, spelling=0.8, counting=0.4),
    )


def shown(*folders: Path) -> str:
    text = io.StringIO()
    show_changes(compare_runs(folders), Console(file=text, width=80))
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def test_figures_before_and_after_each_stage_stand_in_one_table(run: Path) -> None:
    assert shown(run) == (
        "validation before and after each stage\n"
        "stage  source  run    nats   after   change  bits/byte   after\n"
        "base   web     mid  5.0000  2.0000  -3.0000     2.5000  1.0000\n"
        "mid    web     mid  2.5000  3.0000  +0.5000     1.2500  1.5000\n"
        "       talk    mid  6.0000  1.0000  -5.0000\n"
        "\n"
        "scores before and after each stage\n"
        "stage  task          run  before  after  change\n"
        "base   spelling      mid          0.000\n"
        "       counting      mid          0.200\n"
        "       all, centred  mid          0.100\n"
        "mid    spelling      mid   0.000  0.800  +0.800\n"
        "       counting      mid   0.200  0.400  +0.200\n"
        "       all, centred  mid   0.100  0.600  +0.500"
    )


def test_runs_stand_beside_one_another(run: Path, tmp_path: Path) -> None:
    other = write_run(
        tmp_path / "kl",
        "kl",
        started(0),
        stage(10, "mid"),
        evaluated(10, "mid", web=2.5),
        evaluated(20, "mid", web=2.6),
    )
    assert shown(run, other).splitlines()[3:6] == [
        "mid    web     mid  2.5000  3.0000  +0.5000     1.2500  1.5000",
        "               kl   2.5000  2.6000  +0.1000     1.2500  1.3000",
        "       talk    mid  6.0000  1.0000  -5.0000",
    ]
    both = compare_runs([run, other])
    assert [(each.run, each.stage) for each in both] == [("mid", "base"), ("mid", "mid"), ("kl", "mid")]
    assert both[2].sources["web"]["loss"] == Change(2.5, 2.6)
    assert asdict(both[2])["sources"]["web"]["loss"] == {"before": 2.5, "after": 2.6}


def test_figures_of_other_rows_are_named_and_not_shown(run: Path, tmp_path: Path) -> None:
    other = write_run(
        tmp_path / "kl",
        "kl",
        started(0),
        evaluated(10, "mid", "others", web=2.5, talk=6.0),
        evaluated(15, "mid", "others", web=2.6),
        evaluated(20, "mid", "rows", talk=2.0),
    )
    assert shown(run, other).splitlines()[3:10] == [
        "mid    web     mid  2.5000  3.0000  +0.5000     1.2500  1.5000",
        "               kl",
        "       talk    mid  6.0000  1.0000  -5.0000",
        "               kl           2.0000",
        "mid, web, kl: not shown, for it was evaluated on other rows than mid.",
        "mid, talk, kl: earlier evaluations of this stage read other rows, and do not",
        "count.",
    ]
    (alone,) = [change for change in compare_runs([other]) if change.stage == "mid"]
    assert alone.fingerprints == {"web": "others", "talk": "rows"}
    assert "2.6000" in shown(other)


def test_scores_of_other_questions_are_named_and_not_shown(run: Path, tmp_path: Path) -> None:
    other = write_run(
        tmp_path / "kl",
        "kl",
        started(0),
        scored(10, 0.3, "others", spelling=0.3, counting=0.3),
        scored(15, 0.4, "others", spelling=0.4),
        scored(20, 0.5, "questions", counting=0.5),
    )
    assert shown(run, other).splitlines()[14:] == [
        "mid    spelling      mid   0.000  0.800  +0.800",
        "                     kl",
        "       counting      mid   0.200  0.400  +0.200",
        "                     kl           0.500",
        "       all, centred  mid   0.100  0.600  +0.500",
        "                     kl           0.500",
        "base, spelling, kl: not shown, for other questions were asked than of mid.",
        "base, counting, kl: not shown, for other questions were asked than of mid.",
        "base, all, centred, kl: not shown, for other questions were asked than of mid.",
        "mid, spelling, kl: not shown, for other questions were asked than of mid.",
        "mid, counting, kl: earlier scores of this stage are of other questions, and do",
        "not count.",
    ]
    assert "0.400" in shown(other)


def test_what_a_resume_undid_does_not_count(tmp_path: Path) -> None:
    undone = write_run(
        tmp_path / "undone",
        "undone",
        started(0),
        stage(10, "mid"),
        evaluated(10, "mid", web=2.0),
        evaluated(15, "mid", web=9.0),
        started(12),
    )
    (change,) = compare_runs([undone])
    assert change.sources["web"]["loss"] == Change(2.0, None)


def test_runs_of_one_name_are_told_apart_by_folder(run: Path, tmp_path: Path) -> None:
    other = write_run(tmp_path / "again", "mid", started(0), stage(0, "base"), evaluated(0, "base", web=4.0))
    assert {each.run for each in compare_runs([run, other])} == {str(run), str(other)}


def test_a_run_without_figures_is_told_how_to_get_some(tmp_path: Path) -> None:
    empty = write_run(tmp_path / "empty", "empty", started(0))
    with pytest.raises(UsageError) as caught:
        compare_runs([empty])
    assert str(caught.value) == (
        f"{empty}: nothing was evaluated. Hold something out, and write evaluate = true in the stages that count."
    )
