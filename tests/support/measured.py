"""A module of the tests as a program of its own: it starts ranks, and writes or prints what they found."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.scripts import ROOT


def run_module(module: str, *arguments: str | Path) -> str:
    """What it prints; its errors fail the test."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-m", module, *map(str, arguments)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def measured(module: str, *arguments: str | Path) -> dict[str, Any]:
    """The JSON of the last line that it prints."""
    found: dict[str, Any] = json.loads(run_module(module, *arguments).splitlines()[-1])
    return found
