"""The live view at 80 and 120 columns, drawn on a console and by the real command in a terminal."""

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from tests.support.events import step
from tests.support.training import write_four_stages
from trivium.run.events import Evaluated, Notice
from trivium.screen import under_way
from trivium.train.screens.live import DRY_STOPS, STOPS, LiveView
from trivium.train.screens.standing import Launch

EVALUATED = replace(Evaluated.without_validation(3, "general"), loss=3.5, fingerprint="rows")
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def drawn(view: LiveView, width: int) -> list[str]:
    """The lines of the view as they are now."""
    console = Console(file=io.StringIO(), width=width, color_system=None)
    with console.capture() as captured:
        console.print(view._render())
    return captured.get().splitlines()


def open_view(launch: Launch, width: int = 100) -> LiveView:
    return LiveView(launch, Console(file=io.StringIO(), force_terminal=True, width=width))


@pytest.mark.parametrize("width", [80, 120])
def test_the_view_has_all_of_a_launch_and_fits(launch: Launch, width: int) -> None:
    view = open_view(launch, width)
    for event in (step(1), step(2, loss=2.25), EVALUATED, replace(EVALUATED, step=5, loss=3.25), step(5, loss=2.125)):
        view.write(event)
    with under_way("evaluating"):
        lines = drawn(view, width)
    view.close()
    shown = "\n".join(lines)
    plan = launch.plan()
    assert max(map(len, lines)) <= width
    assert f"step 5 of {plan.total_steps} (" in shown
    for words in ("elapsed 0:00", "left 0:00", "loss 2.1250", "4,096 tokens/s", "memory of the process"):
        assert words in shown
    assert "validation 3.2500 at step 5; was 3.5000 at step 3 (-0.2500)" in shown
    stages = [line for line in lines if re.search(r"\d+ of \d+$", line)]
    assert [line.split()[0] for line in stages] == [stage.name for stage in plan.stages]
    assert re.search(r"evaluating$", shown, re.MULTILINE)
    assert lines[-2].rstrip() == str(launch.folder)[: width - 1] + "…" if len(str(launch.folder)) > width else lines[-2]
    assert lines[-1].rstrip() == STOPS


def test_the_view_has_figures_of_the_last_step_alone(launch: Launch) -> None:
    view = open_view(launch)
    view.write(replace(step(5, loss=2.25), mean_loss=7.5))
    shown = "\n".join(drawn(view, 100))
    view.close()
    assert shown.count("loss 2.2500") == 2  # of the step, and of its source
    assert "7.5" not in shown


def test_the_view_keeps_the_devices_memory_until_it_is_compared_again(launch: Launch) -> None:
    view = open_view(launch, 120)
    sizes = {"active": 60, "reserved": 64, "total": 85, "predicted": 57}
    memory = {"retries": 2, **{name: size * 10**9 for name, size in sizes.items()}}
    view.write(replace(step(1), device_memory=memory))
    view.write(step(2))
    shown = "\n".join(drawn(view, 120))
    view.close()
    for words in ("GPU 60.0 of 85.0 GB", "reserved 64.0 GB", "predicted 57.0 GB (-5.0%)", "2 allocator retries"):
        assert words in shown


def test_a_dry_run_says_that_it_keeps_nothing(launch: Launch) -> None:
    view = open_view(replace(launch, keeps=False))
    assert drawn(view, 100)[-1].rstrip() == DRY_STOPS
    view.close()


def test_events_scroll_by_above_and_steps_only_where_asked(launch: Launch) -> None:
    for every_step in (False, True):
        file = io.StringIO()
        view = LiveView(launch, Console(file=file, force_terminal=True, width=100), every_step=every_step)
        view.write(step(1))
        view.write(Notice(step=1, text="slow"))
        view.close()
        assert "step 1: slow" in file.getvalue()
        assert ("step 1 (10%)" in file.getvalue()) is every_step


@pytest.mark.slow
def test_the_real_command_fits_terminals_of_both_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_four_stages(tmp_path)
    for columns in (80, 120):
        out = in_terminal(columns, "train", "run.toml", f"run.name=at{columns}")
        shown = [line for line in ESCAPES.sub("", out).replace("\r", "\n").splitlines() if "\x1b" not in line]
        assert max(map(len, shown)) <= columns
        text = "\n".join(shown)
        for words in (
            STOPS,
            "elapsed ",
            "tokens/s",
            "memory of the process",
            "finished: ",
            f"trivium report runs/at{columns}",
        ):
            assert words in text, words


def in_terminal(columns: int, *arguments: str) -> str:
    """What a command prints in a terminal of this width."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "trivium", *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**kept, "TERM": "xterm-256color"},
    )
    os.close(theirs)
    pieces = []
    try:
        while piece := os.read(ours, 65536):
            pieces.append(piece)
    except OSError:  # the other end is closed
        pass
    os.close(ours)
    assert process.wait() == 0, b"".join(pieces).decode()
    return b"".join(pieces).decode()
