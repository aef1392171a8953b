"""A tokenizer of any kind -> the files of a Hugging Face folder, with ids that were compared.

    tokenizer.json  tokenizer_config.json  chat_template.jinja

Bytes and ranks become byte-level BPEs: ranks by every pair of tokens that makes a token, in the order of the ranks.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trivium.text.chat import REQUIRED_MARKERS, render
from trivium.text.chat_template import ChatTemplate
from trivium.text.fast_bpe import byte_characters
from trivium.text.file_tokenizer import FileTokenizer
from trivium.text.marker_template import marker_template
from trivium.text.roles import ROLES, Role, Roles, role_name
from trivium.text.tiktoken_file import TiktokenTokenizer
from trivium.text.tokenizer import ByteTokenizer, Tokenizer
from trivium.text.tokenizer_folder import MARKERS_KEY

SAMPLE_TEXTS = (
    "The quick brown fox can't jump over 1234567 lazy dogs; it's what WE'VE said.",
    "Über den Wolken, naïve café, 日本語のテキスト, привет мир, 🙂🙃.\n\n",
    "def spell(word):\n    return ', '.join(word)\t# a tab\r\n\r\n  \t x   ",
)
SAMPLE_CONVERSATION = (
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "What is 12 / 60?"},
    {"role": "assistant", "content": "It is 0.2, naïvely."},
    {"role": "user", "content": " And then?\n"},
    {"role": "assistant", "content": "Nothing."},
)


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """Texts by the name of their file, and what could not be written."""

    files: Mapping[str, str]
    skipped: tuple[str, ...] = ()


def tokenizer_files(tokenizer: Tokenizer, seq_len: int, before: Sequence[int]) -> TokenizerFiles:
    """The files of a tokenizer; `before` are the ids before each text. Files that would give other ids are skipped."""
    described = _described(tokenizer)
    names = _role_names(tokenizer)
    written = FileTokenizer(json.dumps(described), _roles(tokenizer))
    encoded = zip(written.encode(SAMPLE_TEXTS), tokenizer.encode(SAMPLE_TEXTS), strict=True)
    if not all(np.array_equal(*each) for each in encoded):
        return TokenizerFiles({}, ("the tokenizer, whose pattern splits text differently in the other library",))
    bos = tokenizer.special("bos")
    if described.get("post_processor") is None and bos is not None and list(before) == [bos]:
        described["post_processor"] = _prepend(names["bos"], bos)
    token_names = {f"{role}_token": names[role] for role in ("bos", "eos") if role in names}
    ends = next((names[role] for role in ("eos", "bos") if role in names), None)
    config = {
        **token_names,
        **({} if ends is None else {"pad_token": ends}),
        "model_max_length": seq_len,
        "clean_up_tokenization_spaces": False,
        "tokenizer_class": "PreTrainedTokenizerFast",
        MARKERS_KEY: {role: name for role, name in names.items() if role not in ("bos", "eos")},
    }
    written_config = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
    files = {"tokenizer.json": json.dumps(described, ensure_ascii=False), "tokenizer_config.json": written_config}
    template = _template(tokenizer, names)
    if template is None:
        return TokenizerFiles(files)
    if not _writes_the_same(template, written, token_names, tokenizer):
        return TokenizerFiles(files, ("the chat template, which would give other tokens",))
    return TokenizerFiles({**files, "chat_template.jinja": template})


def _described(tokenizer: Tokenizer) -> dict[str, Any]:
    """The JSON of a tokenizer.json with the same ids."""
    if isinstance(tokenizer, FileTokenizer):
        described: dict[str, Any] = json.loads(tokenizer.description)
        return described
    from tokenizers import Regex, decoders, models, pre_tokenizers
    from tokenizers import Tokenizer as Library

    every_byte = {bytes([byte]): byte for byte in range(256)}
    ranks = tokenizer.ranks if isinstance(tokenizer, TiktokenTokenizer) else every_byte
    characters = {byte: character for character, byte in byte_characters().items()}
    shown = {token: "".join(characters[byte] for byte in token) for token in ranks}
    vocab = {shown[token]: rank for token, rank in ranks.items()}
    inner = Library(models.BPE(vocab=vocab, merges=[], ignore_merges=True))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    if isinstance(tokenizer, TiktokenTokenizer):
        split = pre_tokenizers.Split(Regex(tokenizer.pattern), "isolated")
        inner.pre_tokenizer = pre_tokenizers.Sequence([split, inner.pre_tokenizer])
    inner.decoder = decoders.ByteLevel()
    described = json.loads(inner.to_str())
    described["model"]["merges"] = [[shown[left], shown[right]] for left, right in _pairs(ranks)]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    described["added_tokens"] = [
        {"id": number, "content": name, **flags} for name, number in _special_tokens(tokenizer).items()
    ]
    return described


def _pairs(ranks: Mapping[bytes, int]) -> list[tuple[bytes, bytes]]:
    """Every pair of tokens that makes a token, in the order of the ranks: any such neighbours are merged."""
    return [
        (token[:cut], token[cut:])
        for token, _ in sorted(ranks.items(), key=lambda item: item[1])
        for cut in range(1, len(token))
        if token[:cut] in ranks and token[cut:] in ranks
    ]


def _special_tokens(tokenizer: Tokenizer) -> dict[str, int]:
    if isinstance(tokenizer, TiktokenTokenizer):
        return dict(sorted(tokenizer.special_tokens.items(), key=lambda item: item[1]))
    assert isinstance(tokenizer, ByteTokenizer), "a tokenizer is a file's, tiktoken's or of bytes"
    return {role_name(role): number for role, number in _roles(tokenizer).items()}


def _roles(tokenizer: Tokenizer) -> Roles:
    return {role: number for role in ROLES if (number := tokenizer.special(role)) is not None}


def _role_names(tokenizer: Tokenizer) -> dict[Role, str]:
    roles = _roles(tokenizer)
    if isinstance(tokenizer, FileTokenizer):
        return {role: tokenizer.special_names[number] for role, number in roles.items()}
    names = {number: name for name, number in _special_tokens(tokenizer).items()}
    return {role: names[number] for role, number in roles.items()}


def _prepend(name: str, number: int) -> dict[str, Any]:
    """A post-processor that adds one token before each text."""
    first: dict[str, Any] = {"SpecialToken": {"id": name, "type_id": 0}}
    one, other = ({"Sequence": {"id": each, "type_id": 0}} for each in "AB")
    known = {name: {"id": name, "ids": [number], "tokens": [name]}}
    templates = {"single": [first, one], "pair": [first, one, first, other]}
    return {"type": "TemplateProcessing", **templates, "special_tokens": known}


def _template(tokenizer: Tokenizer, names: Mapping[Role, str]) -> str | None:
    """The template that writes conversations; None without a template and without markers."""
    template = tokenizer.template if isinstance(tokenizer, FileTokenizer) else None
    has_markers = all(role in names for role in REQUIRED_MARKERS)
    if template is not None and (template.from_config or not has_markers):
        return template.source
    return marker_template(names) if has_markers else None


def _writes_the_same(
    template: str, written: FileTokenizer, token_names: Mapping[str, str], tokenizer: Tokenizer
) -> bool:
    """Whether the template gives a conversation the tokens and the loss mask of `tokenizer`."""
    exported = ChatTemplate(template, token_names, from_config=True)
    templated = FileTokenizer(written.description, written.roles, exported)
    one, other = (render(SAMPLE_CONVERSATION, each) for each in (templated, tokenizer))
    return np.array_equal(one.tokens, other.tokens) and np.array_equal(one.loss_mask, other.loss_mask)
