"""A run's checkpoint -> a Hugging Face folder: weights, tokenizer, chat template, and what ends a text."""

import json
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trivium.ask.convert import checkpoint_engine
from trivium.ask.generate.row import text_ends, turn_ends
from trivium.ask.open import GENERATION_FILE, begins_with
from trivium.config.schema import Config
from trivium.errors import UsageError
from trivium.files import flush_folder, name_in_error
from trivium.model.folder import read_spec
from trivium.model.huggingface import CONFIG_FILE
from trivium.run.folder import find_checkpoint
from trivium.text.tokenizer import Tokenizer, open_tokenizer
from trivium.text.tokenizer_export import tokenizer_files

CARD_FILE = "README.md"


def export_checkpoint(
    run: Path, out: Path, step: int | None = None, *, averaged: bool = False, card: str | None = None
) -> str:
    """Write a checkpoint, or the average that it keeps, to a new folder; gives a sentence about it.

    `card` is the text of its README.md.
    """
    if out.exists():
        raise UsageError(f"{out}: exists. Give a folder that does not exist yet.")
    checkpoint = find_checkpoint(run, step)
    checkpoint.refuse_damaged()
    config = Config.model_validate(checkpoint.state()["config"])
    tokenizer = open_tokenizer(config.tokenizer)
    spec = read_spec(checkpoint.engine)
    of_average = "the average at " if averaged else ""
    done = f"{out}: {of_average}step {checkpoint.step:,} of {run}, {spec.parameters:,} parameters"
    with whole_folder(out) as unfinished:
        checkpoint_engine(checkpoint, averaged=averaged).export(unfinished)
        if card is not None:
            (unfinished / CARD_FILE).write_text(card, encoding="utf-8")
        if tokenizer is None:
            return f"{done}, without a tokenizer: the run has none."
        if tokenizer.vocab > spec.vocab:  # other tools would look up rows that the model does not have
            return f"{done}, without its tokenizer, which has {tokenizer.vocab:,} tokens: the model has {spec.vocab:,}."
        return f"{done}{write_tokenizer(tokenizer, unfinished, begins_with(config, tokenizer))}."


@contextmanager
def whole_folder(out: Path) -> Iterator[Path]:
    """A draft of a new folder, beside it: takes its name when the block ends well, is removed if not."""
    out.parent.mkdir(parents=True, exist_ok=True)
    unfinished = out.with_name(f".{secrets.token_hex(8)}.draft")
    try:
        unfinished.mkdir()
        yield unfinished
        unfinished.rename(out)
    except BaseException as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        name_in_error(error, unfinished, out)
        raise
    flush_folder(out.parent)


def write_tokenizer(tokenizer: Tokenizer, folder: Path, before: tuple[int, ...]) -> str:
    """Put a tokenizer's files and the ids of its special tokens beside a model's weights; gives the words for it."""
    config = json.loads((folder / CONFIG_FILE).read_text())
    written = tokenizer_files(tokenizer, config["max_position_embeddings"], before)
    for name, text in written.files.items():
        (folder / name).write_text(text, encoding="utf-8")
    talks = "chat_template.jinja" in written.files
    ends = sorted(turn_ends(tokenizer) if talks else text_ends(tokenizer))
    pad = next((number for role in ("eos", "bos") if (number := tokenizer.special(role)) is not None), None)
    numbers = {"bos_token_id": tokenizer.special("bos"), "eos_token_id": ends or None, "pad_token_id": pad}
    for name, values in ((CONFIG_FILE, config), (GENERATION_FILE, {})):
        (folder / name).write_text(json.dumps({**values, **numbers}, indent=2) + "\n")
    kinds = ", tokenizer and chat template" if talks else ", tokenizer" if written.files else ""
    return kinds + (f"; skipped: {', '.join(written.skipped)}" if written.skipped else "")
