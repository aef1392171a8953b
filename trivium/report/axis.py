"""A run's steps -> tokens read and seconds of training, so that charts can be drawn over either.

Both are kept at about a thousand steps, and the page interpolates between them: what a pixel of a chart shows is less.
"""

import numpy as np

from trivium.report.charts import packed_numbers
from trivium.report.run import ShownRun
from trivium.report.summary import tokens_before

POINTS = 1_000


def packed_axis(run: ShownRun) -> dict[str, str]:
    """Steps with their tokens, padding included, and the seconds of steps up to each; NaN where none was taken."""
    ends = [edge for stage in run.plan["stages"] for edge in (stage["start"], stage["end"]) if edge is not None]
    spread = np.linspace(0, run.total_steps, min(POINTS, run.total_steps + 1)).astype(np.int64)
    steps = np.unique(np.concatenate([spread, np.array(ends, np.int64), [run.total_steps]]))
    tokens = np.array([tokens_before(run.plan, int(step)) for step in steps], np.float64)
    return {
        "steps": packed_numbers(steps.astype("<u4")),
        "tokens": packed_numbers(tokens.astype("<f8")),
        "seconds": packed_numbers(_seconds(run, steps).astype("<f8")),
    }


def _seconds(
    run: ShownRun, steps: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    taken = run.log.steps.steps
    if not len(taken):
        return np.full(len(steps), np.nan)
    total = np.cumsum(np.nan_to_num(run.log.steps.column("seconds")))
    found = np.interp(steps, np.concatenate([[0], taken]), np.concatenate([[0.0], total]))
    return np.where(steps <= taken[-1], found, np.nan)
