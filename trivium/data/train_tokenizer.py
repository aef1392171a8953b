"""Texts -> a byte-level BPE, written as a tokenizer.json: the same texts give the same file.

Memory is that of the distinct words of the texts, not of the texts.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trivium.data.ranks_tokenizer import GPT4_PATTERN
from trivium.data.roles import ROLES, role_name
from trivium.data.text_bytes import whole
from trivium.errors import SourceError, UsageError
from trivium.files import draft

BYTES = 256


@dataclass(frozen=True, slots=True)
class Trained:
    """What was learnt: the tokenizer, and from how much."""

    inner: Any
    documents: int
    text_bytes: int

    @property
    def vocab(self) -> int:
        """Its tokens, special ones included; fewer than asked for where the texts have no more to merge."""
        return int(self.inner.get_vocab_size(with_added_tokens=True))


def train_tokenizer(texts: Iterable[str], vocab: int) -> Trained:
    """A byte-level BPE of so many tokens, split as for GPT-4, with a special token for each role."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    least = BYTES + len(ROLES)
    if vocab < least:
        raise UsageError(f"--vocab: {vocab:,} is too small: bytes and special tokens are {least}. Write more.")
    inner = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(GPT4_PATTERN), "isolated")
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[role_name(role) for role in ROLES],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    counts = [0, 0]
    inner.train_from_iterator(_counted(texts, counts), trainer)
    if counts[1] == 0:
        raise SourceError("there is no text in these files. Name others, or the column that holds the text.")
    return Trained(inner, *counts)


def _counted(texts: Iterable[str], counts: list[int]) -> Iterator[str]:
    for text in texts:
        text = whole(text)
        counts[0] += 1
        counts[1] += len(text.encode())
        yield text


def write_tokenizer(trained: Trained, folder: Path) -> Path:
    """Write tokenizer.json and tokenizer_config.json; the first comes last, so that a folder with it is whole."""
    said = {f"{role}_token": role_name(role) for role in ("bos", "eos")}
    with draft(folder / "tokenizer_config.json") as file:
        file.write(json.dumps({**said, "tokenizer_class": "PreTrainedTokenizerFast"}, indent=2).encode() + b"\n")
    with draft(folder / "tokenizer.json") as file:
        file.write(trained.inner.to_str(pretty=True).encode())
    return folder / "tokenizer.json"


def read_texts(paths: Iterable[Path], column: str) -> Iterator[tuple[str, int]]:
    """The texts of plain and JSONL files and of such files in folders, and the bytes read for each."""
    for path in paths:
        for file in sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]:
            if not file.is_file():
                raise SourceError(f"{file}: is not there. Name files or folders of text.")
            yield from _read_file(file, column)


def _read_file(path: Path, column: str) -> Iterator[tuple[str, int]]:
    is_jsonl = path.suffix in (".jsonl", ".json")
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            try:
                text = json.loads(line)[column] if is_jsonl else line.decode()
            except (ValueError, KeyError, TypeError):
                what = f'line {number:,} is no JSON with "{column}"' if is_jsonl else f"line {number:,} is no UTF-8"
                raise SourceError(f"{path}: {what}. Name text files, or the column that holds the text.") from None
            yield text, len(line)
