"""What was trained, and on what: the model's size, memory, commit, host, devices and versions; run beside run."""

from collections.abc import Callable
from typing import Any

import numpy as np

from trivium.config.numbers import show_count
from trivium.report.charts import Block, PageTable, Section, show_value
from trivium.report.run import ShownRun
from trivium.run.events import Ended, Started

Facts = dict[str, str]


def machine_section(runs: list[ShownRun]) -> Section:
    """Tables with a column for each run."""
    tables: dict[str, tuple[str, Callable[[ShownRun], Facts], str]] = {
        "model": ("Parameters and memory", model_facts, "The most of any step; of the process, rank 0's."),
        "machine": (
            "Machine",
            machine_facts,
            "Of the last launch. The commit is the one that the config's folder is at.",
        ),
        "versions": ("Versions", version_facts, ""),
    }
    blocks: list[Block] = []
    for name, (title, facts, note) in tables.items():
        found = [facts(run) for run in runs]
        rows = [
            [key, *(each.get(key, "") for each in found)]
            for key in dict.fromkeys(key for each in found for key in each)
        ]
        columns = ["", *(run.label if len(runs) > 1 else "" for run in runs)]
        blocks.append(PageTable(name, title, columns, rows, note if rows else "", folded=name == "versions"))
    return Section("machine", "Model and machine", blocks)


def model_facts(run: ShownRun) -> Facts:
    """Parameters by the plan, and memory as it was measured."""
    model = run.plan.get("model")
    found: Facts = {}
    if isinstance(model, dict) and type(model.get("parameters")) is int:
        found["parameters"] = f"{model['parameters']:,} ({show_count(model['parameters'])})"
    for key in ("layers", "width", "heads", "vocab"):
        if isinstance(model, dict) and type(model.get(key)) is int:
            found[key] = f"{model[key]:,}"
    peaks = [event.peak_memory for event in run.log.of(Ended)]
    process = max([*peaks, _most(run, "memory")], default=0)
    if process:
        found["memory of the process"] = f"{process / 1e9:.2f} GB"
    for key in ("active", "reserved", "total"):
        size = _most(run, f"device_memory/{key}")
        if size:
            found[f"memory of a device, {key}"] = f"{size / 1e9:.2f} GB"
    return found


def _most(run: ShownRun, name: str) -> float:
    _, values = run.log.steps.known(name)
    return float(np.max(values)) if len(values) else 0.0


def machine_facts(run: ShownRun) -> Facts:
    """Where the last launch ran."""
    last = _last_launch(run)
    if last is None:
        return {}
    return {"ranks": f"{last.world_size:,}", **_shown(last.machine)}


def version_facts(run: ShownRun) -> Facts:
    last = _last_launch(run)
    return {} if last is None else _shown(last.versions)


def _last_launch(run: ShownRun) -> Started | None:
    started = run.log.of(Started)
    return started[-1] if started else None


def _shown(facts: Any) -> Facts:
    return {str(key): show_value(value) for key, value in facts.items()}
