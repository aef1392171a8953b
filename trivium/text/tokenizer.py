"""Text -> tokens, and tokens -> text and bytes: the protocol, plain bytes, and the config's tokenizer opened.

A process opens a tokenizer again from its config, or gets it pickled; both give the same tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from trivium.config.schema import Tokenizer as TokenizerConfig
from trivium.text.file_tokenizer import FileTokenizer, open_file
from trivium.text.roles import ROLES, Role
from trivium.text.tiktoken_file import RanksTokenizer, open_ranks
from trivium.text.utf8 import utf8

__all__ = [
    "ROLES",
    "ByteTokenizer",
    "FileTokenizer",
    "RanksTokenizer",
    "Role",
    "Tokenizer",
    "open_tokenizer",
]

BYTE_TOKENS = 256
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
        return [np.frombuffer(utf8(text), np.uint8).astype(np.uint32) for text in texts]

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of some tokens; bytes that are no UTF-8 are replaced."""
        return bytes(token for token in tokens if token < BYTE_TOKENS).decode(errors="replace")

    def token_bytes(self, vocab: int) -> NDArray[np.int64]:
        """One for each byte."""
        return (np.arange(vocab) < BYTE_TOKENS).astype(np.int64)


def open_tokenizer(config: TokenizerConfig | None) -> Tokenizer | None:
    """The config's tokenizer; None where it names none."""
    if config is None:
        return None
    if config.kind == "bytes":
        return ByteTokenizer()
    return open_ranks(config) if config.kind == "tiktoken" else open_file(config)
