"""How long the command line takes to answer, beside Python doing nothing.

    python benchmarks/startup.py

Each command runs several times, one after the other in turn, so that a slow moment of the machine meets all
of them; the median is shown, and as a multiple of `python -c pass`, which holds where the times do not.
"""

import statistics
import subprocess
import sys
import time
from pathlib import Path

ROUNDS = 7
ROOT = Path(__file__).parents[1]
COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "trivium --help": ["-m", "trivium", "--help"],
    "trivium plan examples/stages.toml": ["-m", "trivium", "plan", "examples/stages.toml"],
}


def seconds_of(arguments: list[str]) -> float:
    begin = time.perf_counter()
    subprocess.run([sys.executable, *arguments], cwd=ROOT, check=True, capture_output=True)
    return time.perf_counter() - begin


def main() -> None:
    for arguments in COMMANDS.values():
        seconds_of(arguments)  # fills the caches of files and of compiled code
    seconds: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(ROUNDS):
        for name, arguments in COMMANDS.items():
            seconds[name].append(seconds_of(arguments))
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    base = medians["python -c pass"]
    print(f"{'':<36}{'median, s':>12}{'fastest, s':>12}{'times pass':>12}")
    for name, median in medians.items():
        print(f"{name:<36}{median:>12.3f}{min(seconds[name]):>12.3f}{median / base:>12.1f}")


if __name__ == "__main__":
    main()
