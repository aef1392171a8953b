"""What signals do to a run."""

import os
import signal
from collections.abc import Iterator

import pytest

from trivium.train.session import stops_on_signals


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
