"""What was decided in a run is on the disk before it is acted on, and is read again as it was, or refused."""

import json
from pathlib import Path

import pytest

from trivium.errors import ResumeError
from trivium.run.decisions import (
    BatchResized,
    Decision,
    StageEnded,
    as_plain,
    copy_decisions,
    from_plain,
    in_force,
    keep_decisions,
    known_at,
    next_end,
    read_decisions,
    run_decisions,
)
from trivium.run.folder import RunFolder

FIRST, SECOND = BatchResized(step=4, size=6), BatchResized(step=9, size=8)


def test_decisions_are_appended_and_read_in_the_order_in_which_they_were_made(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    keep_decisions(folder, ())
    assert not folder.path.exists()
    keep_decisions(folder, (FIRST,))
    written = folder.decisions.read_bytes()
    keep_decisions(folder, (FIRST,))
    assert folder.decisions.read_bytes() == written
    keep_decisions(folder, (FIRST, SECOND))
    assert folder.decisions.read_bytes().startswith(written)
    assert read_decisions(folder.decisions) == run_decisions(folder) == (FIRST, SECOND)


def test_a_launch_that_was_planned_with_other_decisions_is_refused(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    keep_decisions(folder, (FIRST, SECOND))
    with pytest.raises(ResumeError, match="has other decisions than when this launch was planned"):
        keep_decisions(folder, (FIRST,))


def test_a_line_that_a_kill_has_truncated_was_never_a_decision(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    keep_decisions(folder, (FIRST, SECOND))
    whole = folder.decisions.read_bytes()
    last = whole.splitlines(keepends=True)[-1]
    for length in range(len(last)):
        folder.decisions.write_bytes(whole.removesuffix(last) + last[:length])
        assert read_decisions(folder.decisions) == (FIRST,)
        keep_decisions(folder, (FIRST, SECOND))
        assert folder.decisions.read_bytes() == whole


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("{", ": is corrupt: truncated, or changed since it was written. Put it back."),
        ("[]", ", entry 1: is not a decision that this version knows. Put it back."),
        ('{"decision": "lr", "step": 4}', ", entry 1: is not a decision that this version knows. Put it back."),
        ('{"decision": ["batch_size"]}', ", entry 1: is not a decision that this version knows. Put it back."),
        ('{"decision": "batch_size", "step": 4}', ", entry 1: size: Field required. Put it back."),
        (
            '{"decision": "batch_size", "step": 4, "size": 0}',
            ", entry 1: size: Input should be greater than or equal to 1. Put it back.",
        ),
        (
            '{"decision": "batch_size", "step": true, "size": 2}',
            ", entry 1: step: Input should be a valid integer. Put it back.",
        ),
    ],
)
def test_a_line_that_is_no_decision_is_refused(tmp_path: Path, line: str, what: str) -> None:
    file = tmp_path / "decisions.jsonl"
    file.write_text(line + "\n")
    with pytest.raises(ResumeError) as error:
        read_decisions(file)
    assert str(error.value) == f"{file}{what}"


def test_a_file_larger_than_any_runs_decisions_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "decisions.jsonl"
    file.write_bytes(b" " * (4 << 20) + b"\n")
    with pytest.raises(ResumeError, match="has more than 4,194,304 bytes, which no run's decisions have"):
        read_decisions(file)


def test_a_later_entry_takes_the_place_of_those_at_its_step_and_after_it() -> None:
    again = BatchResized(step=4, size=2)
    assert in_force([FIRST, SECOND]) == [FIRST, SECOND]
    assert in_force([FIRST, SECOND, again]) == [again]
    assert in_force([again, SECOND, BatchResized(step=6, size=3)]) == [again, BatchResized(step=6, size=3)]


def test_a_size_that_is_decided_before_a_stages_end_undoes_it_and_one_at_its_step_does_not() -> None:
    end = StageEnded(step=4, until="validation loss of code below 1.2", figure=1.1)
    assert in_force([end, FIRST, SECOND]) == in_force([FIRST, end, SECOND]) == [end, FIRST, SECOND]
    assert in_force([end, BatchResized(step=3, size=2)]) == [BatchResized(step=3, size=2)]
    assert in_force([SECOND, end]) == [end]  # the steps from 4 on are others now


def test_a_stages_end_is_known_once_its_step_is_reached_and_with_it_what_came_later() -> None:
    end = StageEnded(step=6, until="score needle at least 0.95", figure=1.0)
    made = (FIRST, end, SECOND)
    assert known_at(made, 5) == (FIRST,)
    assert known_at(made, 6) == known_at(made, 60) == made
    assert next_end(made, 5) == end
    assert next_end(made, 6) is None
    assert end.line() == "at step 6: the stage ends, with score needle at least 0.95 (1)"


def test_plain_values_come_back_as_they_were() -> None:
    decisions: tuple[Decision, ...] = (FIRST, SECOND, StageEnded(step=9, until="score arc at least 0.3", figure=0.31))
    assert from_plain(json.loads(json.dumps(as_plain(decisions))), "here") == decisions
    assert FIRST.line() == "from step 4 on: 6 rows in a step, to the stage's end"


def test_a_second_place_has_the_decisions_of_the_run(tmp_path: Path) -> None:
    own, second = RunFolder(tmp_path / "own"), RunFolder(tmp_path / "second")
    copy_decisions(own, second)
    assert not second.path.exists()
    keep_decisions(own, (FIRST,))
    copy_decisions(own, second)
    keep_decisions(own, (FIRST, SECOND))
    copy_decisions(own, second)
    assert run_decisions(RunFolder(tmp_path / "lost"), second) == (FIRST, SECOND)
