"""A byte-level BPE of a tokenizer.json, encoded by tiktoken with the same ids: about three times as fast.

The two libraries merge by different rules: one knows pairs of tokens, the other merges whatever two neighbours
make a token. They agree where every token's own bytes are merged into that token (tried for the whole vocabulary),
and no token comes from two pairs: then a pair that could be merged is always the pair that makes the token. Their
regular expressions were compared for the patterns below, for every character beside letters, digits, space and
punctuation. Where the ids are not provably the same, the slow library encodes: all texts, or only those in question.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trivium.text.file_tokenizer import FileTokenizer
from trivium.text.roles import Role
from trivium.text.tiktoken_file import GPT4_PATTERN, encode_with, make_encoding
from trivium.text.tokenizer import Tokenizer, replace_surrogates

GPT2_PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD = r"[^\r\n\p{L}\p{N}]?"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
COMPARED_PATTERNS = frozenset(
    (
        GPT2_PATTERN,
        GPT2_PATTERN.replace("(?:[sdmt]|ll|ve|re)", "s|'t|'re|'ve|'m|'ll|'d"),
        GPT4_PATTERN,
        GPT4_PATTERN.replace("{1,3}", "{1,2}"),
        rf"{_CONTRACTIONS}|{_WORD}\p{{L}}+|\p{{N}}{{1,3}}{_REST}",
        rf"{_CONTRACTIONS}|{_WORD}\p{{L}}+|\p{{N}}{_REST}",
        rf"{_WORD}{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|{_WORD}{_UPPER}+{_LOWER}*{_CONTRACTIONS}?|\p{{N}}{{1,3}}"
        + _REST.replace(r"\n]*", r"\n/]*"),
    )
)
_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False}
_NO_REGEX, _WITH_REGEX = ({**_BYTE_LEVEL, "use_regex": use_regex} for use_regex in (False, True))


@dataclass(frozen=True, eq=False)
class FastTokenizer:
    """The ids of a tokenizer.json, by tiktoken; `slow` decodes, and encodes what only it can."""

    slow: FileTokenizer
    pattern: str

    def __reduce__(self) -> tuple[type["FastTokenizer"], tuple[FileTokenizer, str]]:
        return FastTokenizer, (self.slow, self.pattern)

    @cached_property
    def _encoding_and_ids(self) -> tuple[Any, NDArray[np.uint32]]:
        ranked = _ranked(json.loads(self.slow.description))
        assert not isinstance(ranked, str), "make_fast checks it first"
        ranks = {token: rank for rank, (token, _) in enumerate(ranked)}
        return make_encoding(ranks, self.pattern, {}), np.array([number for _, number in ranked], np.uint32)

    @cached_property
    def _slow_names(self) -> re.Pattern[str] | None:
        """Finds added tokens that are not special, whose names in a text are these tokens; None without such tokens."""
        added = self.slow.inner.get_added_tokens_decoder().values()
        names = [re.escape(token.content) for token in added if not token.special]
        return re.compile("|".join(names)) if names else None

    @property
    def vocab(self) -> int:
        return self.slow.vocab

    @property
    def fingerprint(self) -> str:
        """The slow tokenizer's: the ids are the same."""
        return self.slow.fingerprint

    def special(self, role: Role) -> int | None:
        return self.slow.special(role)

    def encode(self, texts: Sequence[str]) -> list[NDArray[np.uint32]]:
        return [self._encode(text) for text in texts]

    def _encode(self, text: str) -> NDArray[np.uint32]:
        text = replace_surrogates(text)
        if self._slow_names is None or not self._slow_names.search(text):
            encoding, ids = self._encoding_and_ids
            try:
                return ids[encode_with(encoding, text)]
            except ValueError:
                pass  # its regular expressions give up in a very long run of white space
        return self.slow.encode([text])[0]

    def decode(self, tokens: Sequence[int]) -> str:
        return self.slow.decode(tokens)

    def token_bytes(self, vocab: int) -> NDArray[np.int64]:
        return self.slow.token_bytes(vocab)


def make_fast(tokenizer: Tokenizer, texts: Sequence[str]) -> FastTokenizer | str:
    """The tokenizer by tiktoken, or in a few words why not."""
    if not isinstance(tokenizer, FileTokenizer):
        return "no tokenizer.json"
    described = json.loads(tokenizer.description)
    pattern = _pattern(described.get("pre_tokenizer"))
    ranked = _ranked(described)
    if described.get("normalizer"):
        return "normalizer"
    if pattern not in COMPARED_PATTERNS:
        return "pre_tokenizer"
    if isinstance(ranked, str):
        return ranked
    if not _merges_into_itself(described, ranked):
        return "tokens that no merges make"
    fast = FastTokenizer(tokenizer, pattern)
    same = zip(fast.encode(texts), tokenizer.encode(texts), strict=True)
    return fast if all(np.array_equal(ours, theirs) for ours, theirs in same) else "other ids"


def _pattern(described: Any) -> str:
    """The regular expression that splits a text; empty where the file splits it in another way."""
    if not isinstance(described, dict):
        return ""
    parts = described.get("pretokenizers") if described.get("type") == "Sequence" else [described]
    shown = [{key: value for key, value in part.items() if key != "trim_offsets"} for part in parts or ()]
    if shown == [_WITH_REGEX]:
        return GPT2_PATTERN
    if len(shown) == 2 and shown[1] == _NO_REGEX and shown[0].get("type") == "Split":
        pattern = shown[0].get("pattern", {}).get("Regex", "")
        if shown[0] == {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}:
            return str(pattern)
    return ""


def _ranked(described: Mapping[str, Any]) -> list[tuple[bytes, int]] | str:
    """Bytes and id of every token that text can give, in the order of merges; or why tiktoken cannot have them."""
    model = described["model"]
    odd = ("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback")
    if model.get("type") != "BPE" or any(model.get(key) for key in odd):
        return "model"
    vocab: dict[str, int] = model["vocab"]
    characters = byte_characters()
    if not characters.keys() <= vocab.keys():
        return "bytes without a token"
    ranked = [(bytes([byte]), vocab[character]) for character, byte in characters.items()]
    for merge in model["merges"]:
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        if not set(left + right) <= characters.keys():
            return "tokens that are not bytes"
        ranked.append((bytes(characters[character] for character in left + right), vocab[left + right]))
    return ranked if len({token for token, _ in ranked}) == len(ranked) else "tokens of two merges"


def _merges_into_itself(described: dict[str, Any], ranked: list[tuple[bytes, int]]) -> bool:
    """Whether the merges alone turn each token's bytes into that token."""
    from tokenizers import Tokenizer as Library

    alone = {**described, "added_tokens": [], "normalizer": None, "pre_tokenizer": None, "post_processor": None}
    alone["model"] = {**described["model"], "ignore_merges": False}
    merges = Library.from_str(json.dumps(alone))
    names = {byte: character for character, byte in byte_characters().items()}
    texts = ["".join(names[byte] for byte in token) for token, _ in ranked]
    encoded = merges.encode_batch_fast(texts, add_special_tokens=False)
    return all(each.ids == [number] for each, (_, number) in zip(encoded, ranked, strict=True))


def byte_characters() -> dict[str, int]:
    """The character that represents each byte: itself where it can be printed, else from U+0100 on."""
    printed = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printed]
    shown = {chr(byte): byte for byte in printed} | {chr(256 + place): byte for place, byte in enumerate(others)}
    return dict(sorted(shown.items(), key=lambda item: item[1]))
