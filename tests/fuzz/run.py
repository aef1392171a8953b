"""Read changed input, case after case: `python -m tests.fuzz.run [--cases 500] [--seed 0] [TARGET ...]`.

A case may end well, or with an error that the command line prints in one line. Anything else is a failure: another
exception, ten seconds without an end, a signal. Each target runs in a process of its own, so that a signal ends that
one alone; a failure names its seed, and `--seed SEED --cases 1` repeats it.
"""

import argparse
import contextlib
import faulthandler
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path

from tests.fuzz.targets import TARGETS, Target

MOST_SECONDS = 10
MOST_MEMORY = 6 << 30  # of address space beyond what the libraries take
ROOT = Path(__file__).parents[2]


def run_case(target: Target, sound: Path, seed: int) -> BaseException | str:
    """Change a copy of sound input and read it; "read", "refused", or the exception that no user should see."""
    from trivium.errors import TriviumError

    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        case = Path(folder) / "case"
        shutil.copytree(sound, case)
        os.environ["TRIVIUM_CACHE"] = str(Path(folder) / "cache")
        target.change(case, rng)
        faulthandler.dump_traceback_later(MOST_SECONDS, exit=True)
        try:
            with contextlib.chdir(folder):
                target.read(case, rng)
        except TriviumError as error:
            return "refused" if str(error) else error
        except OSError as error:  # which the command line prints, where a file is named
            return "refused" if error.filename is not None else error
        except BaseException as error:  # libraries written in Rust have panics that are no exceptions
            return error
        finally:
            faulthandler.cancel_dump_traceback_later()
    return "read"


def run_target(name: str, cases: int, first: int) -> int:
    """Run cases of one target in this process; the number of failures."""
    target, failures, refused = TARGETS[name], 0, 0
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with tempfile.TemporaryDirectory() as folder:
        sound = Path(folder) / "sound"
        sound.mkdir()
        target.make(sound)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (used + MOST_MEMORY, used + MOST_MEMORY))
        for seed in range(first, first + cases):
            Path(folder, "seed").write_text(str(seed))
            error = run_case(target, sound, seed)
            refused += error == "refused"
            if isinstance(error, BaseException):
                failures += 1
                sys.stdout.write(f"{name}: seed {seed}: {type(error).__name__}: {str(error)[:200]}\n")
                if failures <= 3:
                    sys.stdout.write("".join(traceback.format_exception(error)[-4:]))
                sys.stdout.flush()
    read = cases - failures - refused
    sys.stdout.write(f"{name}: {cases:,} cases: {read:,} read, {refused:,} refused, {failures:,} failed\n")
    return failures


def run_all(names: Sequence[str], cases: int, first: int) -> int:
    """Run each target in a process of its own; prints what failed and how many cases were read."""
    failed = 0
    for name in names:
        command = [sys.executable, "-m", "tests.fuzz.run", "--here", name, "--cases", str(cases), "--seed", str(first)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
        ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        failed += ran.returncode != 0
        sys.stdout.write(ran.stdout)
        if ran.returncode not in (0, 1) or (ran.returncode and not ran.stdout):
            sys.stdout.write(f"{name}: ended with {ran.returncode}\n{ran.stderr[-3000:]}\n")
        sys.stdout.flush()
    sys.stdout.write(f"{cases * len(names):,} cases, {failed} of {len(names)} targets failed\n")
    return failed


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("targets", nargs="*")
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--here", help="Run this target in this process.")
    asked = parser.parse_args()
    if asked.here:
        sys.exit(min(1, run_target(asked.here, asked.cases, asked.seed)))
    sys.exit(min(1, run_all(asked.targets or list(TARGETS), asked.cases, asked.seed)))


if __name__ == "__main__":
    main()
