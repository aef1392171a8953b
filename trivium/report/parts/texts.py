"""Texts that the model wrote, grouped by prompt: how the same beginning was continued as training went on."""

import re

from trivium.report.charts import Block, Section, Texts
from trivium.report.run import ShownRun
from trivium.run.events import Sampled

BLANK_LINES = re.compile(r"\n(?:[ \t]*\n){2,}")
MOST_TEXTS = 40  # of a prompt: the last ones


def texts_section(runs: list[ShownRun]) -> Section:
    """What was written after each prompt, step by step; of several runs side by side."""
    found: dict[str, list[tuple[int, int, str, str]]] = {}
    for run in runs:
        for event in run.log.of(Sampled):
            entry = (
                event.step,
                run.number,
                run.label_of(f"step {event.step:,}"),
                readable(f"{event.prompt}{event.text}"),
            )
            found.setdefault(event.prompt, []).append(entry)
    blocks: list[Block] = []
    for number, (prompt, texts) in enumerate(found.items()):
        entries = [(label, text) for _, _, label, text in sorted(texts)[-MOST_TEXTS:]]
        note = f"The last {MOST_TEXTS:,} of {len(texts):,}." if len(texts) > MOST_TEXTS else ""
        blocks.append(Texts(f"texts-{number}", f"After {prompt!r}" if prompt else "After nothing", entries, note))
    lead = "What the model wrote after each prompt. Several blank lines are shown as one."
    return Section("texts", "Texts", blocks, lead)


def readable(text: str) -> str:
    """A text without the many blank lines that an untrained model writes."""
    return BLANK_LINES.sub("\n\n", text).rstrip() or "(only white space)"
