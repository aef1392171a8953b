"""The rows of a step, or the places of a document, for people."""

from itertools import pairwise

import numpy as np
from rich.console import Console
from rich.text import Text

from trivium.address import PieceAddress, Place, RowAddress
from trivium.data.tokenizer import Tokenizer
from trivium.plan.stage import PlannedStage

SHOWN_TOKENS = 64


def show_rows(
    step: int, stage: PlannedStage, rows: list[RowAddress], decoder: Tokenizer | None, console: Console, *, full: bool
) -> None:
    """Print rows with source, documents, spans and text; what is not learnt is dim."""
    head = f"step {step:,}: stage {stage.name}, {stage.batch_size:,} rows of {stage.seq_len:,}, {stage.said.packing}"
    console.print(Text(head, style="bold"), highlight=False)
    for row in rows:
        padding = f", {row.padding:,} padding" if row.padding else ""
        title = f"row {row.row:,}: {row.source}, epoch {row.epoch + 1}, position {row.position:,}{padding}"
        console.print(Text(f"\n{title}", style="bold"), highlight=False)
        for piece in row.pieces:
            _show_piece(piece, decoder, console, full=full)


def _show_piece(piece: PieceAddress, decoder: Tokenizer | None, console: Console, *, full: bool) -> None:
    learnt = int(np.count_nonzero(piece.learnt))
    span = f"tokens {piece.start:,} to {piece.stop:,} of {piece.length:,} ({piece.extent}), {learnt:,} learnt"
    console.print(Text(f"  document {piece.document:,} in {piece.file}, {span}", style="cyan"), highlight=False)
    shown = len(piece.tokens) if full else min(SHOWN_TOKENS, len(piece.tokens))
    text = Text("    ")
    # Runs of tokens that are learnt alike: the mask is seen in the text itself.
    edges = [0, *(np.flatnonzero(np.diff(piece.learnt[:shown])) + 1).tolist(), shown]
    for first, last in pairwise(edges):
        tokens = piece.tokens[first:last].tolist()
        words = " ".join(map(str, tokens)) + " " if decoder is None else decoder.decode(tokens).replace("\n", "\n    ")
        text.append(words, style="" if piece.learnt[first] else "dim")
    if shown < len(piece.tokens):
        text.append(f" ... {len(piece.tokens) - shown:,} more (--full)", style="dim")
    console.print(text, highlight=False)


def show_places(source: str, document: int, places: list[Place], console: Console) -> None:
    """Print where a document is read."""
    if not places:
        console.print(f"document {document:,} of {source} is read in no step of this run.", highlight=False)
        return
    for place in places:
        console.print(
            f"step {place.step:,} row {place.row:,}: stage {place.stage}, epoch {place.epoch + 1}, "
            f"tokens {place.start:,} to {place.stop:,}",
            highlight=False,
        )
