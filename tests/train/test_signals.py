"""What signals do to a run."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.training import write_four_stages
from trivium.train.signals import start_up_signals, stops_on_signals


@pytest.fixture(autouse=True)
def _own_interrupt() -> Iterator[None]:
    """Ctrl-C as a terminal's process has it; what a background shell ignores stays ignored after the test."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("first", [signal.SIGUSR1, signal.SIGTERM, signal.SIGINT])
def test_signals_after_the_first_stop_the_run_as_well(first: signal.Signals) -> None:
    said: list[str] = []
    with stops_on_signals(said.append):
        for each in (first, signal.SIGTERM, signal.SIGUSR1):
            os.kill(os.getpid(), each)
    assert said == [first.name, "SIGTERM", "SIGUSR1"]


def test_a_second_ctrl_c_ends_the_process() -> None:
    said: list[str] = []
    with stops_on_signals(said.append):
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert said == ["SIGINT"]


def test_what_comes_before_and_after_a_run_gets_its_handlers_back() -> None:
    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)}
    said: list[str] = []
    with start_up_signals(3):
        assert signal.getsignal(signal.SIGTERM) is not before[signal.SIGTERM]
        with stops_on_signals(said.append):
            os.kill(os.getpid(), signal.SIGTERM)
    assert said == ["SIGTERM"]
    assert {each: signal.getsignal(each) for each in before} == before
    assert signal.set_wakeup_fd(-1) == -1


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1"])
def test_a_signal_while_a_run_starts_ends_it_with_the_code_that_asks_for_another_launch(
    tmp_path: Path, name: str
) -> None:
    """The first of two ranks waits in a library for the second, which never comes."""
    write_four_stages(tmp_path)
    with socket.create_server(("localhost", 0)) as free:
        port = free.getsockname()[1]
    launcher = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    command = [sys.executable, "-m", "trivium", "train", "run.toml"]
    environment = {**os.environ, **launcher, "PYTHONPATH": str(Path(__file__).parents[2])}
    started = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)
    while started.poll() is None:
        try:
            socket.create_connection(("localhost", port), timeout=1).close()
            break
        except OSError:
            time.sleep(0.05)
    os.kill(started.pid, signal.Signals[name])
    _, said = started.communicate(timeout=60)
    assert (started.returncode, said) == (3, f"{name}: ended while no step was being taken. Start the run again.\n")
    assert not (tmp_path / "runs").exists()
