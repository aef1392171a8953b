"""Steps that spiked or were skipped -> what the page shows when one is clicked; bounded, as plain values.

All of it is what the run wrote down when it happened, so that a page needs neither the sources nor a tokenizer. A page
has the last `MOST_SPIKES` of a run, each with `MOST_ROWS` rows: some kilobytes a spike. `spikes.js` draws them.
"""

from collections.abc import Sequence
from math import isfinite
from typing import Any

import numpy as np

from trivium.loader.trace import by_loss
from trivium.report.read import KeptPiece, KeptRow
from trivium.report.run import ShownRun
from trivium.run.events import Skipped, Spiked
from trivium.why.override import fork_command, lines_without, overrides_without, rerun_command
from trivium.why.rows import outlying

MOST_SPIKES = 50
MOST_ROWS, MOST_PIECES = 8, 6
STEPS_AFTER = 4  # that a rerun takes too


def spikes_of(run: ShownRun) -> list[dict[str, Any]]:
    """A run's spikes and skipped steps whose rows were kept, by step."""
    events: list[Spiked | Skipped] = [*run.log.of(Spiked), *run.log.of(Skipped)]
    found = sorted((event for event in events if run.rows.get(str(event.rows))), key=lambda event: event.step)
    return [_spike(run, event) for event in found[-MOST_SPIKES:]]


def _spike(run: ShownRun, event: Spiked | Skipped) -> dict[str, Any]:
    rows = run.rows[str(event.rows)]
    known = [loss for row in rows if (loss := row.get("loss")) is not None]
    losses = np.array(known, np.float32)
    has_losses = len(known) == len(rows)  # an earlier version kept none
    order = by_loss(losses).tolist() if has_losses else list(range(len(rows)))
    suspects = _documents(run, [rows[at] for at in order[: outlying(losses)]]) if has_losses else {}
    what = f"loss {event.loss:.4f}, over {event.limit:.4f}" if isinstance(event, Spiked) else f"skipped: {event.why}"
    return {
        "update": event.step,  # where charts have it
        "step": event.step - 1,
        "stage": event.stage,
        "what": what,
        "rows": [_row(rows[at]) for at in order[:MOST_ROWS]],
        "more": max(0, len(rows) - MOST_ROWS),
        "lines": lines_without(suspects, _known(run)),
        "commands": _commands(run, event.step - 1, suspects),
    }


def _row(row: KeptRow) -> dict[str, Any]:
    loss = row.get("loss")
    return {
        "row": row.get("row", 0),
        "source": row["source"],
        "loss": "" if loss is None else f"{loss:.4f}" if isfinite(loss) else str(loss),
        "pieces": [_piece(row["source"], piece) for piece in row["pieces"][:MOST_PIECES]],
        "more": max(0, len(row["pieces"]) - MOST_PIECES),
    }


def _piece(source: str, piece: KeptPiece) -> dict[str, str]:
    span = f"tokens {piece['start']:,} to {piece['stop']:,}" if "start" in piece and "stop" in piece else ""
    return {"name": f"{source}:{piece['document']}", "span": span, "text": piece.get("text") or ""}


def _source(run: ShownRun, name: str) -> dict[str, Any]:
    found = run.config.get("sources", {})
    table = found.get(name) if isinstance(found, dict) else None
    return table if isinstance(table, dict) else {}


def _documents(run: ShownRun, rows: Sequence[KeptRow]) -> dict[str, list[int]]:
    """The documents of rows by the source that has them; those of streams have no numbers to be named by."""
    found: dict[str, dict[int, None]] = {}
    for row in rows:
        name = str(_source(run, row["source"]).get("from", row["source"]))
        if _source(run, name).get("kind") != "stream":
            found.setdefault(name, {}).update((piece["document"], None) for piece in row["pieces"])
    return {name: list(documents) for name, documents in found.items()}


def _known(run: ShownRun) -> dict[str, list[int]]:
    """The documents that the config leaves out already."""
    given = {name: _source(run, name).get("without") for name in run.config.get("sources", {})}
    return {
        name: [each for each in value if type(each) is int] for name, value in given.items() if isinstance(value, list)
    }


def _commands(run: ShownRun, step: int, suspects: dict[str, list[int]]) -> list[list[str]]:
    """What to type, each with a few words before it."""
    where = run.folder or run.label
    commands = [["Look at it:", f"trivium why {where} --step {step}"]]
    if suspects:
        before = [int(state["step"]) for state in run.checkpoints if state["step"] <= step]
        overrides = overrides_without(suspects, _known(run))
        commands += [
            ["See what that changes:", rerun_command(where, step, step + STEPS_AFTER, suspects)],
            ["Go on without them:", fork_command(where, max(before, default=None), overrides)],
        ]
    return commands
