"""The run's log: what was printed, warnings and log records, with times; without credentials, and bounded."""

import logging
import re
import warnings
from pathlib import Path

import pytest

from tests.support.events import step
from trivium.run.events import Failed, Notice, Started
from trivium.screen import Detail, printing
from trivium.train.screens import log
from trivium.train.screens.log import LOG, OLD_LOG, LogFile, RunLog
from trivium.train.screens.standing import Launch
from trivium.train.trainer import Trainer

TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:  |$)")
STARTED = Started(step=0, run="run", resumed=False, total_steps=1, world_size=1, versions={}, settings={})


def lines(launch: Launch) -> list[str]:
    found = (launch.folder / LOG).read_text().splitlines()
    assert all(TIME.match(line) for line in found)
    return [TIME.sub("", line, count=1) for line in found]


def test_a_log_has_the_plan_the_events_and_every_nth_step(launch: Launch) -> None:
    kept = RunLog(launch, 2)
    for event in (STARTED, step(1), step(2), Notice(step=2, text="from s3://me:secret@bucket/x")):
        kept.write(event)
    kept.close()
    found = lines(launch)
    assert found[0].startswith("run: 4 stages")
    assert found[-3] == "run: starts"
    assert found[-2].startswith("step 2 (10%)")
    assert found[-1] == "step 2: from s3://***@bucket/x"


def test_warnings_and_log_records_are_kept_until_it_is_closed(
    launch: Launch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = logging.getLogger().handlers[:], logging.getLogger().level, warnings.showwarning
    kept = RunLog(launch, 1)
    logging.getLogger("some.library").warning("no kernel for %s", "this")
    logging.getLogger("some.library").info("nobody asked")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        shown: list[object] = []
        kept._warns = lambda *arguments: shown.append(arguments)  # pytest has its own here
        warnings.showwarning = kept._keep_warning
        warnings.warn("old", UserWarning, stacklevel=1)
        assert len(shown) == 1
    kept._warns = before[2]
    kept.close()
    logging.getLogger("some.library").warning("later")
    assert (logging.getLogger().handlers[:], logging.getLogger().level, warnings.showwarning) == before
    first, second = lines(launch)
    assert first == "WARNING some.library: no kernel for this"
    assert second.startswith("UserWarning: old (")


def test_a_verbose_launch_keeps_what_libraries_tell(launch: Launch) -> None:
    with printing(Detail.VERBOSE):
        kept = RunLog(launch, 1)
    logging.getLogger("some.library").info("compiling")
    kept.close()
    assert lines(launch) == ["INFO some.library: compiling"]


def test_an_error_has_its_traceback(launch: Launch) -> None:
    kept = RunLog(launch, 1)
    try:
        raise ZeroDivisionError("nothing to divide by")
    except ZeroDivisionError:
        kept.write(Failed(step=3, why="nothing to divide by"))
    kept.close()
    found = lines(launch)
    assert found[0] == "step 3: failed: nothing to divide by"
    assert found[1].startswith("Traceback")
    assert found[-1] == "ZeroDivisionError: nothing to divide by"


def test_a_log_never_grows_beyond_two_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "MOST_BYTES", 1000)
    file = LogFile(tmp_path)
    for number in range(200):
        file.write(f"line {number}")
    assert sorted(path.name for path in tmp_path.iterdir()) == [OLD_LOG, LOG]
    assert all(path.stat().st_size <= 1000 for path in tmp_path.iterdir())
    assert (tmp_path / LOG).read_text().endswith("line 199\n")


def test_a_disk_without_room_ends_nothing(tmp_path: Path) -> None:
    LogFile(tmp_path / "absent").write("lost")


def test_a_resume_appends_and_a_failure_is_in_the_events(folder: Path) -> None:
    Trainer("run.toml", until=2, show=False).run()
    first = Path("runs/run", LOG).read_text()

    class Broken(Trainer):
        def on_step(self, step: int, stats: object) -> None:
            raise RuntimeError("out of luck")

    with pytest.raises(RuntimeError, match="out of luck"):
        Broken("run.toml", show=False).run()
    text = Path("runs/run", LOG).read_text()
    assert text.startswith(first)
    assert "failed: out of luck" in text.removeprefix(first)
    assert "RuntimeError: out of luck" in text
    assert '"event": "failed"' in Path("runs/run/events.jsonl").read_text()
