"""Kill runs at random moments: `python -m tests.chaos.run [--kills 200] [--seed 0] [--jobs 1] [SCENARIO ...]`.

Each scenario has a run that is never disturbed. Others of the same config, each started as a process of its own, are
killed or told to stop again and again, and started again, until they come to their end; then everything that they have
written is compared. Prints a table, and ends with 1 where anything differs: the folders and the seed are kept then.
"""

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.compare import leftovers
from tests.chaos.launch import Blow, Launch, Pace
from tests.chaos.scenarios import SCENARIOS, Scenario


@dataclass(slots=True)
class Tally:
    """What a scenario has gone through."""

    kills: int = 0
    signals: int = 0
    torn: int = 0  # kills and signals that left something half written
    lost: int = 0  # folders
    launches: int = 0
    runs: int = 0
    tensors: int = 0  # of token files: files
    figures: int = 0
    differences: list[str] = field(default_factory=list)

    def counts(self) -> list[int]:
        """The numbers of a row of the table; a restart is a launch that went on with what another had left."""
        restarts = self.launches - self.runs
        ran = [self.kills, self.signals, self.torn, self.lost, restarts, self.runs]
        return [*ran, self.tensors, self.figures, len(self.differences)]


HEADINGS = ["", "kills", "signals", "torn", "lost", "restarts", "runs", "tensors", "figures", "differences"]


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def play(name: str, kills: int, seed: int, folder: Path) -> Tally:
    """Disturb runs of a scenario until this many kills have been dealt out; stops at the first difference."""
    scenario, tally, chance = SCENARIOS[name], Tally(), random.Random(f"{seed} {name}")
    folder.mkdir()
    scenario.input(folder)
    undisturbed(scenario, folder / "calm", scenario.keeps_all)
    pace = undisturbed(scenario, folder / "pace", ())
    say(f"{name}: undisturbed {pace.start:.1f} s to begin, {pace.work:.1f} s to its end")
    while tally.kills < kills and not tally.differences:
        disturbed = folder / f"run-{tally.runs}"
        tally.runs += 1
        disturb(scenario, disturbed, pace, chance, tally, kills)
        if not tally.differences:
            compared = scenario.compare(folder / "calm", disturbed)
            tally.tensors += compared.tensors
            tally.figures += compared.figures
            tally.differences += compared.differences
        say(f"{name}: {tally.kills} of {kills} kills, {len(tally.differences)} differences")
        if not tally.differences:
            shutil.rmtree(disturbed)
    return tally


def undisturbed(scenario: Scenario, folder: Path, more: Sequence[str]) -> Pace:
    """Let the command come to its end; how long it took."""
    open_folder(scenario, folder)
    with open(folder / "log", "ab") as log:
        launch = Launch(scenario, folder, more, log)
        launch.wait_to_begin()
        begun = time.monotonic()
        launch.wait(3600)
        launch.end()
    if any(process.returncode for process in launch.processes):
        sys.exit((folder / "log").read_text())
    return Pace(begun - launch.since, time.monotonic() - begun)


def disturb(scenario: Scenario, folder: Path, pace: Pace, chance: random.Random, tally: Tally, kills: int) -> None:
    """Launch a command again and again until it comes to its end; what must not happen is a difference."""
    open_folder(scenario, folder)
    while True:
        blow = Blow.draw(scenario, pace, chance)
        tally.launches += 1
        with open(folder / "log", "ab") as log:
            outcome = Launch(scenario, folder, (), log).run(blow if tally.kills < kills else None, chance)
        tally.kills += outcome.was_hit and blow.signal == signal.SIGKILL
        tally.signals += outcome.was_hit and blow.signal != signal.SIGKILL
        tally.torn += outcome.was_hit and any(path.name != ".prepare" for path in leftovers(folder))
        if outcome.fault is not None:
            tally.differences.append(f"{folder}: {outcome.fault}")
        if outcome.fault is not None or outcome.is_finished:
            return
        if scenario.loses is not None and chance.random() < 0.25:
            shutil.rmtree(folder / scenario.loses, ignore_errors=True)
            tally.lost += 1


def open_folder(scenario: Scenario, folder: Path) -> None:
    folder.mkdir()
    if scenario.config:
        (folder / "run.toml").write_text(scenario.config)


def table(tallies: Mapping[str, Tally]) -> str:
    """The figures of all scenarios, and their sums."""
    counts = {name: tally.counts() for name, tally in tallies.items()}
    counts["all"] = [sum(column) for column in zip(*counts.values(), strict=True)]
    rows = [HEADINGS, *([name, *(f"{count:,}" for count in row)] for name, row in counts.items())]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=", ".join(SCENARIOS))
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="Scenarios that are played at once.")
    asked = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has what it starts in the background ignore it
    names = asked.scenarios or list(SCENARIOS)
    if not SCENARIOS.keys() >= set(names):
        parser.error(f"the scenarios are {', '.join(SCENARIOS)}")
    shares = {name: SCENARIOS[name].share for name in names}
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    with ThreadPoolExecutor(asked.jobs) as threads:
        playing = {
            name: threads.submit(play, name, -(-asked.kills * share // sum(shares.values())), asked.seed, folder / name)
            for name, share in shares.items()
        }
        try:
            tallies = {name: each.result() for name, each in playing.items()}
        except KeyboardInterrupt:  # the launches come to their end by themselves
            os._exit(130)
    say(table(tallies))
    differences = [each for tally in tallies.values() for each in tally.differences]
    if differences:
        say("\n".join(differences[:50]))
        say(f"seed {asked.seed}; the folders are in {folder}")
        sys.exit(1)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
