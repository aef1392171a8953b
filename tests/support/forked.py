"""Ranks without a launcher: forks of a process that has imported everything, so that they start in no time.

For scripts that tests execute, not for the tests' own process: a fork of a process with threads may hang.
"""

import os
import signal
import socket
import sys
from collections.abc import Callable

SECONDS = 300  # a rank that hangs is ended


def launch(size: int, act: Callable[[], object]) -> list[int]:
    """Run `act` on so many ranks, each of which ends by itself; their exit codes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = [_fork(rank, size, port, act) for rank in range(size)]
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def _fork(rank: int, size: int, port: int, act: Callable[[], object]) -> int:
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
    except SystemExit as stop:
        code = int(stop.code or 0)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
