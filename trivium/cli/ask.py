"""`trivium sample`, `chat`, `eval`, `export`, `inspect-model`: a model asked, scored, written for others, described."""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trivium.cli.options import (
    Json,
    ModelFolder,
    Step,
    TokenizerPath,
    Weights,
    WhichWeights,
    print_json,
)
from trivium.errors import TriviumError, UsageError
from trivium.screen import echo, echo_line, terminal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from trivium.ask.generate.row import GeneratedRow, Writing
    from trivium.ask.generate.sampling import Sampling
    from trivium.ask.generate.talk import Talk
    from trivium.ask.open import LoadedModel
    from trivium.text.tokenizer import Tokenizer

SAMPLE_TOKENS, CHAT_TOKENS = 128, 512  # without --max-new-tokens; fewer where the model's rows are shorter

MaxTokens = Annotated[int | None, typer.Option(min=1, help="Write at most this many tokens.")]
Temperature = Annotated[float, typer.Option(min=0, help="The sampling temperature; 0 takes the likeliest token.")]
TopK = Annotated[int | None, typer.Option(min=1, help="Sample from this many of the likeliest tokens.")]
TopP = Annotated[
    float | None, typer.Option(min=0, max=1, help="Sample from the fewest tokens whose probabilities add up to this.")
]
Seed = Annotated[int, typer.Option(min=0, help="The seed of the sampling.")]
Device = Annotated[str | None, typer.Option(help="Such as cpu or cuda. By default the best one found.")]
System = Annotated[str | None, typer.Option(help="A system message before the conversation.")]


def sample(
    model: ModelFolder,
    prompt: Annotated[
        list[str] | None, typer.Option(help="The beginning of the text. May be given several times.")
    ] = None,
    prompt_file: Annotated[Path | None, typer.Option(help="A file with one prompt on each line.")] = None,
    samples: Annotated[int, typer.Option(min=1, help="Write this many texts from each prompt.")] = 1,
    max_new_tokens: MaxTokens = None,
    temperature: Temperature = 0.8,
    top_k: TopK = None,
    top_p: TopP = None,
    seed: Seed = 0,
    step: Step = None,
    weights: WhichWeights = Weights.OWN,
    chat: Annotated[bool, typer.Option("--chat", help="Answer each prompt as a question to the assistant.")] = False,
    system: System = None,
    json: Annotated[bool, typer.Option("--json", help="Print a line of JSON for each text.")] = False,
    tokenizer: TokenizerPath = None,
    device: Device = None,
) -> None:
    """Write texts with a model, after prompts where they are given."""
    from trivium.ask.generate.generate import generate
    from trivium.ask.generate.sampling import Sampling
    from trivium.ask.open import open_model

    if system is not None and not chat:
        raise UsageError("sample: --system needs --chat.")
    prompts = _prompts(prompt, prompt_file)
    opened = open_model(model, step, tokenizer, device, averaged=weights is Weights.AVERAGE)
    words = opened.tokenizer
    tokens = [_question(each, system, words) if chat else opened.prompt(each) for each in prompts]
    room = opened.seq_len - max(len(each) for each in tokens)
    most = max_new_tokens or max(1, min(SAMPLE_TOKENS, room))
    writing = _writing(opened, Sampling(temperature, top_k, top_p, seed), most, chat, samples)
    rows = generate(opened.engine, tokens, writing)
    echo_line(f"{opened.title}: {opened.spec.parameters:,} parameters", err=True)
    written = [(number, row) for number, samples_of in enumerate(rows) for row in samples_of]
    for place, (number, row) in enumerate(written, 1):
        text = words.decode(row.tokens)
        if json:
            echo(_json_line(number, prompts[number], text, row))
        else:
            echo(f"--- {place}\n" * (len(written) > 1) + ("" if chat else prompts[number]) + text)


def chat(
    models: Annotated[
        list[str],
        typer.Argument(help="A run's folder, RUN@STEP, a checkpoint, or a Hugging Face folder. Several: --web."),
    ],
    system: System = None,
    max_new_tokens: MaxTokens = None,
    temperature: Temperature = 0.8,
    top_k: TopK = None,
    top_p: TopP = None,
    seed: Seed = 0,
    step: Step = None,
    weights: WhichWeights = Weights.OWN,
    tokenizer: TokenizerPath = None,
    device: Device = None,
    web: Annotated[
        bool, typer.Option("--web", help="Serve a page to talk to the models, to this machine alone.")
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="With --web: the port; 0 takes any that is free.")] = 8643,
) -> None:
    """Chat with a model, one question on each line. /new starts again, /quit or Ctrl-C ends."""
    from trivium.ask.generate.sampling import Sampling
    from trivium.ask.generate.talk import Talk
    from trivium.ask.open import open_model, run_at_step

    if len(models) > 1 and not web:
        raise UsageError("chat: several models are talked to on a page, beside one another. Give --web, or one model.")
    sampling, both = Sampling(temperature, top_k, top_p, seed), []
    for name in models:
        path, at = run_at_step(name)
        opened = open_model(path, step if at is None else at, tokenizer, device, averaged=weights is Weights.AVERAGE)
        both.append((opened, _writing(opened, sampling, max_new_tokens or CHAT_TOKENS, chat=True)))
    if web:
        _serve(both, system, port)
        return
    ((opened, writing),) = both
    words = opened.tokenizer
    echo_line(f"{opened.title}: {opened.spec.parameters:,} parameters. /new starts again, /quit ends.", err=True)
    talk = Talk(opened.engine, words, writing, opened.seq_len, system)
    try:
        for line in _lines():
            if line == "/quit":
                break
            if line == "/new":
                talk = Talk(opened.engine, words, writing, opened.seq_len, system)
            elif line:
                _print_answer(talk, line)
    except KeyboardInterrupt:
        echo()


def _serve(models: Sequence[tuple["LoadedModel", "Writing"]], system: str | None, port: int) -> None:
    """Serve the page of models until Ctrl-C."""
    from trivium.ask.web.server import ChatServer, Talker

    talkers = [Talker(opened, writing, system) for opened, writing in models]
    with ChatServer(talkers, port) as server, suppress(KeyboardInterrupt):
        echo_line(f"{server.url} talks to {', '.join(opened.title for opened, _ in models)}; Ctrl-C ends it.")
        server.serve_forever()


def evaluate(
    model: ModelFolder,
    tasks: Annotated[
        str | None,
        typer.Option(help="Such as spelling,counting; arc:ARC-Challenge=data/arc names a subset and its files."),
    ] = None,
    harness: Annotated[
        str | None, typer.Option(help="Tasks of lm-evaluation-harness, or YAML files of such: arc_easy,quiz.yaml.")
    ] = None,
    questions: Annotated[int, typer.Option(min=1, help="Ask at most this many questions of each task.")] = 100,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Write at most this many tokens of an answer.")] = 128,
    step: Step = None,
    weights: WhichWeights = Weights.OWN,
    tokenizer: TokenizerPath = None,
    json: Json = False,
) -> None:
    """Score a model's answers to the questions of tasks. Those of --harness are written to the run's events too."""
    from trivium.ask.score_model import score_model, show_scores

    if (tasks is None) == (harness is None):
        raise UsageError("eval: give --tasks spelling,counting or --harness arc_easy,quiz.yaml.")
    averaged = weights is Weights.AVERAGE
    if tasks is not None:
        scored = score_model(model, tasks, questions, max_new_tokens, step, tokenizer, averaged=averaged)
    else:
        scored = _by_harness(model, harness or "", questions, step, tokenizer, averaged=averaged)
    if json:
        print_json(scored)
    else:
        show_scores(scored, terminal())


def _by_harness(
    model: Path, tasks: str, questions: int, step: int | None, tokenizer: str | None, *, averaged: bool
) -> dict[str, Any]:
    from importlib.util import find_spec

    if find_spec("lm_eval") is None:
        raise UsageError("--harness: the package lm-eval is not installed: pip install 'trivium[eval]'.")
    from trivium.ask.harness.score import score_by_harness

    return score_by_harness(model, tasks, questions, step, tokenizer, averaged=averaged)


def inspect_model(folder: ModelFolder, step: Step = None, json: Json = False) -> None:
    """Show what a model is, and whether it can be trained. Reads configs and the headers of files, never weights."""
    from trivium.ask.inspect_model import inspect_model, inspected_lines

    facts = inspect_model(folder, step)
    if json:
        print_json(facts)
        return
    for line in inspected_lines(facts):
        echo_line(line)


def _lines() -> Iterator[str]:
    """Questions, one on each line; a terminal shows a prompt."""
    while True:
        if sys.stdin.isatty():
            echo("> ", end="")
        line = sys.stdin.readline()
        if not line:
            return
        yield line.strip()


def _print_answer(talk: "Talk", question: str) -> None:
    """Print an answer as it is written; print an error instead where there is none, and keep the conversation."""
    try:
        for part in talk.ask(question):
            shown = {"text": part.text, "call": f"[{part.text}", "result": f" -> {part.text}] "}[part.kind]
            echo(shown, end="")
            sys.stdout.flush()
    except TriviumError as error:
        echo_line(error, err=True)
    echo()


def _writing(
    opened: "LoadedModel", sampling: "Sampling", max_new_tokens: int, chat: bool, samples: int = 1
) -> "Writing":
    """How rows are written. With `chat` they end with the assistant's turn, and calls of tools are answered."""
    from trivium.ask.generate.row import Writing, calculator_calls, turn_ends
    from trivium.text.chat import is_templated

    words = opened.tokenizer
    stop = opened.ends | (turn_ends(words) if chat else frozenset())
    calls = calculator_calls(words) if chat and not is_templated(words) else None
    return Writing(max_new_tokens, stop, sampling, samples, calls, words.vocab)


def _prompts(given: Sequence[str] | None, file: Path | None) -> list[str]:
    """All prompts; without any, an empty one."""
    if file is None:
        return list(given or [""])
    if given:
        raise UsageError("sample: give --prompt or --prompt-file, not both.")
    if not file.is_file():
        raise UsageError(f"--prompt-file: {file} does not exist. Name a file with one prompt on each line.")
    try:
        lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line]
    except UnicodeDecodeError:
        what = f"{file} is not text in UTF-8"
        raise UsageError(f"--prompt-file: {what}. Name a file with one prompt on each line.") from None
    if not lines:
        raise UsageError(f"--prompt-file: {file} has no prompt. Write one on each line.")
    return lines


def _question(text: str, system: str | None, words: "Tokenizer") -> "NDArray[np.uint32]":
    from trivium.text.chat import render_prompt

    before = [] if system is None else [{"role": "system", "content": system}]
    return render_prompt([*before, {"role": "user", "content": text}], words)


def _json_line(number: int, prompt: str, text: str, row: "GeneratedRow") -> str:
    ended = "stop" if row.stopped else "length"
    line = {"prompt": prompt, "number": number, "text": text, "tokens": row.tokens, "ended": ended}
    return json.dumps(line, ensure_ascii=False)
