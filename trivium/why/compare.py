"""`trivium rerun`: steps taken again beside the recorded ones, and the documents behind a spike, for people."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trivium.config.sources import StreamSource
from trivium.errors import UsageError
from trivium.loader.trace import origins_of
from trivium.screen import one_line
from trivium.why.bisect import Document, behind, reruns_needed
from trivium.why.override import lines_without
from trivium.why.recorded import RecordedStep, recorded_steps
from trivium.why.rerun import Rerun, Retaken, chosen_documents, open_rerun
from trivium.why.rows import base_name, run_config
from trivium.why.show import figure


def rerun_steps(run: Path, first: int, last: int, without: Sequence[str], console: Console) -> dict[str, Any]:
    """Take steps again, and print them beside the recorded ones; gives the same as plain values."""
    refuse_span(first, last)
    steps = recorded_steps(run)
    chosen = chosen_documents(run_config(run), without)
    with open_rerun(run, first, last=last, chosen=chosen) as rerun:
        taken = rerun.take(last, chosen)
        if rerun.is_main:
            _show_rerun(run, rerun, taken, steps, without, console)
        return _plain(rerun, taken, steps, without)


def bisect_steps(run: Path, first: int, last: int, over: float | None, console: Console) -> dict[str, Any]:
    """Find the documents behind a spike, and print what was found; gives the same as plain values."""
    refuse_span(first, last)
    with open_rerun(run, first, over, last=last) as rerun:
        rerun.keep_place()
        taken = rerun.take(last, {})
        spike = next((each for each in taken if each.is_spike), None)
        if spike is None:
            what = f"steps {first:,} to {last:,}: none of them spikes when it is taken again"
            raise UsageError(f"{what}. Give the loss that is too high, such as --over {_high(taken)}.")
        documents = _documents(rerun, first, spike.step)

        def say(text: str) -> None:
            if rerun.is_main:
                console.print(Text(one_line(text)), highlight=False, soft_wrap=True)

        for line in _announcement(rerun, spike, documents):
            say(line)
        count = 0

        def is_gone(chosen: Sequence[Document]) -> bool:
            nonlocal count
            count += 1
            found = rerun.take(last, _by_source(chosen))
            gone = not any(each.is_spike for each in found)
            say(f"rerun {count}: without {_named(chosen)}: {'no spike' if gone else 'it spikes'}, {_highest(found)}")
            return gone

        found = behind(documents, is_gone)
        if rerun.is_main:
            _show_found(rerun, found, console)
    return {"step": spike.step, "reruns": count, "documents": None if found is None else list(map(str, found))}


def refuse_span(first: int, last: int) -> None:
    if last < first:
        raise UsageError(f"--to: is {last:,}, before --from {first:,}. Give the first and the last step.")


def _high(taken: Sequence[Retaken]) -> str:
    losses = sorted(each.loss for each in taken)
    return "3.5" if not losses else f"{(losses[-1] + losses[0]) / 2:.2f}"


def _documents(rerun: Rerun, first: int, last: int) -> list[Document]:
    """Every document of the steps up to a spike, those of the spike first; of streams none, which have no numbers."""
    config, loader = rerun.config, rerun.loop.trainer.loader
    found: dict[Document, None] = {}
    for step in range(last, first - 1, -1):
        for row in origins_of(loader, step):
            name = base_name(config, row.source)
            if not isinstance(config.sources[name], StreamSource):
                found |= {Document(name, piece.document): None for piece in row.pieces}
    if not found:
        raise UsageError("all rows of these steps are of streams, whose documents have no numbers to be left out by.")
    return list(found)


def _announcement(rerun: Rerun, spike: Retaken, documents: Sequence[Document]) -> Iterator[str]:
    """What spikes, and how many reruns it takes to find the documents behind it."""
    one, more = reruns_needed(len(documents))
    place = f"from checkpoint {rerun.checkpoint:,}" if rerun.checkpoint else "from the first step"
    yield f"step {spike.step:,} spikes, {_highest([spike])}, {place}."
    count = f"{len(documents):,} documents were read up to it"
    yield f"{count}: {one} reruns at the most for one of them, {more} more for each further one."


def _highest(taken: Sequence[Retaken]) -> str:
    highest = max(taken, key=lambda each: each.loss, default=None)
    return "" if highest is None else f"highest loss {highest.loss:.4f}"


def _named(chosen: Sequence[Document]) -> str:
    return str(chosen[0]) if len(chosen) == 1 else f"{len(chosen):,} documents"


def _by_source(documents: Sequence[Document]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for each in documents:
        found.setdefault(each.source, []).append(each.number)
    return found


def _show_found(rerun: Rerun, found: Sequence[Document] | None, console: Console) -> None:
    if found is None:
        what = "The loss spikes without all of them too: no document of these steps causes it."
        console.print(Text(f"{what} Look at the learning rate, or begin at an earlier step: --from."), soft_wrap=True)
        return
    sources = rerun.config.sources
    named = ", ".join(map(str, found))
    alone = len(found) == 1
    cause, them = ("causes", "it") if alone else ("cause", "them")
    words = f"{named} {cause} the spike: without {them} the loss does not spike."
    console.print(Text(f"\n{words}", style="bold"), highlight=False)
    known = {name: sources[name].without or () for name in sources}
    for line in lines_without(_by_source(found), known):
        console.print(Text(f"  {line}"), highlight=False, soft_wrap=True)


def _show_rerun(
    run: Path,
    rerun: Rerun,
    taken: Sequence[Retaken],
    steps: Mapping[int, RecordedStep],
    without: Sequence[str],
    console: Console,
) -> None:
    how = f"without {', '.join(without)}" if without else "as they were"
    place = f"checkpoint {rerun.checkpoint:,}" if rerun.checkpoint else "the first step"
    head = f"{run}: steps {rerun.first:,} to {taken[-1].step:,} again, {how}, from {place}" if taken else "no step"
    console.print(Text(one_line(head), style="bold"), highlight=False)
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for header in ("step", "loss", "again", "change", "grad norm", "again", "change"):
        table.add_column(header, justify="right")
    table.add_column("")
    for each in taken:
        was = steps.get(each.step)
        table.add_row(*map(Text, _cells(each, was)))
    console.print(table)
    for line in conclusion(rerun, taken, steps, without):
        console.print(Text(one_line(line)), highlight=False, soft_wrap=True)


def _cells(each: Retaken, was: RecordedStep | None) -> list[str]:
    loss, norm = (None, None) if was is None else (was.loss, was.grad_norm)
    before = "" if was is None else "skipped" if was.skipped is not None else "spiked" if was.is_trouble else ""
    again = "" if not each.is_spike else "skipped again" if each.skipped is not None else "spikes again"
    cells = [f"{each.step:,}", figure(loss), figure(each.loss), _change(loss, each.loss)]
    return [*cells, figure(norm), figure(each.grad_norm), _change(norm, each.grad_norm), again or before]


def _change(was: float | None, now: float) -> str:
    if was is None:
        return ""
    return "same" if was == now else f"{now - was:+.4f}"


def is_same(taken: Sequence[Retaken], steps: Mapping[int, RecordedStep]) -> bool:
    """Whether all losses and norms are the recorded ones, bit for bit."""
    known = [(steps[each.step], each) for each in taken if each.step in steps and steps[each.step].loss is not None]
    return all((was.loss, was.grad_norm) == (now.loss, now.grad_norm) for was, now in known)


def conclusion(
    rerun: Rerun, taken: Sequence[Retaken], steps: Mapping[int, RecordedStep], without: Sequence[str]
) -> list[str]:
    """Whether the steps that nothing was left out of gave the recorded losses, and whether a spike is gone."""
    plain = [*rerun.before, *([] if without else taken)]
    lines = []
    if plain:
        what = f"steps {plain[0].step:,} to {plain[-1].step:,}, of which nothing was left out,"
        same = is_same(plain, steps)
        lines.append(f"{what} gave {'the recorded losses and norms, bit for bit' if same else 'other losses'}.")
        if not same and rerun.different:
            listed = "; ".join(f"{key}: {value}" for key, value in rerun.different.items())
            lines.append(f"What may change bits is not as it was: {listed}.")
    spiked = [each.step for each in taken if each.step in steps and steps[each.step].is_trouble]
    if without and spiked:
        left = [each.step for each in taken if each.is_spike]
        lines.append(
            "The spike is gone." if not left else f"It still spikes, at {', '.join(map('{:,}'.format, left))}."
        )
    return lines


def _plain(
    rerun: Rerun, taken: Sequence[Retaken], steps: Mapping[int, RecordedStep], without: Sequence[str]
) -> dict[str, Any]:
    rows = []
    for each in taken:
        was = steps.get(each.step)
        recorded = {"loss": None, "grad_norm": None} if was is None else {"loss": was.loss, "grad_norm": was.grad_norm}
        again = {"loss": each.loss, "grad_norm": each.grad_norm, "spike": each.is_spike}
        rows.append({"step": each.step, "recorded": recorded, "again": again})
    same = is_same([*rerun.before, *([] if without else taken)], steps)
    return {"checkpoint": rerun.checkpoint, "without": list(without), "same_bits": same, "steps": rows}
