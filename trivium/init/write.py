"""A choice -> a config as TOML, every value with a comment that says why."""

import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from trivium.config.numbers import show_count
from trivium.errors import UsageError
from trivium.files import draft
from trivium.init.choose import Choice, ChosenSource, ChosenStage, rounded_shares
from trivium.init.look import NOT_A_NAME

COLUMN, WIDEST = 44, 120  # where comments begin, and lines end
WRITTEN = "# Written by trivium init for "
ASKED = "# Asked for with "
PROMPT = re.compile(r"(?:[^\W\d_][\w'-]*[ ,]+){2,5}[^\W\d_][\w'-]*")
MOST_PROMPT = 40
BAD_LINES = 0.001  # what a source may have without a key


def write_config(choice: Choice, out: Path, options: Sequence[str] = ()) -> None:
    """Write the config; UsageError where the file exists, or is among the texts."""
    refuse_out(choice.found.folder, out)
    with draft(out) as file:
        file.write(config_text(choice, out, options).encode())


def given_options(minutes: float | None, tokenizer: str | None) -> list[str]:
    """The options of a command as they are typed."""
    options = [] if minutes is None else ["--minutes", f"{minutes:g}"]
    return options if tokenizer is None else [*options, "--tokenizer", tokenizer]


def refuse_out(folder: Path, out: Path) -> None:
    """UsageError where a config may not be written: over a file, or into the folder that is read."""
    if os.path.lexists(out):
        raise UsageError(f"--out: {out} exists already. Name another file, or remove it.")
    if out.resolve().is_relative_to(folder.resolve()) or Path.cwd().resolve().is_relative_to(folder.resolve()):
        what = f"{out} would be in {folder}, and what a run writes would be read as text the next time"
        raise UsageError(f"--out: {what}. Stand in another folder, and write the config there.")


def config_text(choice: Choice, out: Path, options: Sequence[str] = ()) -> str:
    """The whole file."""
    first, *others = _lines(choice, out)
    asked = [f"{ASKED}{shlex.join(options)}"] if options else []
    return "\n".join([first, *asked, *others]) + "\n"


def folder_of(config: Path) -> str | None:
    """The folder for which `trivium init` wrote a config; None where another hand wrote it."""
    with open(config, encoding="utf-8", errors="replace") as file:
        first = file.readline(4096).rstrip("\n")
    return first.removeprefix(WRITTEN).removesuffix(".") if first.startswith(WRITTEN) else None


def was_asked_with(config: Path, options: Sequence[str]) -> bool:
    """Whether a config that `trivium init` wrote was asked for with these options."""
    with open(config, encoding="utf-8", errors="replace") as file:
        second = [file.readline(4096).rstrip("\n") for _ in range(2)][1]
    return second == f"{ASKED}{shlex.join(options)}"


def run_name(folder: Path) -> str:
    """What a run is called: after its folder."""
    return NOT_A_NAME.sub("-", folder.resolve().name.lower()).strip("-") or "first"


def _lines(choice: Choice, out: Path) -> Iterator[str]:
    spec = choice.spec
    yield f"{WRITTEN}{choice.found.folder.resolve()}."
    yield "# Sizes are estimates until the text is prepared; trivium plan then has exact ones. Change what you like."
    yield f"#   trivium train {shlex.quote(str(out))}, then trivium report runs/{run_name(choice.found.folder)}"
    yield from ("", "[run]", _line(f'name = "{run_name(choice.found.folder)}"', "its folder in runs/"), "", "[model]")
    per_weight = choice.tokens / spec.matrix_parameters
    size = f"{show_count(spec.parameters)} weights; it reads {per_weight:.0f} tokens for each weight of its matrices"
    yield _line(f"layers = {choice.rung.layers}", size)
    yield _line(f"width = {choice.rung.width}", _why_this_size(choice))
    if choice.tokenizer.vocab_is_needed:
        yield _line(f"vocab = {choice.tokenizer.vocab}", choice.tokenizer.why)
    yield from _tokenizer(choice)
    yield from ("", "[optimizer]", _line(f"lr = {choice.rung.lr:g}", "of AdamW; smaller models take larger ones"))
    yield _line("grad_clip = 1.0", "a bad step changes little")
    warmup = max(1, min(100, choice.steps // 20))
    yield from ("", "[schedule]", _line(f"warmup = {{ steps = {warmup} }}", "then constant, until a stage lowers it"))
    yield from ("", "[checkpoint]", _line("every = { minutes = 2 }", "what a crash costs at most"))
    yield _line("keep = 2", "the last ones")
    yield from _evaluate(choice)
    for source in choice.sources:
        yield from _source(source)
    yield from ("", "[defaults]", _line(f"seq_len = {choice.seq_len}", "tokens in a row"))
    yield _line(f"batch_size = {choice.rows}", f"rows in a step: {choice.rows * choice.seq_len:,} tokens")
    if choice.micro_rows is not None:
        yield _line(
            f"engine = {{ micro_batch_size = {choice.micro_rows} }}", "rows in one pass, so that memory suffices"
        )
    if any(source.validation is not None for source in choice.sources):
        yield _line("evaluate = true", "before and after every stage")
    for stage in choice.stages:
        yield from _stage(stage, choice)


def _why_this_size(choice: Choice) -> str:
    """What bounds the model: the text, the time, or the largest shape that is known here."""
    if choice.is_bound_by_text:
        return "a larger one would learn your text by heart: there is no more of it"
    memory = f"{choice.memory / 1e9:.1f} of {choice.machine.memory / 1e9:.0f} GB"
    return f"the largest that reads enough in {choice.minutes:g} minutes here ({memory} of memory)"


def _tokenizer(choice: Choice) -> Iterator[str]:
    config = choice.tokenizer.config
    if config is None:
        return
    yield from ("", "[tokenizer]")
    if config.kind == "bytes":
        yield _line('kind = "bytes"', choice.tokenizer.why)
        return
    yield _line(f"path = {json.dumps(config.path)}", "its folder" if config.train else choice.tokenizer.why)
    if config.train is not None:
        yield _line(f"train = {{ vocab = {config.train.vocab} }}", choice.tokenizer.why)


def _evaluate(choice: Choice) -> Iterator[str]:
    if not any(source.validation is not None for source in choice.sources):
        return
    yield from ("", "[evaluate]", _line(f"every = {max(1, choice.steps // 8)}", "steps: eight points in the charts"))
    yield _line('tokens = "32k"', "of each source's held-out documents: seconds")
    prompts = _prompts(choice)
    if prompts:
        yield _line("max_new_tokens = 40", "of a text")
        yield _line(f"prompts = {json.dumps(prompts, ensure_ascii=False)}", "from your texts: the model continues them")


def _prompts(choice: Choice) -> list[str]:
    """The first words of a text of each of the two largest sources."""
    if choice.tokenizer.config is None:
        return []
    found = []
    for source in choice.sources:
        texts = (PROMPT.search(text[:2000]) for text in source.found.estimate.texts)
        first = next((each[0] for each in texts if each is not None and len(each[0]) <= MOST_PROMPT), None)
        if first is not None and source.found.kind != "chat" and first not in found:
            found.append(first)
    return found[:2]


def _source(source: ChosenSource) -> Iterator[str]:
    found, estimate = source.found, source.found.estimate
    yield from ("", f"[sources.{found.name}]")
    kind = {"chat": "chat", "tokens": "tokens"}.get(found.kind, "text")
    files = "1 file" if len(found.files) == 1 else f"{len(found.files):,} files"
    yield _line(
        f'kind = "{kind}"', f"{files}, {show_count(found.size)} bytes, about {show_count(source.tokens)} tokens"
    )
    paths = [json.dumps(path, ensure_ascii=False) for path in found.paths]
    if len(paths) == 1:
        yield _line(f"path = {paths[0]}", "" if found.kind != "code" else "each file is a document")
    else:
        yield from ("path = [", *(f"    {path}," for path in paths), "]")
    if found.column not in (None, "text"):
        yield _line(f"column = {json.dumps(found.column)}", "the column that has the text")
    if estimate.bad > BAD_LINES / 4:
        allowed = min(0.9, round(2 * estimate.bad + 0.02, 2))
        yield _line(f"bad_lines = {allowed}", f"{estimate.bad:.1%} of those looked at hold no document")
    if source.validation is None:
        yield _line("", f"too few documents ({estimate.documents:,}) to hold some out for validation")
    else:
        held = round(source.validation * estimate.documents)
        yield _line(f"validation = {source.validation:g}", f"about {held:,} documents that are never trained on")


def _stage(stage: ChosenStage, choice: Choice) -> Iterator[str]:
    yield from ("", "[[stages]]", _line(f'name = "{stage.name}"', stage.why))
    minutes = stage.tokens / max(1, choice.tokens) * choice.seconds / 60
    took = f"{minutes:.0f} minutes" if minutes >= 1.5 else f"{60 * minutes:.0f} seconds"
    steps = -(-stage.tokens // (choice.seq_len * choice.rows))
    yield _line(f'tokens = "{_count(stage.tokens)}"', f"about {steps:,} steps, {took} here")
    yield _line(f"mixture = {_table(rounded_shares(stage.mixture))}", _epochs(stage, choice))
    if stage.lr is not None:
        yield _line(f"lr = {stage.lr}", "ends at nothing: what is learned last stays")


def _epochs(stage: ChosenStage, choice: Choice) -> str:
    """How often the source that is read most is read."""
    sizes = {source.found.name: source.tokens for source in choice.sources}
    epochs = {name: share * stage.tokens / max(1, sizes[name]) for name, share in stage.mixture.items()}
    most = max(epochs, key=lambda name: epochs[name])
    return f"shares of the rows; {most} is read {epochs[most]:.2g} times"


def _count(tokens: int) -> str:
    """`5.5M`: two figures are enough for an estimate."""
    if tokens < 10_000:
        return str(tokens)
    unit, letter = (1e9, "B") if tokens >= 1e9 else (1e6, "M") if tokens >= 1e6 else (1e3, "k")
    return f"{float(f'{tokens / unit:.2g}'):g}{letter}"


def _table(values: Mapping[str, float]) -> str:
    return "{ " + ", ".join(f"{name} = {value:g}" for name, value in values.items()) + " }"


def _line(value: str, why: str) -> str:
    """A line with its comment, all comments below one another where the values leave room."""
    if not why or not value:
        return value or f"# {why}"
    beside = f"{value:<{COLUMN - 1}} # {why}"
    return beside if len(beside) <= WIDEST and len(value) < COLUMN else f"# {why[0].upper()}{why[1:]}.\n{value}"
