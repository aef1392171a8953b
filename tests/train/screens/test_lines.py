"""Plain lines: every nth step with its times, all other events, in one piece; quiet ones."""

import io
from dataclasses import replace

import pytest

from tests.support.events import step
from trivium.run.events import Ended, Evaluated, Failed, Notice, SaveFailed
from trivium.train.screens.lines import Lines, QuietLines
from trivium.train.screens.standing import Launch

EVALUATED = replace(Evaluated.without_validation(5, "general"), loss=3.0, fingerprint="rows")
ENDED = Ended(step=9, finished=True, steps=9, peak_memory=10**9, training_seconds=1.0, best={}, world_size=1)


def test_a_line_is_written_in_one_piece(launch: Launch) -> None:
    pieces: list[str] = []

    class Watched(io.StringIO):
        def write(self, text: str) -> int:
            pieces.append(text)
            return len(text)

    Lines(launch, 1, Watched()).write(Notice(step=3, text="slow"))
    assert pieces == ["step 3: slow\n"]


def test_steps_have_times_and_evaluations_what_was_before(launch: Launch) -> None:
    file = io.StringIO()
    lines = Lines(launch, 2, file)
    for event in (step(1), step(2), EVALUATED, replace(EVALUATED, step=7, loss=2.5)):
        lines.write(event)
    taken, first, second = file.getvalue().splitlines()
    assert taken.startswith("step 2 (10%)  general  loss 1.0000")
    assert taken.endswith("0:00, 0:00 left")
    assert first == "step 5: validation 3.0000 ()"
    assert second == "step 7: validation 2.5000 (); was 3.0000 at step 5 (-0.5000)"


def test_a_quiet_launch_prints_errors_and_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    quiet = QuietLines()
    for event in (step(1), EVALUATED, Notice(step=1, text="slow")):
        quiet.write(event)
    assert capsys.readouterr() == ("", "")
    quiet.write(SaveFailed(step=3, why="full", reason="cadence"))
    quiet.write(Failed(step=4, why="memory"))
    quiet.write(ENDED)
    printed = capsys.readouterr()
    assert printed.out == ENDED.line() + "\n"
    assert printed.err.splitlines() == [
        "step 3: not saved (cadence): full; the last good checkpoint stays",
        "step 4: failed: memory",
    ]
