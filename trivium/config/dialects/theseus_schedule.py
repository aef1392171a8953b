"""theseus's learning-rate schedules: wsd, wsds and cosine_rewarm -> our schedule, or the learning rate of every stage.

Their lengths are parts of the run's steps, rounded down. A warm-up begins at a fraction of the peak.
"""

import itertools
from typing import Any

from trivium.config.dialects.theseus_data import Samplings
from trivium.config.dialects.theseus_jobs import Job
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
    """The schedule that the config names, else the job's."""
    usual = "cosine_rewarm" if theirs.has("optimization", "rewarm_lr") else job.schedule
    name = theirs.take_choice("optimization", "schedule", choices=NAMES, default=usual)
    if name == "cosine_rewarm":
        schedule = _rewarm(theirs, samplings, stages)
    else:
        schedule = _wsd(theirs, samplings) if name == "wsd" else _wsds(theirs, samplings)
    theirs.without_effect(dict.fromkeys(NOT_READ[name], f"{name} does not read it"), "optimization")
    return schedule


def _wsd(theirs: Theirs, samplings: Samplings) -> dict[str, Any]:
    """Warm-up, stable, decay."""
    parts = _part(theirs, "warmup_pct", 0.005), _part(theirs, "decay_pct", 0.01), 0.0
    return _stable(theirs, samplings, parts, WSD_FLOOR, WSD_FLOOR)


def _wsds(theirs: Theirs, samplings: Samplings) -> dict[str, Any]:
    """Warm-up, stable, decay, stable again."""
    keys = ("warmup_pct", 0.01), ("decay_pct", 0.01), ("constant_pct", 0.5)
    warmup, decay, constant = (_part(theirs, key, usual) for key, usual in keys)
    first, last = _part(theirs, "warmup_lr_mult", 0.01), _part(theirs, "decay_lr_mult", 0.1)
    return _stable(theirs, samplings, (warmup, decay, constant), first, last)


def _stable(
    theirs: Theirs, samplings: Samplings, parts: tuple[float, float, float], first: float, last: float
) -> dict[str, Any]:
    if sum(parts) > 1:
        what = f"and decay_pct and constant_pct are {sum(parts):g} of the run. Lower one of them."
        theirs.problem(("optimization", "warmup_pct"), what)
    steps = samplings.their_steps
    warmup, decay, constant = (int(steps * part) for part in parts)
    schedule = {"shape": "wsd", "decay": {"steps": decay}, "to": last}
    if warmup:
        schedule |= {"warmup": {"steps": warmup}, "warmup_from": first}
    return schedule if steps - constant == samplings.our_steps else {**schedule, "horizon": {"steps": steps - constant}}


def _rewarm(theirs: Theirs, samplings: Samplings, stages: list[dict[str, Any]]) -> dict[str, Any]:
    """Every stage warms up from the lowest rate and falls along a cosine, the later ones from `rewarm_lr`."""
    lr = theirs.take_number("optimization", "lr", default=LR, over=0)
    again = theirs.take_number("optimization", "rewarm_lr", default=REWARM_LR, over=0)
    to, warmup = _part(theirs, "min_lr_mult", 0.01), _part(theirs, "warmup_pct", 0.01)
    if again < lr * to:
        what = f"is {again:g}, under the lowest rate of {lr * to:g}. Raise it."
        theirs.problem(("optimization", "rewarm_lr"), what)
        return {}
    for stage, peak in zip(stages, itertools.chain([lr], itertools.repeat(again)), strict=False):
        rise = {"steps": max(1, int(stage["steps"] * warmup))}
        stage["lr"] = {"scale": peak / lr, "shape": "cosine", "to": to, "warmup": rise, "warmup_from": lr * to / peak}
    if theirs.has("optimization", "schedule"):
        what = 'is "cosine_rewarm", and that schedule is taken here'
        theirs.differs(("optimization", "schedule"), f"{what}; theseus's benchmark trains with wsd whatever it says.")
    return {}


def _part(theirs: Theirs, key: str, default: float) -> float:
    """A fraction: of the run, or of the peak."""
    value = theirs.take("optimization", key, default=default)
    if is_number(value) and 0 <= value <= 1:
        return float(value)
    theirs.refuse(("optimization", key), value, "It must be a number between 0 and 1.")
    return default
