"""`trivium sample` and `trivium chat`: parse, call, print."""

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trivium.errors import TriviumError, UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from trivium.ask.generate.row import Row, Writing
    from trivium.ask.generate.sampling import Sampling
    from trivium.ask.generate.talk import Talk
    from trivium.ask.open import Model
    from trivium.text.tokenizer import Tokenizer

SAMPLE_TOKENS, CHAT_TOKENS = 128, 512  # where --max-tokens is not given, or fewer where there is no room

Folder = Annotated[
    Path, typer.Argument(help="A run's folder, one of its checkpoints, or a Hugging Face folder.", show_default=False)
]
Step = Annotated[int | None, typer.Option(min=0, help="Which checkpoint of a run; else the last.", show_default=False)]
MaxTokens = Annotated[int | None, typer.Option(min=1, help="The most tokens to write.", show_default=False)]
Temperature = Annotated[float, typer.Option(min=0, help="Of the draws; 0 is always the likeliest token.")]
TopK = Annotated[int | None, typer.Option(min=1, help="Only so many of the likeliest tokens.", show_default=False)]
TopP = Annotated[
    float | None,
    typer.Option(min=0, max=1, help="Only the fewest tokens that together are this likely.", show_default=False),
]
Seed = Annotated[int, typer.Option(min=0, help="Of the draws.")]
TokenizerPath = Annotated[
    str | None,
    typer.Option("--tokenizer", help="A tokenizer.json, a folder, or bytes; else the model's.", show_default=False),
]
Device = Annotated[str | None, typer.Option(help="Such as cpu or cuda; else the best there is.", show_default=False)]
System = Annotated[str | None, typer.Option(help="A system's message before the conversation.", show_default=False)]


def sample(
    model: Folder,
    prompt: Annotated[
        list[str] | None, typer.Option(help="How the text begins; may be given several times.", show_default=False)
    ] = None,
    prompt_file: Annotated[Path | None, typer.Option(help="A file with a prompt a line.", show_default=False)] = None,
    samples: Annotated[int, typer.Option(min=1, help="Texts from each prompt.")] = 1,
    max_tokens: MaxTokens = None,
    temperature: Temperature = 0.8,
    top_k: TopK = None,
    top_p: TopP = None,
    seed: Seed = 0,
    step: Step = None,
    chat: Annotated[bool, typer.Option("--chat", help="Prompts are questions, which the assistant answers.")] = False,
    system: System = None,
    json: Annotated[bool, typer.Option("--json", help="For machines: a line for each text.")] = False,
    tokenizer: TokenizerPath = None,
    device: Device = None,
) -> None:
    """Let a model write: after prompts, or from the beginning of a text."""
    from trivium.ask.generate.generate import generate
    from trivium.ask.generate.sampling import Sampling
    from trivium.ask.open import open_model

    if system is not None and not chat:
        raise UsageError("sample: --system goes with --chat.")
    prompts = _prompts(prompt, prompt_file)
    opened = open_model(model, step, tokenizer, device)
    words = opened.tokenizer
    tokens = [_question(each, system, words) if chat else opened.prompt(each) for each in prompts]
    room = opened.seq_len - max(len(each) for each in tokens)
    most = max_tokens or max(1, min(SAMPLE_TOKENS, room))
    writing = _writing(opened, Sampling(temperature, top_k, top_p, seed), most, chat, samples)
    rows = generate(opened.engine, tokens, writing)
    typer.echo(f"{opened.title}: {opened.spec.parameters:,} parameters", err=True)
    written = [(number, row) for number, samples_of in enumerate(rows) for row in samples_of]
    for place, (number, row) in enumerate(written, 1):
        text = words.decode(row.tokens)
        if json:
            typer.echo(_json_line(number, prompts[number], text, row))
        else:
            typer.echo(f"--- {place}\n" * (len(written) > 1) + ("" if chat else prompts[number]) + text)


def chat(
    model: Folder,
    system: System = None,
    max_tokens: MaxTokens = None,
    temperature: Temperature = 0.8,
    top_k: TopK = None,
    top_p: TopP = None,
    seed: Seed = 0,
    step: Step = None,
    tokenizer: TokenizerPath = None,
    device: Device = None,
) -> None:
    """Talk with a model: a question a line, from a terminal or a pipe; /new begins again, /quit or Ctrl-C ends."""
    from trivium.ask.generate.sampling import Sampling
    from trivium.ask.generate.talk import Talk
    from trivium.ask.open import open_model

    opened = open_model(model, step, tokenizer, device)
    words = opened.tokenizer
    sampling = Sampling(temperature, top_k, top_p, seed)
    writing = _writing(opened, sampling, max_tokens or CHAT_TOKENS, chat=True)
    typer.echo(f"{opened.title}: {opened.spec.parameters:,} parameters. /new begins again, /quit ends.", err=True)
    talk = Talk(opened.engine, words, writing, opened.seq_len, system)
    try:
        for line in _lines():
            if line == "/quit":
                break
            if line == "/new":
                talk = Talk(opened.engine, words, writing, opened.seq_len, system)
            elif line:
                _say_answer(talk, line)
    except KeyboardInterrupt:
        typer.echo()


def _lines() -> Iterator[str]:
    """Questions, one a line; a terminal shows where to write."""
    while True:
        if sys.stdin.isatty():
            typer.echo("> ", nl=False)
        line = sys.stdin.readline()
        if not line:
            return
        yield line.strip()


def _say_answer(talk: "Talk", question: str) -> None:
    """Print an answer as it is written; what cannot be answered is said, and the conversation goes on."""
    try:
        for part in talk.ask(question):
            shown = {"text": part.text, "call": f"[{part.text}", "result": f" -> {part.text}] "}[part.kind]
            typer.echo(shown, nl=False)
            sys.stdout.flush()
    except TriviumError as error:
        typer.echo(str(error), err=True)
    typer.echo()


def _writing(opened: "Model", sampling: "Sampling", max_tokens: int, chat: bool, samples: int = 1) -> "Writing":
    """How rows are written; a conversation's end with the assistant's turn, and its calls are answered."""
    from trivium.ask.generate.calls import calculator_calls
    from trivium.ask.generate.row import Writing
    from trivium.ask.generate.stops import turn_ends
    from trivium.text.chat import is_templated

    words = opened.tokenizer
    stop = opened.ends | (turn_ends(words) if chat else frozenset())
    calls = calculator_calls(words) if chat and not is_templated(words) else None
    return Writing(max_tokens, stop, sampling, samples, calls, words.vocab)


def _prompts(given: Sequence[str] | None, file: Path | None) -> list[str]:
    """All prompts; without any, an empty one."""
    if file is None:
        return list(given or [""])
    if given:
        raise UsageError("sample: give --prompt or --prompt-file, not both.")
    if not file.is_file():
        raise UsageError(f"--prompt-file: {file} is not there. Name a file with a prompt a line.")
    try:
        lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line]
    except UnicodeDecodeError:
        raise UsageError(f"--prompt-file: {file} is no text in UTF-8. Name a file with a prompt a line.") from None
    if not lines:
        raise UsageError(f"--prompt-file: {file} has no prompt. Write one a line.")
    return lines


def _question(text: str, system: str | None, words: "Tokenizer") -> "NDArray[np.uint32]":
    from trivium.text.chat import render_prompt

    before = [] if system is None else [{"role": "system", "content": system}]
    return render_prompt([*before, {"role": "user", "content": text}], words)


def _json_line(number: int, prompt: str, text: str, row: "Row") -> str:
    ended = "stop" if row.stopped else "length"
    said = {"prompt": prompt, "number": number, "text": text, "tokens": row.tokens, "ended": ended}
    return json.dumps(said, ensure_ascii=False)
