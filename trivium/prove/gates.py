"""A config -> three gates, each passed or not, with what was compared.

repeatability    two launches of one config end with the same bits
equivalence      on other ranks every step has the same batch, and the same loss but for rounding
restart replay   ranks that are killed and started again end with the bits of those that were not
"""

import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trivium.config.load import load
from trivium.errors import UsageError
from trivium.loader.loader import refuse_uneven
from trivium.plan.make import make_plan
from trivium.plan.plan import CompletePlan
from trivium.plan.settings import mesh_shape
from trivium.prove.compare import Comparison, compare_checkpoints, compare_figures
from trivium.prove.given import given_batches
from trivium.prove.launch import Launcher
from trivium.run.events import read_events
from trivium.run.folder import RunFolder

TOLERANCES = {"float32": 1e-4, "bfloat16": 2e-2}  # of a loss, relative: sums are taken in another order


@dataclass(frozen=True, slots=True)
class Gate:
    """What was proven, or what differs."""

    name: str
    compared: str
    differences: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return not self.differences


@dataclass(frozen=True, slots=True)
class Proof:
    """All gates, and what they were passed on."""

    ranks: int
    against: int
    steps: int
    settings: dict[str, Any]
    versions: dict[str, str]
    gates: tuple[Gate, ...]

    @property
    def passed(self) -> bool:
        return all(gate.passed for gate in self.gates)


@dataclass(frozen=True, slots=True)
class Question:
    """What is to be proven, of which config, on which ranks of this machine."""

    config: Path
    overrides: Sequence[str] = ()
    dialect: str | None = None
    ranks: int = 2
    against: int = 1  # the ranks of the other launch
    steps: int | None = None  # the first ones; absent: all of them

    def answer(self, say: Callable[[str], None]) -> Proof:
        """Launch the config five times. The runs are deleted where all gates are passed."""
        if self.ranks == self.against:
            raise UsageError(f"--against: is {self.against}, as --ranks is. Give two numbers that differ.")
        plan = self._plan()
        refuse_uneven(plan, 0, self.ranks, mesh_shape(plan.config.engine.parallel, self.ranks))
        refuse_uneven(plan, 0, self.against)
        steps = min(self.steps or plan.total_steps, plan.total_steps)
        if steps < 4:
            raise UsageError(f"--steps: {steps} steps are too few to be killed and to resume in. Give 4 or more.")
        overrides = [*self.overrides]
        if plan.config.engine.deterministic is None:
            overrides.append("engine.deterministic=true")
        folder = Path(tempfile.mkdtemp(prefix="trivium-prove-"))
        launcher = Launcher(self.config, overrides, self.dialect, steps, folder)
        proof = self._launch(launcher, say)
        if proof.passed:
            shutil.rmtree(folder)
        else:
            say(f"the runs are kept in {folder}")
        return proof

    def _plan(self) -> CompletePlan:
        loaded = load(self.config, self.overrides, dialect=self.dialect, world_size=self.ranks)
        with loaded.places.named():
            return make_plan(loaded.config, prepare=True).complete()

    def _launch(self, launcher: Launcher, say: Callable[[str], None]) -> Proof:
        ranks, against, steps = self.ranks, self.against, launcher.steps
        say(f"{steps:,} steps on {show_ranks(ranks)}, as all others are compared with")
        first = launcher.run("first", ranks)
        say(f"the same on {show_ranks(ranks)} again")
        gates = [repeatability(first, launcher.run("second", ranks))]
        say(f"the same on {show_ranks(against)}")
        other = launcher.run("other", against, "engine.parallel=")
        gates.append(equivalence(first, other))
        say(f"the same on {show_ranks(ranks)}, killed and started again")
        taken = first.last_step() or steps  # fewer, where a stage ended on a figure
        gates.append(restart_replay(first, launcher.run("killed", ranks, dies_at=taken // 2)))
        started = started_events(first)[0]
        return Proof(ranks, against, steps, started["settings"], started["versions"], tuple(gates))


def repeatability(first: RunFolder, second: RunFolder) -> Gate:
    """Whether two runs ended with the same bits."""
    found = compared(first, second)
    return Gate("repeatability", counted(found), tuple(found.differences))


def restart_replay(calm: RunFolder, killed: RunFolder) -> Gate:
    """Whether a run that was killed and resumed ended with the bits of one that was not."""
    found = compared(calm, killed)
    resumed = [event["step"] for event in started_events(killed)][1:]
    if not any(resumed):
        found.differences.append(f"{killed.path}: the second launch did not resume from a checkpoint")
    what = f"resumed at step {max(resumed, default=0):,}; {counted(found)}"
    return Gate("restart replay", what, tuple(found.differences))


def equivalence(first: RunFolder, other: RunFolder) -> Gate:
    """Whether engines on different ranks were given the same batches, and had the same losses but for rounding."""
    one, another = given_batches(first), given_batches(other)
    ours, theirs = losses_of(first), losses_of(other)
    steps = sorted({step - 1 for step in ours} | one.keys() | another.keys())
    batches = [step for step in steps if one.get(step) is None or one[step] != another.get(step)]
    precision = started_events(first)[0]["settings"]["precision"]
    differences = [f"step {step:,}: the batches differ" for step in batches]
    differences += [f"{other.path}: has other steps"] * (ours.keys() != theirs.keys())
    apart = {step: abs(ours[step] / theirs[step] - 1) for step in ours.keys() & theirs.keys()}
    allowed = TOLERANCES[precision]
    differences += [
        f"step {step:,}: the loss is {ours[step]:.6f} and {theirs[step]:.6f}"
        for step, distance in sorted(apart.items())
        if not distance <= allowed
    ]
    most = max(apart.values(), default=0.0)
    losses = f"losses differ by {most:.1e} at most, {allowed:.0e} allowed"
    return Gate("equivalence", f"{len(steps) - len(batches):,} batches equal by hash; {losses}", tuple(differences))


def compared(one: RunFolder, other: RunFolder) -> Comparison:
    """The last checkpoints and all figures of two runs."""
    found = Comparison()
    ours, theirs = one.checkpoints(), other.checkpoints()
    found.check("the last step", ours[-1].step, theirs[-1].step)
    if not found.differences:
        compare_checkpoints(found, ours[-1], theirs[-1])
    compare_figures(found, one.events, other.events)
    return found


def counted(found: Comparison) -> str:
    return f"{found.tensors:,} tensors and {found.figures:,} figures equal" if not found.differences else "not equal"


def losses_of(run: RunFolder) -> dict[int, float]:
    return {event["step"]: event["loss"] for event in read_events(run.events) if event["event"] == "step"}


def started_events(run: RunFolder) -> list[dict[str, Any]]:
    return [event for event in read_events(run.events) if event["event"] == "started"]


def show_ranks(ranks: int) -> str:
    return "1 rank" if ranks == 1 else f"{ranks:,} ranks"
