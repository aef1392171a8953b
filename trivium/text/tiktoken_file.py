"""What a .tiktoken file describes: on each line a token's bytes in base64 and its rank, which is its id."""

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from trivium.config.schema import Tokenizer as TokenizerConfig
from trivium.errors import SourceError
from trivium.files import hash_json
from trivium.paths import suggestion
from trivium.text.roles import ROLES, Role, Roles, find_roles, role_name
from trivium.text.tokenizer import replace_surrogates

GPT4_PATTERN = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)
# The library's regular expressions give up in a longer run of white space, so that the run is cut there.
LONG_RUN = re.compile(r"(\s{100000})")


@dataclass(frozen=True, eq=False)
class TiktokenTokenizer:
    """A .tiktoken file's ranks, the pattern that splits a text, and special tokens after the ranks."""

    ranks: Mapping[bytes, int]
    pattern: str
    special_tokens: Mapping[str, int]
    roles: Roles

    def __reduce__(self) -> tuple[type["TiktokenTokenizer"], tuple[object, ...]]:
        return TiktokenTokenizer, (self.ranks, self.pattern, self.special_tokens, self.roles)

    @cached_property
    def inner(self) -> Any:
        return make_encoding(self.ranks, self.pattern, self.special_tokens)

    @property
    def vocab(self) -> int:
        return 1 + max(*self.ranks.values(), *self.special_tokens.values())

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the ranks, the pattern, the special tokens and their roles."""
        ranks = xxhash.xxh3_128()
        for token, rank in sorted(self.ranks.items()):
            ranks.update(f"{token.hex()} {rank}\n".encode())
        content = [ranks.hexdigest(), self.pattern, dict(self.special_tokens), dict(self.roles)]
        return hash_json(content)

    def special(self, role: Role) -> int | None:
        return self.roles.get(role)

    def encode(self, texts: Sequence[str]) -> list[NDArray[np.uint32]]:
        return [self._encode(replace_surrogates(text)) for text in texts]

    def _encode(self, text: str) -> NDArray[np.uint32]:
        pieces = filter(None, LONG_RUN.split(text))
        encoded = [encode_with(self.inner, piece) for piece in pieces]
        return np.concatenate(encoded) if encoded else np.zeros(0, np.uint32)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of some tokens, special ones included; bytes that are not UTF-8 are replaced."""
        return str(self.inner.decode(list(tokens), errors="replace"))

    def token_bytes(self, vocab: int) -> NDArray[np.int64]:
        """The length of each token in bytes; special tokens have none."""
        lengths = np.zeros(vocab, np.int64)
        for token, rank in self.ranks.items():
            if rank < vocab:
                lengths[rank] = len(token)
        return lengths


def encode_with(encoding: Any, text: str) -> NDArray[np.uint32]:
    """A text's tokens by tiktoken, every special token's name being text."""
    tokens: NDArray[np.uint32] = encoding.encode_to_numpy(text, allowed_special=set(), disallowed_special=())
    return tokens


def make_encoding(ranks: Mapping[bytes, int], pattern: str, special_tokens: Mapping[str, int]) -> Any:
    """Build tiktoken's encoder; SourceError where it is not installed or refuses the pattern."""
    try:
        import tiktoken
    except ImportError:
        raise SourceError("tokenizer: the package tiktoken is not installed: pip install tiktoken.") from None
    try:
        own: dict[str, Any] = {"mergeable_ranks": dict(ranks), "special_tokens": dict(special_tokens)}
        return tiktoken.Encoding("trivium", pat_str=pattern, **own)
    except ValueError as error:
        reason = str(error).strip().splitlines()[-1]
        raise SourceError(f"tokenizer.pattern: cannot be used: {reason}. Write a regular expression.") from None


def open_tiktoken(config: TokenizerConfig) -> TiktokenTokenizer:
    """The tokenizer of a .tiktoken file, or of a folder that has one."""
    path = _find(Path(config.path or ""))
    ranks = read_ranks(path)
    names = config.special_tokens if config.special_tokens is not None else [role_name(role) for role in ROLES]
    first = 1 + max(ranks.values())
    special = {name: first + place for place, name in enumerate(dict.fromkeys(names))}
    roles = find_roles(config, {}, special.get, special)
    tokenizer = TiktokenTokenizer(ranks, config.pattern or GPT4_PATTERN, special, roles)
    assert tokenizer.inner, "a pattern that cannot be used is refused here and not later"
    return tokenizer


def _find(path: Path) -> Path:
    found = sorted(path.glob("*.tiktoken")) if path.is_dir() else [path]
    if len(found) != 1:
        what = f"{path} has {len(found)} .tiktoken files, not one"
        raise SourceError(f"tokenizer.path: {what}. Write the path of a .tiktoken file.")
    if not found[0].is_file():
        hint = suggestion(path)
        raise SourceError(f"tokenizer.path: {path} does not exist.{hint} Write the path of a .tiktoken file.")
    return found[0]


def read_ranks(path: Path) -> dict[bytes, int]:
    """The tokens and ranks of a .tiktoken file, every byte among them."""
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        if not line.strip():
            continue
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except (ValueError, binascii.Error):
            what = f"line {number:,} is not a token in base64 and its rank"
            raise SourceError(f"{path}: {what}. Name a .tiktoken file.") from None
    missing = [byte for byte in range(256) if bytes([byte]) not in ranks]
    if missing:
        what = f"has no token for {len(missing)} of the 256 bytes, such as {missing[0]}"
        raise SourceError(f"{path}: {what}: not every text could be written. Name another file.")
    if len(set(ranks.values())) < len(ranks) or min(ranks.values()) < 0:
        raise SourceError(f"{path}: two tokens have one rank, or a rank is below 0. Name another file.")
    return ranks
