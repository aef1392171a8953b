"""A script on two ranks, each a process of its own."""

import os
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def on_two_ranks(script: str, *arguments: str, expected: tuple[int, int] = (0, 0)) -> list[str]:
    """What each rank printed; where they are expected to fail, what went to standard error."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    ranks = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    environment = {**os.environ, **ranks, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script, *arguments],
            env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [process.communicate(timeout=120) for process in processes]
    assert tuple(process.returncode for process in processes) == expected, said
    return [err if any(expected) else out for out, err in said]
