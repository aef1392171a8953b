"""The head of a page: a run's status and its main numbers; and several runs compared."""

from math import isfinite
from typing import Any

import numpy as np

from trivium.config.keys import flat_keys
from trivium.config.numbers import show_count
from trivium.report.charts import PageTable, Section, duration
from trivium.report.plan_file import batches_of
from trivium.report.run import ShownRun
from trivium.run.events import Evaluated, Failed, Scored

Record = dict[str, Any]


def status(run: ShownRun) -> str:
    """`finished`, `stopped`, `failed`, or `open` while no end is written: the run trains, or was killed."""
    if run.beginning is None:
        return "planned"
    if run.log.of(Failed):
        return "failed"
    end = run.log.end
    return "open" if end is None else "finished" if end.finished else "stopped"


def cards(run: ShownRun) -> list[list[str]]:
    """Label, number and a note, for the head of the page."""
    columns = run.log.steps
    if run.beginning is None:
        return _plan_cards(run)
    taken = run.taken
    tokens = tokens_before(run.plan, taken)
    found = [
        ["steps", f"{taken:,}", f"of {run.total_steps:,}"],
        ["tokens", show_count(tokens), f"of {show_count(tokens_before(run.plan, run.total_steps))}"],
        ["time in steps", duration(float(np.nansum(columns.column("seconds")))), f"{_speed(run)} tokens/s, median"],
    ]
    best, final = best_evaluation(run), last(run, "mean_loss")
    since = _measured_since(run)
    if best is not None:
        found.append(["best validation loss", f"{best.loss:.4f}", f"step {best.step:,}{since}"])
    lowest = lowest_bits(run)
    if lowest is not None:
        found.append(["lowest bits per byte", f"{lowest.bits_per_byte:.4f}", f"step {lowest.step:,}{since}"])
    if final is not None:
        found.append(["training loss", f"{final:.4f}", "running mean, last step"])
    return found


def _plan_cards(run: ShownRun) -> list[list[str]]:
    stages = run.plan["stages"]
    total = run.plan.get("total_steps")
    tokens = run.plan.get("total_tokens")
    return [
        ["stages", f"{len(stages):,}", ", ".join(stage["name"] for stage in stages)],
        ["steps", "?" if total is None else f"{total:,}", "" if total else "not known yet"],
        ["tokens", "?" if tokens is None else show_count(tokens), "padding included"],
        ["sources", f"{len(run.sources):,}", ", ".join(run.sources)],
    ]


def tokens_before(plan: Record, step: int) -> int:
    """Tokens of the steps before this one, padding included."""
    known = (stage for stage in plan["stages"] if stage["start"] is not None)
    return sum(
        batches_of(stage).rows_before(
            max(0, min(step, step if stage["end"] is None else stage["end"]) - stage["start"])
        )
        * stage["seq_len"]
        for stage in known
    )


def comparable(run: ShownRun) -> list[Evaluated]:
    """The evaluations that were measured on the same as the last one."""
    events = _with_loss(run)
    return [event for event in events if event.fingerprint == events[-1].fingerprint]


def _with_loss(run: ShownRun) -> list[Evaluated]:
    return [event for event in run.log.measured(Evaluated) if event.loss is not None]


def _measured_since(run: ShownRun) -> str:
    """`, of those since step 400`, where earlier evaluations were measured on something else."""
    same = comparable(run)
    return "" if len(same) == len(_with_loss(run)) else f", of those since step {same[0].step:,}"


def other_rows(runs: list[ShownRun]) -> str:
    """A sentence for each run whose validation was measured on something else than the first's; "" where none was."""
    last = [(run.label, events[-1].fingerprint) for run in runs if (events := _with_loss(run))]
    others = [label for label, fingerprint in last[1:] if fingerprint != last[0][1]]
    first = last[0][0] if last else ""
    return " ".join(f"Validation of {each} cannot be compared with {first}'s: other rows were read." for each in others)


def other_questions(runs: list[ShownRun]) -> str:
    """A sentence for each run and task with other questions than those of the first run that was asked; "" for none."""
    first: dict[str, tuple[str, str]] = {}
    sentences = []
    for run in runs:
        last = {task: event.fingerprint_of(task) for event in run.log.measured(Scored) for task in event.scores}
        for task, fingerprint in last.items():
            label, asked = first.setdefault(task, (run.label, fingerprint))
            if fingerprint != asked:
                what = "other questions were asked"
                sentences.append(f"Scores in {task} of {run.label} cannot be compared with {label}'s: {what}.")
    return " ".join(sentences)


def best_evaluation(run: ShownRun) -> Evaluated | None:
    known = [(event.loss, event) for event in comparable(run) if event.loss is not None and isfinite(event.loss)]
    return min(known, key=lambda pair: pair[0])[1] if known else None


def lowest_bits(run: ShownRun) -> Evaluated | None:
    """The evaluation with the lowest bits per byte; None where no tokenizer's bytes are known."""
    bits = [(event.bits_per_byte, event) for event in comparable(run)]
    known = [(each, event) for each, event in bits if each is not None and isfinite(each)]
    return min(known, key=lambda pair: pair[0])[1] if known else None


def last(run: ShownRun, name: str) -> float | None:
    """A figure at the last step that has it."""
    _, values = run.log.steps.known(name)
    return float(values[-1]) if len(values) else None


def _speed(run: ShownRun) -> str:
    _, values = run.log.steps.known("tokens_per_second")
    return show_count(round(float(np.median(values)))) if len(values) else "?"


def comparison_section(runs: list[ShownRun]) -> Section:
    """Several runs compared: final figures, keys of the config that differ, where they part."""
    labels = [run.label for run in runs]
    figures = [[name, *(_figure(make, run) for run in runs)] for name, make in FIGURES.items()]
    alike = not other_rows(runs)
    figures += [[name, *(_figure(make, run) for run in runs)] for name, make in VALIDATION.items() if alike]
    flat = [{key: str(value) for key, value in flat_keys(run.config).items()} for run in runs]
    keys = sorted({key for each in flat for key in each})
    differing = [
        [key, *values] for key in keys if len(set(values := [each.get(key, "not given") for each in flat])) > 1
    ]
    numbers = tuple(range(1, len(runs) + 1))
    return Section(
        "comparison",
        "Comparison",
        [
            PageTable("final-figures", "Final figures", ["", *labels], figures, numbers=numbers),
            PageTable("differing-keys", "Keys of the config that differ", ["key", *labels], differing),
        ],
        " ".join([*(f"{run.label}: {shared_past(runs[0], run)}" for run in runs[1:]), other_rows(runs)]).strip(),
    )


FIGURES = {
    "status": status,
    "steps": lambda run: f"{run.taken:,}",
    "tokens": lambda run: show_count(tokens_before(run.plan, run.taken)),
    "training loss, last step": lambda run: f"{last(run, 'loss'):.4f}",
    "training loss, running mean": lambda run: f"{last(run, 'mean_loss'):.4f}",
    "tokens/s, median": _speed,
}
VALIDATION = {  # of runs that were evaluated on the same rows
    "validation loss, last": lambda run: f"{run.log.measured(Evaluated)[-1].loss:.4f}",
    "validation loss, best": lambda run: f"{(best_evaluation(run) or run.log.measured(Evaluated)[-1]).loss:.4f}",
    "bits per byte, lowest": lambda run: f"{(lowest_bits(run) or run.log.measured(Evaluated)[-1]).bits_per_byte:.4f}",
    "bits per byte, last": lambda run: f"{run.log.measured(Evaluated)[-1].bits_per_byte:.4f}",
}


def _figure(make: Any, run: ShownRun) -> str:
    try:
        return str(make(run))
    except (IndexError, TypeError):  # the run has no such figure
        return ""


def shared_past(first: ShownRun, other: ShownRun) -> str:
    """`the same losses as a up to step 400.`: the steps that two runs have in common."""
    if isinstance(other.lineage, dict):
        return f"forked from {other.lineage['run']} at step {other.lineage['step']:,}."
    steps, ours, theirs = np.intersect1d(first.log.steps.steps, other.log.steps.steps, return_indices=True)
    if not len(steps):
        return f"no step in common with {first.label}."
    same = first.log.steps.column("loss")[ours] == other.log.steps.column("loss")[theirs]
    if same.all():
        return f"the same losses as {first.label} at all {len(steps):,} steps that both have."
    where = int(same.argmin())
    if where == 0:
        return f"parts from {first.label} at step {int(steps[0]):,}."
    return f"the same losses as {first.label} up to step {int(steps[where - 1]):,}."
