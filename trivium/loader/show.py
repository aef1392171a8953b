"""The rows of a step, or the occurrences of a document, for people."""

from collections import Counter
from itertools import pairwise

import numpy as np
from rich.console import Console
from rich.text import Text

from trivium.loader.trace import PieceAddress, RowAddress, find_text, places_of, why_not_read
from trivium.plan.places import Occurrence
from trivium.plan.plan import Plan
from trivium.plan.stage import PlannedStage
from trivium.screen import one_line
from trivium.text.tokenizer import Tokenizer

SHOWN_TOKENS = 64
SHOWN_SPANS = 6


def show_rows(
    step: int, stage: PlannedStage, rows: list[RowAddress], decoder: Tokenizer | None, console: Console, *, full: bool
) -> None:
    """Print rows with source, documents, spans and text; what does not count in the loss is dim."""
    head = (
        f"step {step:,}: stage {stage.name}, {stage.size_at(step):,} rows of {stage.seq_len:,}, {stage.config.packing}"
    )
    console.print(Text(head, style="bold"), highlight=False)
    tasks = Counter(piece.task for row in rows for piece in row.pieces if piece.task is not None)
    if tasks:
        listed = ", ".join(f"{count:,} {task}" for task, count in sorted(tasks.items()))
        console.print(Text(f"pieces of tasks: {listed}"), highlight=False)
    for row in rows:
        padding = f", {row.padding:,} padding" if row.padding else ""
        title = f"row {row.row:,}: {row.source}, epoch {row.epoch + 1}, position {row.position:,}{padding}"
        console.print(Text(f"\n{title}", style="bold"), highlight=False)
        for piece in row.pieces:
            _show_piece(piece, decoder, console, full=full)


def _show_piece(piece: PieceAddress, decoder: Tokenizer | None, console: Console, *, full: bool) -> None:
    span = f"tokens {piece.start:,} to {piece.stop:,} of {piece.length:,} ({piece.extent}), {loss_spans(piece)}"
    of_task = f" ({piece.task})" if piece.task is not None else ""
    place = f"document {piece.document:,}{of_task} in {piece.file}"
    console.print(Text(one_line(f"  {place}, {span}"), style="cyan"), highlight=False)
    shown = len(piece.tokens) if full else min(SHOWN_TOKENS, len(piece.tokens))
    text = Text("    ")
    # Runs of tokens with the same loss mask: it is seen in the text itself.
    edges = [0, *(np.flatnonzero(np.diff(piece.loss_mask[:shown])) + 1).tolist(), shown]
    for first, last in pairwise(edges):
        tokens = piece.tokens[first:last].tolist()
        words = " ".join(map(str, tokens)) + " " if decoder is None else decoder.decode(tokens).replace("\n", "\n    ")
        text.append(words, style="" if piece.loss_mask[first] else "dim")
    if shown < len(piece.tokens):
        text.append(f" ... {len(piece.tokens) - shown:,} more (--full)", style="dim")
    console.print(text, highlight=False)


def loss_spans(piece: PieceAddress) -> str:
    """`31 in loss (32 to 63)`: which tokens of the document have a target that counts."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], piece.loss_mask, [False])))).reshape(-1, 2)
    shown = [f"{piece.start + first:,} to {piece.start + stop:,}" for first, stop in edges[:SHOWN_SPANS].tolist()]
    more = [f"{len(edges) - SHOWN_SPANS:,} more"] if len(edges) > SHOWN_SPANS else []
    count = f"{int(np.count_nonzero(piece.loss_mask)):,} in loss"
    return f"{count} ({', '.join(shown + more)})" if shown else count


def show_hits(plan: Plan, text: str, tokenizer: Tokenizer, most: int, console: Console) -> None:
    """Print the documents that hold a text, each with the rows that it is read in."""
    shown = 0
    for hit in find_text(plan, text, tokenizer):
        if shown == most:
            console.print(Text(f"and more: --most {most * 10:,} shows them."))
            return
        shown += 1
        times = f", {hit.count:,} times" if hit.count > 1 else ""
        title = f"document {hit.document:,} of {hit.source} in {hit.file}{times}: ... {hit.around} ..."
        console.print(Text(one_line(title), style="cyan"), highlight=False)
        found = places_of(plan, hit.source, hit.document)
        why_none = "" if found else why_not_read(plan, hit.source, hit.document)
        show_places(hit.source, hit.document, found, why_none, console)
    if not shown:
        sources = ", ".join(sorted(plan.sources)) or "any source on disk"
        console.print(Text(f"no document of {sources} holds this text."))


def show_places(source: str, document: int, found: list[Occurrence], why_none: str, console: Console) -> None:
    """Print where a document is read, or why it is not."""
    if not found:
        console.print(Text(f"document {document:,} of {source} is read in no step of this run: {why_none}."))
    for each in found:
        at = f"step {each.step:,} row {each.row:,}: stage {each.stage}, epoch {each.epoch + 1}"
        console.print(Text(f"{at}, tokens {each.start:,} to {each.stop:,}"))
