"""theseus's learning-rate schedules: wsd, wsds and cosine_rewarm -> our schedule, or the learning rate of every stage.

Their lengths are parts of the run's steps, rounded down. A warm-up begins at a fraction of the peak.
"""

import itertools
from dataclasses import dataclass
from typing import Any

from trivium.config.dialects.theseus_data import Samplings
from trivium.config.dialects.theseus_jobs import RESET, SCHEDULE, Job
from trivium.config.dialects.translation import Theirs, is_number

LR, REWARM_LR = 3e-4, 1e-4
WSD_FLOOR = 0.01  # where their wsd starts and ends, of the peak
NAMES = {"wsd": "wsd", "wsd_reset": "wsd", "wsds": "wsds", "cosine_rewarm": "cosine_rewarm"}
NOT_READ = {
    "wsd": ("constant_pct", "warmup_lr_mult", "decay_lr_mult", "rewarm_lr", "min_lr_mult"),
    "wsds": ("rewarm_lr", "min_lr_mult"),
    "cosine_rewarm": ("decay_pct", "constant_pct", "warmup_lr_mult", "decay_lr_mult"),
}


def schedule_of(theirs: Theirs, job: Job, samplings: Samplings, stages: list[dict[str, Any]]) -> dict[str, Any]:
    """The job's schedule; without a job the one that the config names, or that its keys suggest."""
    name = _name(theirs, job)
    resets = _resets(theirs, job)
    if name == "cosine_rewarm":
        schedule = _rewarm(theirs, stages, resets)
    else:
        schedule = (_wsd if name == "wsd" else _wsds)(theirs, samplings, stages, resets)
    theirs.without_effect(dict.fromkeys(NOT_READ[name], f"{name} does not read it"), "optimization")
    return schedule


def _name(theirs: Theirs, job: Job) -> str:
    if SCHEDULE in job.reads:
        usual = "cosine_rewarm" if theirs.has("optimization", "rewarm_lr") else job.schedule
        name: str = theirs.take_choice(*SCHEDULE, choices=NAMES, default=usual)
        return name
    theirs.holds({"schedule": job.schedule}, "optimization")
    reason = f"the trainer of this job trains with {job.schedule} whatever it says"
    theirs.without_effect({"schedule": reason}, "optimization")
    return job.schedule


def _resets(theirs: Theirs, job: Job) -> bool:
    """Whether the optimizer is reset with every stage but the first."""
    given = theirs.take(*RESET, default=False) if RESET in job.reads else False
    if not isinstance(given, bool):
        theirs.refuse(RESET, given, "It must be true or false.")
    return given is True


def _wsd(theirs: Theirs, samplings: Samplings, stages: list[dict[str, Any]], resets: bool) -> dict[str, Any]:
    """Warm-up, stable, decay."""
    parts = _part(theirs, "warmup_pct", 0.005), _part(theirs, "decay_pct", 0.01), 0.0
    curve = _curve(theirs, samplings, parts, WSD_FLOOR, WSD_FLOOR)
    return _tables(theirs, curve, samplings, stages, resets)


def _wsds(theirs: Theirs, samplings: Samplings, stages: list[dict[str, Any]], resets: bool) -> dict[str, Any]:
    """Warm-up, stable, decay, stable again."""
    keys = ("warmup_pct", 0.01), ("decay_pct", 0.01), ("constant_pct", 0.5)
    warmup, decay, constant = (_part(theirs, key, usual) for key, usual in keys)
    first, last = _part(theirs, "warmup_lr_mult", 0.01), _part(theirs, "decay_lr_mult", 0.1)
    curve = _curve(theirs, samplings, (warmup, decay, constant), first, last)
    return _tables(theirs, curve, samplings, stages, resets)


@dataclass(frozen=True, slots=True)
class _Curve:
    """Their wsd in steps: it rises from `first`, and falls to `last` by step `end`, where it stays."""

    warmup: int
    decay: int
    end: int
    first: float
    last: float


def _curve(
    theirs: Theirs, samplings: Samplings, parts: tuple[float, float, float], first: float, last: float
) -> _Curve:
    """The curve whose warm-up, decay and end are parts of the run."""
    if sum(parts) > 1:
        what = f"and decay_pct and constant_pct are {sum(parts):g} of the run. Lower one of them."
        theirs.problem(("optimization", "warmup_pct"), what)
    steps = samplings.their_steps
    warmup, decay, constant = (int(steps * part) for part in parts)
    return _Curve(warmup, decay, steps - constant, first, last)


def _tables(
    theirs: Theirs, curve: _Curve, samplings: Samplings, stages: list[dict[str, Any]], resets: bool
) -> dict[str, Any]:
    """The run's schedule; every stage that resets the optimizer has its own, for theirs counts from the reset again."""
    for number, stage in enumerate(stages[1:] if resets else [], start=1):
        stage["reset_optimizer"] = True
        if stage["steps"] > curve.end:
            what = f"is true, but stage {number} goes on after the end of the decay that begins again with it."
            theirs.problem(RESET, f"{what} Write reset_optimizer: false.")
        else:
            stage["lr"] = _begun_again(curve, stage["steps"])
    schedule = {"shape": "wsd", "decay": {"steps": curve.decay}, "to": curve.last}
    if curve.warmup:
        schedule |= {"warmup": {"steps": curve.warmup}, "warmup_from": curve.first}
    return schedule if curve.end == samplings.our_steps else {**schedule, "horizon": {"steps": curve.end}}


def _begun_again(curve: _Curve, steps: int) -> dict[str, Any]:
    """The first steps of the run's curve, as a stage's own learning rate."""
    if steps < curve.warmup:
        reached = curve.first + (1 - curve.first) * steps / curve.warmup
        rise = {"warmup": {"steps": steps}, "warmup_from": curve.first / reached}
        return {"shape": "constant", "scale": reached, **rise}
    lr: dict[str, Any] = {"shape": "constant"}
    if (fallen := steps - (curve.end - curve.decay)) > 0:
        lr = {"shape": "wsd", "decay": {"steps": fallen}, "to": 1 - (1 - curve.last) * fallen / curve.decay}
    return lr | ({"warmup": {"steps": curve.warmup}, "warmup_from": curve.first} if curve.warmup else {})


def _rewarm(theirs: Theirs, stages: list[dict[str, Any]], resets: bool) -> dict[str, Any]:
    """Every stage warms up from the lowest rate and falls along a cosine, the later ones from `rewarm_lr`."""
    lr = theirs.take_number("optimization", "lr", default=LR, over=0)
    again = theirs.take_number("optimization", "rewarm_lr", default=REWARM_LR, over=0)
    to, warmup = _part(theirs, "min_lr_mult", 0.01), _part(theirs, "warmup_pct", 0.01)
    if resets:
        what = "is true, and theirs begins the first stage's cosine again with every reset."
        theirs.problem(RESET, f"{what} Write reset_optimizer: false, or schedule: wsd.")
    if again < lr * to:
        what = f"is {again:g}, under the lowest rate of {lr * to:g}. Raise it."
        theirs.problem(("optimization", "rewarm_lr"), what)
        return {}
    for stage, peak in zip(stages, itertools.chain([lr], itertools.repeat(again)), strict=False):
        rise = {"steps": max(1, int(stage["steps"] * warmup))}
        stage["lr"] = {"scale": peak / lr, "shape": "cosine", "to": to, "warmup": rise, "warmup_from": lr * to / peak}
    return {}


def _part(theirs: Theirs, key: str, default: float) -> float:
    """A fraction: of the run, or of the peak."""
    value = theirs.take("optimization", key, default=default)
    if is_number(value) and 0 <= value <= 1:
        return float(value)
    theirs.refuse(("optimization", key), value, "It must be a number between 0 and 1.")
    return default
