"""`make chaos`: a hundred kills of one process and twenty of one of two ranks, with KL in their stages.

The tests do the same with fewer kills. Prints what was done; fails where a byte or a figure differs.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.support.scripts import ROOT
from tests.support.training import write_kl_stages, write_references

KILLS, RANK_KILLS = 100, 20
SEED = 11


def main() -> None:
    """Both, one after the other."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "one"
        write_references(folder)
        found = play(folder, "tests.train.chaos", str(folder), str(KILLS), str(SEED))
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(found["kinds"].items()))
        tell(f"one process: {found['kills']} kills ({kinds})", found)
        folder = Path(temporary) / "two"
        write_kl_stages(folder)
        found = play(folder, "tests.train.ranked", str(folder), "killed", str(RANK_KILLS))
        victims = [died[-1] for died in found["codes"]]
        ranks = f"{victims.count(0)} of rank 0, {victims.count(1)} of rank 1"
        tell(f"two ranks: {len(victims)} kills ({ranks})", found)


def play(folder: Path, *command: str) -> dict[str, Any]:
    """What a script that is run in a folder prints last, as JSON."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    whole = [sys.executable, "-m", *command]
    ran = subprocess.run(whole, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if ran.returncode:
        sys.exit(ran.stderr)
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


def tell(what: str, found: dict[str, Any]) -> None:
    """Print whether the run that was killed ended as the one that was not."""
    calm, killed = found["calm"], found["killed"]
    same = calm == killed
    equal = f"{len(calm['files'])} files and the figures of {len(calm['steps'])} steps are equal"
    print(f"{what}: {equal if same else 'DIFFERENT'}", flush=True)  # noqa: T201
    if not same:
        sys.exit(1)


if __name__ == "__main__":
    main()
