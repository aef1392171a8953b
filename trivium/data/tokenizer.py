"""Text -> tokens, and tokens -> text and bytes: a Hugging Face tokenizer's file, or plain bytes."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

import numpy as np
import xxhash
from numpy.typing import NDArray

from trivium.config.schema import Tokenizer as TokenizerConfig
from trivium.errors import SourceError

BYTE_TOKENS = 256
BYTE_FALLBACK = re.compile(r"<0x[0-9A-F]{2}>")

Role = Literal[
    "eos",
    "bos",
    "user_start",
    "user_end",
    "assistant_start",
    "assistant_end",
    "call_start",  # the assistant calls a tool
    "call_end",
    "result_start",  # what the tool answered
    "result_end",
    "system_start",
    "system_end",
]
ROLES: tuple[Role, ...] = get_args(Role)
BYTE_ROLES = ROLES[:10]  # a system message goes before the first user turn


class Tokenizer(Protocol):
    """Text to tokens and back."""

    @property
    def vocab(self) -> int:
        """Ids that it may give."""

    @property
    def fingerprint(self) -> str:
        """Changes with the tokens of any text."""

    def special(self, role: Role) -> int | None:
        """The id of the token that has this role; None where it has none."""

    def encode(self, texts: Sequence[str]) -> list[NDArray[np.uint32]]:
        """The tokens of each text, and nothing added; a special token's name in a text is text."""

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of some tokens."""

    def token_bytes(self, vocab: int) -> NDArray[np.int64]:
        """Bytes of text in each token of a vocabulary; special tokens have none."""


@dataclass(frozen=True, slots=True)
class ByteTokenizer:
    """A token is a byte; the ids from 256 on are special."""

    vocab: int = BYTE_TOKENS + len(BYTE_ROLES)
    fingerprint: str = "bytes"

    def special(self, role: Role) -> int | None:
        """256 for eos, 257 for bos, then the markers of a conversation."""
        return BYTE_TOKENS + BYTE_ROLES.index(role) if role in BYTE_ROLES else None

    def encode(self, texts: Sequence[str]) -> list[NDArray[np.uint32]]:
        """The bytes of each text in UTF-8."""
        return [np.frombuffer(text.encode(), np.uint8).astype(np.uint32) for text in texts]

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of some tokens; bytes that are no UTF-8 are replaced."""
        return bytes(token for token in tokens if token < BYTE_TOKENS).decode(errors="replace")

    def token_bytes(self, vocab: int) -> NDArray[np.int64]:
        """One for each byte."""
        return (np.arange(vocab) < BYTE_TOKENS).astype(np.int64)


@dataclass(frozen=True, slots=True)
class FileTokenizer:
    """What a tokenizer.json describes."""

    inner: Any

    @property
    def vocab(self) -> int:
        """Ids that it may give, added tokens included."""
        return int(self.inner.get_vocab_size(with_added_tokens=True))

    @property
    def fingerprint(self) -> str:
        """A hash of all that the file says."""
        return xxhash.xxh3_128_hexdigest(self.inner.to_str().encode())

    def special(self, role: Role) -> int | None:
        """The id of `<|role|>`."""
        found: int | None = self.inner.token_to_id(f"<|{role}|>")
        return found

    def encode(self, texts: Sequence[str]) -> list[NDArray[np.uint32]]:
        """The tokens of each text, and nothing added."""
        return [np.array(each.ids, np.uint32) for each in self.inner.encode_batch(texts, add_special_tokens=False)]

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of some tokens, special ones included."""
        return str(self.inner.decode(list(tokens), skip_special_tokens=False))

    def token_bytes(self, vocab: int) -> NDArray[np.int64]:
        """Bytes of each token's own text, found without decoding: half a character has bytes too."""
        is_byte_level = "ByteLevel" in str(type(self.inner.decoder)) + str(type(self.inner.pre_tokenizer))
        special = {number for number, added in self.inner.get_added_tokens_decoder().items() if added.special}
        lengths = np.zeros(vocab, np.int64)
        for token, number in self.inner.get_vocab(with_added_tokens=True).items():
            if number < vocab and number not in special:
                lengths[number] = _byte_length(token, is_byte_level)
        return lengths


def _byte_length(token: str, is_byte_level: bool) -> int:
    """In byte-level vocabularies a character stands for a byte; in others a mark stands for a space."""
    if is_byte_level:
        return len(token)
    if BYTE_FALLBACK.fullmatch(token):
        return 1
    return len(token.replace("\u2581", " ").encode())


def open_tokenizer(config: TokenizerConfig | None) -> Tokenizer | None:
    """The config's tokenizer; None where it names none."""
    if config is None:
        return None
    if config.kind == "bytes":
        return ByteTokenizer()
    if config.kind != "huggingface":
        raise SourceError(f'tokenizer.kind: "{config.kind}" cannot be read yet. Write kind = "huggingface" or "bytes".')
    path = Path(config.path or "")
    path = path / "tokenizer.json" if path.is_dir() else path
    if not path.is_file():
        raise SourceError(f"tokenizer.path: {path} is not there. Write the path of a tokenizer.json or its folder.")
    try:
        import tokenizers
    except ImportError:
        raise SourceError("tokenizer: the package tokenizers is not installed: pip install 'trivium[hf]'.") from None
    return FileTokenizer(tokenizers.Tokenizer.from_file(str(path)))
