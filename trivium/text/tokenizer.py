"""Text -> tokens, and tokens -> text and bytes: the protocol, plain bytes, and the config's tokenizer opened.

A process opens a tokenizer again from its config, or gets it pickled; both give the same tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from trivium.config.schema import Tokenizer as TokenizerConfig
from trivium.errors import Problem, SourceError
from trivium.text.roles import ROLES, Role

BYTE_TOKENS = 256
BYTE_ROLES = ROLES[:10]  # without markers for a system message, which goes before the first user's words


class Tokenizer(Protocol):
    """Text to tokens and back."""

    @property
    def vocab(self) -> int:
        """The largest id plus one, special tokens and gaps included."""

    @property
    def fingerprint(self) -> str:
        """A hash that changes with the tokens of any text."""

    def special(self, role: Role) -> int | None:
        """The id of the token that has this role; None where no token has it."""

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
        encoded = (replace_surrogates(text).encode() for text in texts)
        return [np.frombuffer(each, np.uint8).astype(np.uint32) for each in encoded]

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of some tokens; bytes that are not UTF-8 are replaced."""
        return bytes(token for token in tokens if token < BYTE_TOKENS).decode(errors="replace")

    def token_bytes(self, vocab: int) -> NDArray[np.int64]:
        """1 for each of the 256 bytes, 0 for the special tokens."""
        return (np.arange(vocab) < BYTE_TOKENS).astype(np.int64)


@dataclass(frozen=True, slots=True)
class AddedTokens:
    """Ids that are added before and after each document."""

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()


class AwaitedTokenizerError(SourceError):
    """A tokenizer that is not on disk, and that `trivium prepare` fetches or trains."""


def open_tokenizer(config: TokenizerConfig | None, *, fetch: bool = True) -> Tokenizer | None:
    """Open the config's tokenizer; None where the config names none.

    Unless `fetch`, the Hub is not asked for one: AwaitedTokenizerError where it may have it.
    """
    if config is None:
        return None
    if config.kind == "bytes":
        return ByteTokenizer()
    from trivium.text.file_tokenizer import open_tokenizer_json
    from trivium.text.tiktoken_file import open_tiktoken

    return open_tiktoken(config) if config.kind == "tiktoken" else open_tokenizer_json(config, fetch=fetch)


def tokenizer_problem(error: SourceError) -> Problem:
    """Why a tokenizer cannot be opened, under the key that the reason names, or else under `tokenizer`."""
    key, _, what = str(error).partition(": ")
    is_key = key == "tokenizer" or key.removeprefix("tokenizer.") in TokenizerConfig.model_fields
    return Problem(key, what) if is_key else Problem("tokenizer", str(error))


def added_roles(tokenizer: Tokenizer, add: tuple[Role, ...] | None) -> tuple[Role, ...]:
    """The roles in `add`; where it is None, eos if the tokenizer has one, else bos if it has one."""
    if add is not None:
        return add
    roles: tuple[Role, ...] = ("eos", "bos")
    return next(((role,) for role in roles if tokenizer.special(role) is not None), ())


def added_tokens(tokenizer: Tokenizer, add: tuple[Role, ...] | None) -> AddedTokens:
    """The ids of `added_roles`; SourceError where the tokenizer has no such token."""
    ids: dict[Role, tuple[int, ...]] = {}
    for role in added_roles(tokenizer, add):
        number = tokenizer.special(role)
        if number is None:
            raise SourceError(f'add = ["{role}"]: the tokenizer has no such token. Write add = [], or another token.')
        ids[role] = (number,)
    return AddedTokens(ids.get("bos", ()), ids.get("eos", ()))


def replace_surrogates(text: str) -> str:
    """The text with two halves of a surrogate pair joined and a lone half replaced by U+FFFD: JSON may hold both."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
