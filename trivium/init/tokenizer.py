"""What was found in a folder -> the tokenizer of its run: one that exists, one to be trained, or plain bytes.

Text that is tokens already decides: the rest of the run must be in the same tokens. Else a tokenizer.json in the folder
is taken; else one is trained, of a size that the text can fill and a small model can hold.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trivium.config.schema import Tokenizer as TokenizerConfig
from trivium.config.schema import TrainTokenizer
from trivium.errors import Problem, SourceError, UsageError
from trivium.files import map_file
from trivium.init.found import FoundFolder, FoundSource
from trivium.init.look import LookError
from trivium.text.tokenizer import AwaitedTokenizerError, ByteTokenizer, Tokenizer, open_tokenizer
from trivium.text.tokenizer_folder import HUB_NAME
from trivium.tokenfiles.formats import describe

LEAST_TEXT = 300_000  # bytes; less teaches no merges that are worth having
SMALLEST, LARGEST = 512, 32_768
BYTES_PER_MERGE = 1000  # of text, for each token of a vocabulary
# Bytes of text in a token of a byte-level BPE of this many tokens, trained on English and code.
TOKEN_BYTES = {512: 1.7, 1024: 2.2, 2048: 2.6, 4096: 3.0, 8192: 3.4, 16_384: 3.7, 32_768: 4.0}
MOST_IDS = 32_000_000  # that are read to find the largest


@dataclass(frozen=True, slots=True)
class ChosenTokenizer:
    """A `[tokenizer]` table, or None, with the reason; and what is known of it."""

    config: TokenizerConfig | None
    why: str
    vocab: int
    token_bytes: float
    opened: Tokenizer | None = None
    vocab_is_needed: bool = False  # no tokenizer gives it, so that the model's table must


def choose_tokenizer(found: FoundFolder, out: Path, asked: str | None, largest: int) -> ChosenTokenizer:
    """The tokenizer of a folder; `largest` is the vocabulary that the model can hold, `out` where one is written."""
    has_tokens = any(source.kind == "tokens" for source in found.sources)
    if asked is not None:
        return _open(asked, "as --tokenizer says", found)
    if has_tokens:
        return _of_token_files(found)
    if len(found.tokenizers) > 1:
        names = ", ".join(map(str, found.tokenizers[:4]))
        raise UsageError(
            f"{found.folder}: has several tokenizers: {names}. Say which: --tokenizer {found.tokenizers[0]}."
        )
    if found.tokenizers:
        return _open(str(found.tokenizers[0].parent), "found in the folder", found)
    return _trained(found, out, largest)


def _trained(found: FoundFolder, out: Path, largest: int) -> ChosenTokenizer:
    """One to be trained on the folder's texts, or none where these are too few."""
    text_bytes = sum(source.estimate.text_bytes for source in found.sources if source.kind != "chat")
    vocab = next((size for size in reversed(TOKEN_BYTES) if size <= min(largest, text_bytes / BYTES_PER_MERGE)), 0)
    if text_bytes < LEAST_TEXT or not vocab:
        few = f"{text_bytes / 1e3:.0f} kB of text is too little to train one"
        return ChosenTokenizer(
            TokenizerConfig(kind="bytes"),
            f"no merges: {few if text_bytes else 'there is no text beside the conversations to train one on'}",
            ByteTokenizer().vocab,
            1.0,
            ByteTokenizer(),
        )
    config = TokenizerConfig(path=out.as_posix(), train=TrainTokenizer(vocab=vocab))
    why = f"trained on your text at first use; {vocab:,} tokens suit a model of this size"
    return ChosenTokenizer(config, why, vocab, TOKEN_BYTES[vocab])


def _open(path: str, why: str, found: FoundFolder) -> ChosenTokenizer:
    """A tokenizer that exists, with what it makes of some of the folder's texts."""
    config = TokenizerConfig(kind="bytes") if path == "bytes" else TokenizerConfig(path=path)
    try:
        opened = open_tokenizer(config, fetch=False)
    except AwaitedTokenizerError:
        return ChosenTokenizer(config, f"{why}; trivium prepare fetches it", LARGEST, TOKEN_BYTES[LARGEST])
    assert opened is not None
    return ChosenTokenizer(config, why, opened.vocab, _token_bytes(opened, found), opened)


def _token_bytes(tokenizer: Tokenizer, found: FoundFolder) -> float:
    texts = [text for source in found.sources for text in source.estimate.texts]
    tokens = sum(len(each) for each in tokenizer.encode(texts)) if texts else 0
    return sum(len(text.encode()) for text in texts) / tokens if tokens else TOKEN_BYTES[LARGEST]


def _of_token_files(found: FoundFolder) -> ChosenTokenizer:
    """The one that token files name; where none is known, their ids alone, with which no text can be mixed."""
    sources = [source for source in found.sources if source.kind == "tokens"]
    others = [source for source in found.sources if source.kind != "tokens"]
    names = sorted({source.tokenizer for source in sources if source.tokenizer is not None})
    if len(names) > 1:
        listed = [
            Problem(source.paths[0], f"has tokens of {source.tokenizer}.") for source in sources if source.tokenizer
        ]
        what = "token files of several tokenizers cannot be one model's: an id means another text in each."
        raise LookError([Problem(str(found.folder), what + " Give one of these folders."), *listed])
    chosen = _named(names[0], found) if names else None
    if chosen is None and len(found.tokenizers) == 1 and not names:
        chosen = _open(str(found.tokenizers[0].parent), "found in the folder, beside the token files", found)
    if chosen is not None:
        return chosen
    if others:
        what = f"token files do not name their tokenizer, and {others[0].name} is text, which needs the same one"
        raise UsageError(f"{found.folder}: {what}. Name it: --tokenizer tokenizer.json; or give their folders apart.")
    vocab, why = vocab_of_ids(sources)
    return ChosenTokenizer(None, why, vocab, TOKEN_BYTES[LARGEST], vocab_is_needed=True)


def _named(name: str, found: FoundFolder) -> ChosenTokenizer | None:
    """The tokenizer that token files call by this name: a fingerprint, a path, or a name on the Hub."""
    if name == ByteTokenizer().fingerprint:
        return _open("bytes", "as the token files say", found)
    for path in found.tokenizers:
        try:
            opened = open_tokenizer(TokenizerConfig(path=str(path.parent)), fetch=False)
        except SourceError:
            continue
        if opened is not None and name == opened.fingerprint:
            return _open(str(path.parent), "found in the folder: the token files are made with it", found)
    if Path(name).exists() or (HUB_NAME.fullmatch(name) and not _is_fingerprint(name)):
        return _open(name, "as the token files say", found)
    return None


def _is_fingerprint(name: str) -> bool:
    return len(name) == 32 and all(letter in "0123456789abcdef" for letter in name)


def vocab_of_ids(sources: Sequence[FoundSource]) -> tuple[int, str]:
    """A vocabulary that has every id of token files, and how it was found."""
    largest = read = whole = 0
    dtypes = set()
    for file in (file for source in sources for file in source.files):
        described = describe(file.path, {})
        assert described.metadata is not None
        assert described.metadata.dtype is not None, "a file without one was passed over"
        dtype = np.dtype(described.metadata.dtype)
        tokens = np.frombuffer(
            map_file(file.path)[described.start :], dtype, (file.size - described.start) // dtype.itemsize
        )
        part = tokens[: max(0, MOST_IDS - read)]
        largest = max(largest, int(part.max())) if len(part) else largest
        read, whole = read + len(part), whole + len(tokens)
        dtypes.add(dtype)
    if read == whole:
        return largest + 1, f"no tokenizer is named, and the largest id is {largest:,}"
    if all(dtype.itemsize == 2 for dtype in dtypes):
        return 65_536, "no tokenizer is named: as many as two bytes can tell apart"
    return 1 << largest.bit_length(), f"no tokenizer is named: the largest id of the first {read:,} is {largest:,}"
