"""Ranks without a launcher: forks of a process that has imported everything, so that they start in no time.

For scripts that tests execute, not for the tests' own process: a fork of a process with threads may hang.
"""

import os
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path

SECONDS = 300  # a rank that hangs is ended


@contextmanager
def shared_imports() -> Iterator[Callable[[], None]]:
    """For a launch: what a fork calls at its end, so that this process imports what the fork did, for the next ones."""
    before = set(sys.modules)
    with tempfile.TemporaryDirectory() as folder:
        names = Path(folder) / "modules"

        def share() -> None:
            names.write_text("\n".join(name for name in [*sys.modules] if name not in before))

        yield share
        for name in names.read_text().split() if names.exists() else ():
            with suppress(Exception):  # modules that exist by another name, or only in a fork
                import_module(name)


def launch(size: int, act: Callable[[], object]) -> list[int]:
    """Run `act` on this many ranks, each of which ends by itself; their exit codes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with shared_imports() as share:
        children = [_fork(rank, size, port, act, share) for rank in range(size)]
        return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def _fork(rank: int, size: int, port: int, act: Callable[[], object], share: Callable[[], None]) -> int:
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    signal.alarm(SECONDS)
    code = 0
    try:
        act()
        if rank == 0:
            share()
    except SystemExit as stop:
        code = int(stop.code or 0)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
