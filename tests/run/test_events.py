"""events.jsonl: append-only, torn lines tolerated, a step's last record counts."""

import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.events import step, steps_taken
from trivium.run import events
from trivium.run.event_file import EventFile
from trivium.run.events import Evaluated, Notice, StageBegan, Started, as_event, parse_event, read_events
from trivium.train.trackers.tracker import figures


def started(number: int, resumed: bool) -> Started:
    return Started(step=number, run="r", resumed=resumed, total_steps=10, world_size=1, versions={}, settings={})


def test_events_are_lines_of_json_in_the_order_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    file = EventFile(path)
    file.write(started(0, False))
    file.write(step(1, 2.5))
    file.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["event"] for line in lines] == ["started", "step"]
    assert lines[1]["loss"] == 2.5
    assert [event["event"] for event in read_events(path)] == ["started", "step"]


def test_a_torn_last_line_is_ended_and_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    file = EventFile(path)
    file.write(step(1))
    file.write(step(2))
    file.close()
    path.write_bytes(path.read_bytes()[:-20])
    file = EventFile(path)
    file.write(step(3))
    file.close()
    assert [event["step"] for event in read_events(path)] == [1, 3]


def test_a_step_that_was_taken_again_counts_by_its_last_record(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    file = EventFile(path)
    for event in (started(0, False), step(1, 9.0), step(2, 8.0), step(3, 7.0), started(1, True), step(2, 5.0)):
        file.write(event)
    file.close()
    assert {number: event["loss"] for number, event in steps_taken(path).items()} == {1: 9.0, 2: 5.0}


def test_lines_for_the_terminal() -> None:
    assert step(41, 4.12345).line() == ("step 41 (10%)  general  loss 4.1235  lr 0.02  norm 0.5  4,096 tokens/s")
    measured = {"active": 61_200_000_000, "reserved": 64_000_000_000, "retries": 0, "total": 85_000_000_000}
    assert replace(step(41), device_memory=measured).line().endswith("  4,096 tokens/s  GPU 61.2 GB")
    assert started(4, True).line() == "r: resumes at step 4 of 10"
    assert Notice(step=7, text="something").line() == "step 7: something"


def test_a_line_has_the_scores_of_an_evaluator_beside_the_validation_loss() -> None:
    nothing_held_out = Evaluated.without_validation(8, "general")
    found: dict[str, Any] = {"loss": 2.0, "bits_per_byte": 1.5, "loss_by_source": {"web": 2.0}}
    alone = replace(nothing_held_out, scores={"accuracy": 0.5})
    assert alone.line() == "step 8: accuracy 0.5"
    assert replace(nothing_held_out, **found).line() == "step 8: validation 2.0000, 1.5000 bits per byte (web 2.0000)"
    assert replace(alone, **found).line() == (
        "step 8: validation 2.0000, 1.5000 bits per byte (web 2.0000), accuracy 0.5"
    )


def test_trackers_get_figures_by_name() -> None:
    found = figures(step(1, 2.0))
    assert found["train/loss"] == 2.0
    assert found["train/loss/web"] == 2.0
    assert found["train/lr/matrix"] == 0.02
    assert found["train/epochs/web"] == 0.25
    cost = {"train/flops", "train/training_seconds", "train/seconds", "train/tokens_per_second"}
    assert {"train/mean_loss", "train/lr_multiplier", *cost} <= set(found)
    assert "train/mfu" not in found


def test_several_threads_write_every_event_once(tmp_path: Path) -> None:
    file = EventFile(tmp_path / "events.jsonl")
    begin = threading.Barrier(4)

    def write(first: int) -> None:
        begin.wait()
        for number in range(first, first + 1000):
            file.write(step(number))

    threads = [threading.Thread(target=write, args=(1000 * each,)) for each in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    file.close()
    steps = [event["step"] for event in read_events(tmp_path / "events.jsonl")]
    assert len((tmp_path / "events.jsonl").read_bytes().splitlines()) == 4000
    assert sorted(steps) == list(range(4000))


def test_a_record_is_an_object_of_its_class_unless_it_lacks_a_field(tmp_path: Path) -> None:
    said = Notice(step=3, text="told to stop")
    file = EventFile(tmp_path / "events.jsonl")
    file.write(said)
    file.close()
    (record,) = read_events(tmp_path / "events.jsonl")
    assert as_event(record) == said
    assert as_event({**record, "added_later": 1}) == said
    assert as_event({"event": "notice", "step": 3}) is None


def test_a_line_that_is_not_an_event_is_skipped() -> None:
    assert parse_event(b'{"event": "notice", "step": 3, "text": "a"}') is not None
    for line in (
        b"[" * 100_000,
        b'{"event": ["notice"], "step": 3}',
        b'{"event": "other", "step": 3}',
        b'{"event": "notice"}',
        b'{"event": "notice", "step": "3"}',
        b'{"event": "notice", "step": true}',
        b'{"event": "notice", "step": -1}',
        b'{"event": "notice", "step": 10000000000000000000000}',
        b'{"event": "notice", "step": 3, "time": "now"}',
        b'{"event": "notice", "step": 3, "time": NaN}',
    ):
        assert parse_event(line) is None, line


def test_a_record_with_a_field_of_another_type_is_no_event(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    file = EventFile(path)
    for event in (started(0, False), step(1), Evaluated.without_validation(1, "general")):
        file.write(event)
    file.close()
    records = list(read_events(path))
    assert all(as_event(record) is not None for record in records)
    harms: list[dict[str, Any]] = [{"total_steps": "ten"}, {"lr": [1]}, {"loss_by_source": {"web": {}}}]
    for record, harm in zip(records, harms, strict=True):
        assert as_event(record | harm) is None


def test_a_line_without_an_end_is_not_read_into_memory_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "events.jsonl"
    monkeypatch.setattr(events, "LONGEST_LINE", 1000)
    file = EventFile(path)
    file.write(Notice(step=1, text="first"))
    file.write(Notice(step=1, text="x" * 5000))
    file.write(Notice(step=2, text="last"))
    file.close()
    assert [event["text"] for event in read_events(path)] == ["first", "last"]


def test_events_outlive_the_deletion_of_their_file(tmp_path: Path) -> None:
    path = tmp_path / "run" / "events.jsonl"
    file = EventFile(path)
    file.write(Notice(step=1, text="first"))
    path.unlink()
    file.write(Notice(step=2, text="second"))
    assert [event["step"] for event in read_events(path)] == [1, 2]
    path.rename(tmp_path / "moved.jsonl")
    path.parent.rmdir()
    file.write(Notice(step=3, text="third"))
    assert [event["step"] for event in read_events(path)] == [1, 2, 3]
    path.unlink()
    path.write_text('{"event": "notice", "step": 9, "text": "of another process"}\n')
    file.write(Notice(step=4, text="fourth"))
    file.close()
    assert [event["step"] for event in read_events(path)] == [9, 4]


def test_what_a_stage_changes_is_shown_as_the_config_writes_it() -> None:
    changes = {"seq_len": (512, 4096), "rope": (None, {"theta": 500000.0}), "packing": ("pad", "concat")}
    began = StageBegan(step=5, stage=1, name="long", changes=changes)
    shown = 'seq_len 512 -> 4096, rope absent -> { theta = 500000.0 }, packing "pad" -> "concat"'
    assert began.line() == f"step 5: stage long: {shown}"
