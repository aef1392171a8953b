"""A run's files, or a plan -> one HTML page that needs nothing else: data, script and style in one file."""

import json
import time
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from trivium.files import draft
from trivium.report.axis import packed_axis
from trivium.report.charts import Section, count_series
from trivium.report.parts.history import config_section, history_section
from trivium.report.parts.loss import loss_section, validation_section
from trivium.report.parts.machine import machine_section
from trivium.report.parts.plan import known_stages, plan_section
from trivium.report.parts.reading import reading_section
from trivium.report.parts.steps import speed_section, stability_section
from trivium.report.parts.texts import texts_section
from trivium.report.read import RunFiles
from trivium.report.run import ShownRun, shown_runs
from trivium.report.spikes.part import spikes_of
from trivium.report.summary import cards, comparison_section, status
from trivium.run.events import Event, Skipped, Spiked

ALL_POINTS = 160_000  # of a page: 11 bytes each, so that it stays under 3 MB
MOST_POINTS = 4_000  # of a series
LEAST_POINTS = 400
# Nothing is fetched, whatever a name or a text on the page contains; a page that follows a run asks its own server.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; connect-src {}"


def write_report(folders: list[Path], out: Path) -> Path:
    page = page_html(page_data(shown_runs([RunFiles(folder) for folder in folders])))
    return _write(page, out)


def write_plan(plan_json: dict[str, Any], config_text: str, out: Path) -> Path:
    """Write the page of a plan, before its run."""
    run = ShownRun(label=str(plan_json["run"]), plan=plan_json, config_text=config_text)
    return _write(page_html(page_data([run])), out)


def _write(page: str, out: Path) -> Path:
    with draft(out) as file:
        file.write(page.encode())
    return out


def page_data(runs: list[ShownRun]) -> dict[str, Any]:
    """Everything that the page shows, as plain values."""
    sections = [section for section in _sections(runs) if section.blocks]
    points = max(LEAST_POINTS, min(MOST_POINTS, ALL_POINTS // max(1, count_series(sections))))
    packed = [section.packed(points) for section in sections]
    return {
        "title": ", ".join(run.label for run in runs),
        "made": time.time(),
        "points": points,
        "steps": max((run.total_steps for run in runs), default=1),
        "sources": list(dict.fromkeys(name for run in runs for name in run.sources)),
        "runs": [_run(run) for run in runs],
        "sections": [section for section in packed if section["blocks"]],
    }


def _sections(runs: list[ShownRun]) -> list[Section]:
    if not runs:
        return []
    taken = any(len(run.log.steps) for run in runs)
    losses = [loss_section(runs), validation_section(runs)] if taken else []
    found = [comparison_section(runs), *losses, plan_section(runs)] if len(runs) > 1 else [plan_section(runs), *losses]
    if taken:
        found += [reading_section(runs), speed_section(runs), stability_section(runs)]
    found += [texts_section(runs), history_section(runs), machine_section(runs), config_section(runs)]
    return found


def _run(run: ShownRun) -> dict[str, Any]:
    return {
        "label": run.label,
        "status": status(run),
        "folder": run.folder,
        "last_time": run.log.last_time,
        "cards": cards(run),
        "axis": packed_axis(run),
        "stages": [{key: stage[key] for key in ("name", "start", "end")} for stage in known_stages(run.plan)],
        "spikes": spikes_of(run),
        "marks": [{"step": event.step, "kind": kind} for kind, events in _marks(run).items() for event in events],
    }


def _marks(run: ShownRun) -> Mapping[str, Sequence[Event]]:
    """The events that charts mark, by the name of the mark."""
    return {
        "resume": [event for event in run.log.resumes if event is not run.beginning],
        "fork": [run.beginning] if run.beginning and run.beginning.resumed else [],
        "spike": run.log.of(Spiked),
        "skipped": run.log.of(Skipped),
    }


def page_html(data: dict[str, Any], *, poll_seconds: float | None = None) -> str:
    """The page; with `poll_seconds` it asks its server for news at that interval."""
    parts = {
        "POLICY": POLICY.format("'none'" if poll_seconds is None else "'self'"),
        "POLL": "" if poll_seconds is None else str(round(poll_seconds * 1000)),
        "UPLOT_LICENSE": _asset("uplot/LICENSE"),
        "UPLOT_CSS": _asset("uplot/uPlot.min.css"),
        "CSS": _asset("page.css"),
        "SPIKES_CSS": _asset("spikes/spikes.css"),
        "UPLOT_JS": _asset("uplot/uPlot.iife.min.js"),
        "TOOLS": _asset("tools.js"),
        "LISTING": _asset("listing.js"),
        "JS": _asset("page.js"),
        "SPIKES_JS": _asset("spikes/spikes.js"),
        "DATA": script_safe(data),
    }
    page = _asset("page.html")
    for name, text in parts.items():
        page = page.replace(f"@{name}@", text, 1)
    return page


def script_safe(data: dict[str, Any]) -> str:
    """JSON for a script element: no text in it can end the element or open a comment."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _asset(name: str) -> str:
    return (files("trivium.report") / name).read_text(encoding="utf-8")
