"""Texts -> a byte-level BPE, written as a tokenizer.json: the same texts give the same file.

Memory is that of the distinct words of the texts, not of the texts.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trivium.config.load import load
from trivium.config.schema import Config
from trivium.config.sources import TextSource
from trivium.errors import SourceError, UsageError
from trivium.files import draft
from trivium.screen import Detail, detail, terminal
from trivium.text.fim import USUAL_NAMES
from trivium.text.roles import ROLES, role_name
from trivium.text.tiktoken_file import GPT4_PATTERN
from trivium.text.tokenizer import replace_surrogates
from trivium.textfiles.bad_lines import MOST_BAD
from trivium.textfiles.documents import TextDocuments
from trivium.textfiles.inputs import list_inputs

BYTES = 256
CONFIGS = (".toml", ".yaml", ".yml")


@dataclass(frozen=True, slots=True)
class TrainedTokenizer:
    """A trained tokenizer, and how much text it was trained on."""

    inner: Any
    documents: int
    text_bytes: int

    @property
    def vocab(self) -> int:
        """The number of tokens, special ones included; fewer than `--vocab` where the texts have no more to merge."""
        return int(self.inner.get_vocab_size(with_added_tokens=True))


@dataclass(frozen=True, slots=True)
class WrittenTokenizer:
    """A tokenizer on disk, and the bad lines that were skipped."""

    path: Path
    trained: TrainedTokenizer
    skipped: tuple[str, ...]

    def __str__(self) -> str:
        trained = self.trained
        return f"{self.path}: {trained.vocab:,} tokens, from {trained.documents:,} texts, {trained.text_bytes:,} bytes"


def train_on_texts(
    what: Sequence[str],
    out: Path,
    vocab: int,
    *,
    column: str | None = None,
    bad_lines: float | None = None,
    fim: bool = False,
) -> WrittenTokenizer:
    """Train on files and folders of text, or on the text sources of a config and its overrides; write it to `out`."""
    if (out / "tokenizer.json").exists():
        raise UsageError(f"--out: {out} has a tokenizer.json already. Name another folder, or remove it.")
    return _train(_find(what, out, column, bad_lines), out, vocab, fim=fim)


def train_on_sources(config: Config, out: Path, vocab: int) -> WrittenTokenizer:
    """Train on the sources of text of a config that is loaded, those with `fim` too; write it to `out`."""
    fim = any(isinstance(source, TextSource) and source.fim is not None for source in config.sources.values())
    return _train(list(_texts_of(config, None)), out, vocab, fim=fim)


def _train(sources: Sequence[TextDocuments], out: Path, vocab: int, *, fim: bool) -> WrittenTokenizer:
    from rich.progress import Progress

    with Progress(
        console=terminal(stderr=True), transient=True, disable=detail() is Detail.QUIET or not sys.stderr.isatty()
    ) as progress:
        task = progress.add_task("reading", total=sum(each.size for each in sources))

        def texts() -> Iterator[str]:
            for each in sources:
                yield from each.read(lambda count: progress.advance(task, count))
            progress.update(task, description="merging", total=None)

        trained = train_tokenizer(texts(), vocab, USUAL_NAMES[0] if fim else ())
    skipped = tuple(f"{each.title}: skipped {line}" for each in sources for line in each.bad.lines())
    return WrittenTokenizer(write_tokenizer(trained, out), trained, skipped)


def train_tokenizer(texts: Iterable[str], vocab: int, more: Sequence[str] = ()) -> TrainedTokenizer:
    """Train a byte-level BPE of `vocab` tokens that splits text as GPT-4 does, with a special token for each role.

    `more` are names of further special tokens.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    special = [*(role_name(role) for role in ROLES), *more]
    least = BYTES + len(special)
    if vocab < least:
        what = f"{vocab:,} is too small: bytes and special tokens alone are {least}"
        raise UsageError(f"--vocab: {what}. Write {least} or more.")
    inner = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(GPT4_PATTERN), "isolated")
    by_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.pre_tokenizer = pre_tokenizers.Sequence([split, by_bytes])
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    counts = [0, 0]
    inner.train_from_iterator(_counted(texts, counts), trainer)
    if counts[1] == 0:
        raise SourceError("these files hold no text. Name others, or the column that holds the text.")
    return TrainedTokenizer(inner, *counts)


def _counted(texts: Iterable[str], counts: list[int]) -> Iterator[str]:
    for text in texts:
        text = replace_surrogates(text)
        counts[0] += 1
        counts[1] += len(text.encode())
        yield text


def write_tokenizer(trained: TrainedTokenizer, folder: Path) -> Path:
    """Write tokenizer.json and tokenizer_config.json; the first comes last, so that a folder with it is whole."""
    token_names = {f"{role}_token": role_name(role) for role in ("bos", "eos")}
    with draft(folder / "tokenizer_config.json") as file:
        file.write(json.dumps({**token_names, "tokenizer_class": "PreTrainedTokenizerFast"}, indent=2).encode() + b"\n")
    with draft(folder / "tokenizer.json") as file:
        file.write(trained.inner.to_str(pretty=True).encode())
    return folder / "tokenizer.json"


def _find(what: Sequence[str], out: Path, column: str | None, bad_lines: float | None) -> list[TextDocuments]:
    """The text files in `what`, or those of a config's text sources."""
    if not (what[0].endswith(CONFIGS) and Path(what[0]).is_file()):
        most_bad = MOST_BAD if bad_lines is None else bad_lines
        return [TextDocuments(str(out), list_inputs(what), column or "text", most_bad)]
    if column is not None:
        raise UsageError("tokenizer train: --column goes with files; a config has it in its sources.")
    return _sources_of(Path(what[0]), what[1:], bad_lines)


def _sources_of(file: Path, overrides: Sequence[str], bad_lines: float | None) -> list[TextDocuments]:
    config = load(file, overrides, world_size=1).config  # ranks decide nothing here
    found = list(_texts_of(config, bad_lines))
    if not found:
        raise UsageError(f'{file.name}: has no source of kind = "text" to train on. Name files or folders instead.')
    return found


def _texts_of(config: Config, bad_lines: float | None) -> Iterator[TextDocuments]:
    """The texts of every source of text that is not held out."""
    for name, each in config.sources.items():
        if isinstance(each, TextSource) and not each.validation_only:
            assert each.path is not None, "a checked source has a path"
            most_bad = each.bad_lines if bad_lines is None else bad_lines
            yield TextDocuments(name, list_inputs(each.path), each.column, most_bad)
