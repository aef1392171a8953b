"""What a tokenizer.json describes, through the package tokenizers.

Truncation, padding and dropout are removed from the file's settings, so that no text is cut, padded or encoded at
random. Memory is twice the file's where a chat template is used.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trivium.config.schema import Tokenizer as TokenizerConfig
from trivium.errors import SourceError
from trivium.files import hash_json, parse_json
from trivium.text.chat_template import ChatTemplate
from trivium.text.roles import Role, Roles, find_roles
from trivium.text.tokenizer import AwaitedTokenizerError, replace_surrogates
from trivium.text.tokenizer_folder import find_folder, read_template, read_text

BYTE_FALLBACK = re.compile(r"<0x[0-9A-F]{2}>")


@dataclass(frozen=True, eq=False)
class FileTokenizer:
    """What a tokenizer.json describes, its tokens with a role, and its chat template."""

    description: str  # the JSON, without truncation, padding and dropout
    roles: Roles
    template: ChatTemplate | None = None

    def __reduce__(self) -> tuple[type["FileTokenizer"], tuple[str, Roles, ChatTemplate | None]]:
        return FileTokenizer, (self.description, dict(self.roles), self.template)

    @cached_property
    def inner(self) -> Any:
        """The library's tokenizer, which takes names of special tokens for text."""
        return _build(self.description, names_are_text=True)

    @cached_property
    def _inner_for_templates(self) -> Any:
        """The library's tokenizer, which takes names of special tokens for these tokens: for what a template wrote."""
        return _build(self.description, names_are_text=False)

    @cached_property
    def special_names(self) -> Mapping[int, str]:
        """Ids and names of all special tokens, with and without a role."""
        added = self.inner.get_added_tokens_decoder().items()
        names = {number: token.content for number, token in added if token.special}
        return names | {number: self.inner.id_to_token(number) for number in self.roles.values()}

    @cached_property
    def _break_names(self) -> re.Pattern[str]:
        """Finds the place after the first character of a special token's name, longer names first."""
        names = sorted(self.special_names.values(), key=len, reverse=True)
        return re.compile("|".join(f"(?<={re.escape(name[0])})(?={re.escape(name[1:])})" for name in names) or r"(?!)")

    @cached_property
    def vocab(self) -> int:
        return 1 + max(self.inner.get_vocab(with_added_tokens=True).values(), default=-1)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the file's content, the roles and the template."""
        template = None if self.template is None else self.template.source
        content = [json.loads(self.description), dict(self.roles), template]
        return hash_json(content)

    def special(self, role: Role) -> int | None:
        return self.roles.get(role)

    def encode(self, texts: Sequence[str]) -> list[NDArray[np.uint32]]:
        texts = [replace_surrogates(text) for text in texts]
        tokens = self._ids(texts)
        special = np.array(sorted(self.special_names), np.uint32)
        return [
            self._encode_with_broken_names(text) if np.isin(each, special).any() else each
            for text, each in zip(texts, tokens, strict=True)
        ]

    def _ids(self, texts: Sequence[str]) -> list[NDArray[np.uint32]]:
        try:
            encoded = self.inner.encode_batch_fast(list(texts), add_special_tokens=False)
        except Exception as error:  # the library raises no other kind
            what = f"tokenizer: cannot encode a text ({error})"
            raise SourceError(f"{what}. Use one that knows every byte, or has a token for unknown ones.") from None
        return [np.array(each.ids, np.uint32) for each in encoded]

    def _encode_with_broken_names(self, text: str) -> NDArray[np.uint32]:
        """Encode pieces of which none holds a whole special name: the model itself may know one (`<s>` in Unigram)."""
        pieces = self._break_names.split(text)
        tokens = np.concatenate(self._ids(pieces))
        for number, name in self.special_names.items():
            if number in tokens:
                raise SourceError(
                    f'tokenizer: encodes the text "{name}" as its special token of that name. '
                    f"A document must not contain special tokens. Use a tokenizer in which no text becomes one."
                )
        return tokens

    def encode_template(self, pieces: Sequence[str]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """The tokens of what a template wrote, special ones included, and each token's first character."""
        tokens, starts, before = [], [], 0
        encoded = self._inner_for_templates.encode_batch(pieces, add_special_tokens=False)
        for piece, each in zip(pieces, encoded, strict=True):
            tokens += each.ids
            starts += [before + start for start, _ in each.offsets]
            before += len(piece)
        return np.array(tokens, np.uint32), np.array(starts, np.int64)

    def break_names(self, text: str, mark: str) -> str:
        """The text with a mark after the first character of each special token's name."""
        return self._break_names.sub(mark, text)

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self.inner.decode(list(tokens), skip_special_tokens=False))

    def token_bytes(self, vocab: int) -> NDArray[np.int64]:
        """Bytes of each token's own text, found without decoding: half a character has bytes too."""
        described = json.loads(self.description)
        is_byte_level = '"ByteLevel"' in json.dumps([described.get("decoder"), described.get("pre_tokenizer")])
        added = {token.content for token in self.inner.get_added_tokens_decoder().values()}
        lengths = np.zeros(vocab, np.int64)
        for token, number in self.inner.get_vocab(with_added_tokens=True).items():
            if number < vocab and number not in self.special_names:
                lengths[number] = len(token.encode()) if token in added else _byte_length(token, is_byte_level)
        return lengths


def _byte_length(token: str, is_byte_level: bool) -> int:
    """In byte-level vocabularies a character is a byte; in others U+2581 is a space."""
    if is_byte_level:
        return len(token)
    if BYTE_FALLBACK.fullmatch(token):
        return 1
    return len(token.replace("\u2581", " ").encode())


def open_tokenizer_json(config: TokenizerConfig, *, fetch: bool = True) -> FileTokenizer:
    """The tokenizer of a tokenizer.json, a folder, or a name on the Hub."""
    where = config.path or ""
    if config.train is not None and not Path(where).exists():
        how = f"trivium prepare CONFIG trains one of {config.train.vocab:,} tokens on the config's texts"
        raise AwaitedTokenizerError(f"tokenizer.path: {where} does not exist yet: {how}.")
    folder = find_folder(where, fetch=fetch)
    described = _described(read_text(folder.path), str(folder.path))
    inner = _build(json.dumps(described), names_are_text=False, where=str(folder.path))
    special = [token["content"] for token in described.get("added_tokens") or () if token.get("special")]
    roles = find_roles(config, folder.role_names, inner.token_to_id, special)
    for role, number in roles.items():
        if inner.id_to_token(number) is None:
            what = f"its token for {role} has the id {number:,}, which belongs to no token"
            raise SourceError(f"{folder.path}: is not a tokenizer.json: {what}. Name the tokenizer's own file.")
    for token in described.get("added_tokens") or ():
        # The library takes only the names of special tokens for text.
        token["special"] = bool(token.get("special")) or inner.token_to_id(token["content"]) in roles.values()
    source = folder.template if config.chat_template is None else read_template(config.chat_template)
    names = {f"{role}_token": inner.id_to_token(roles[role]) for role in ("bos", "eos") if role in roles}
    names = dict(folder.token_names) | names
    template = None if source is None else ChatTemplate(source, names, from_config=config.chat_template is not None)
    return FileTokenizer(json.dumps(described), roles, template)


def _described(text: str, where: str) -> dict[str, Any]:
    """The file's JSON without truncation, padding and dropout."""
    try:
        described = parse_json(text)
    except ValueError as error:
        raise SourceError(f"{where}: is not a tokenizer.json: {error}. Name the tokenizer's own file.") from None
    if not isinstance(described, dict) or not isinstance(described.get("model"), dict):
        raise SourceError(f"{where}: is not a tokenizer.json: it has no model. Name the tokenizer's own file.")
    added = described.get("added_tokens") or ()
    if not isinstance(added, list | tuple) or not all(
        isinstance(token, dict) and isinstance(token.get("content"), str) and token["content"] for token in added
    ):
        what = "its added_tokens are not a list of tokens with content"
        raise SourceError(f"{where}: is not a tokenizer.json: {what}. Name the tokenizer's own file.")
    described |= {"truncation": None, "padding": None}
    if "dropout" in described["model"]:
        described["model"]["dropout"] = None
    return described


def _build(description: str, *, names_are_text: bool, where: str = "tokenizer") -> Any:
    try:
        import tokenizers
    except ImportError:
        raise SourceError("tokenizer: the package tokenizers is not installed: pip install 'trivium[hf]'.") from None
    try:
        inner = tokenizers.Tokenizer.from_str(description)
    except Exception as error:  # the library has no class of its own for what it cannot read
        raise SourceError(f"{where}: is not a tokenizer.json: {error}. Name the tokenizer's own file.") from None
    inner.encode_special_tokens = names_are_text
    return inner
