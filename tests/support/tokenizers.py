"""Small tokenizers of every kind, trained on a few lines, and texts that try them."""

import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trivium.config.schema import Tokenizer as TokenizerConfig
from trivium.text.fast_bpe import make_fast
from trivium.text.file_tokenizer import FileTokenizer
from trivium.text.tokenizer import Tokenizer, open_tokenizer
from trivium.text.train_tokenizer import train_tokenizer

LINES = [
    "The quick brown fox jumps over the lazy dog; it's what we've said 1234567 times.",
    "Über den Wolken, naïve café, 日本語のテキスト, привет мир, 🙂🙃.\n",
    "def spell(word):\n    return ', '.join(word)  # a tab\there\r\n",
    "    aaaa aaaaaaaa   aaaa\n\n\n  \t x",
]
TRIED = [*LINES, "", " ", "\n", "a", "🙂", "don't DON'T \u017f 'LL", "x" * 50 + " " * 50, "\u0000\ufeff٣½", "é\u0301"]
NAMES = "an <|endoftext|> here, <|bos|>, <s>x</s>, <|user_start|>, <|assistant_end|> and there"


def opened(**keys: Any) -> Tokenizer:
    """The tokenizer that these keys of `[tokenizer]` give."""
    tokenizer = open_tokenizer(TokenizerConfig.model_validate(keys))
    assert tokenizer is not None
    return tokenizer


def byte_level() -> dict[str, Any]:
    """The JSON of a byte-level BPE of 400 tokens with all roles."""
    described: dict[str, Any] = json.loads(train_tokenizer(LINES * 3, 400).inner.to_str())
    return described


def piece_level(model: str = "BPE") -> dict[str, Any]:
    """The JSON of a BPE (or Unigram) over characters with marks for spaces, and bytes for what it does not know."""
    specials = [(0, "<unk>"), (1, "<s>"), (2, "</s>")]
    names = [name for _, name in specials] + [f"<0x{byte:02X}>" for byte in range(256)]
    names += [*"▁abcdefghijklmnopqrstuvwxyz<>/", "th", "▁th", "▁the"]
    vocab: Any = {name: number for number, name in enumerate(names)}
    described: dict[str, Any] = {"type": model, "unk_token": "<unk>", "byte_fallback": True, "fuse_unk": True}
    described |= {"vocab": vocab, "merges": [["t", "h"], ["▁", "th"], ["▁th", "e"]]}
    if model == "Unigram":
        pieces = [[name, 0.0 if number < 3 else -float(number)] for number, name in enumerate(names)]
        described = {"type": "Unigram", "unk_id": 0, "byte_fallback": True, "vocab": pieces}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    space = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    return {
        "version": "1.0",
        "added_tokens": [{"id": number, "content": name, "special": True, **flags} for number, name in specials],
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": [space, {"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": described,
    }


def write_json(path: Path, described: object) -> Path:
    """Write an object as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(described), encoding="utf-8")
    return path


def write_ranks(path: Path, merged: Sequence[bytes] = (b"th", b" th", b" the")) -> Path:
    """A .tiktoken file: the bytes, then some merges."""
    tokens = [bytes([byte]) for byte in range(256)] + list(merged)
    lines = [f"{base64.b64encode(token).decode()} {rank}" for rank, token in enumerate(tokens)]
    path.write_text("\n".join(lines) + "\n")
    return path


def every_kind(folder: Path) -> dict[str, Tokenizer]:
    """One tokenizer of each kind."""
    return {
        "bytes": opened(kind="bytes"),
        "byte-level": opened(path=str(write_json(folder / "bytes.json", byte_level()))),
        "pieces": opened(path=str(write_json(folder / "pieces.json", piece_level()))),
        "unigram": opened(path=str(write_json(folder / "unigram.json", piece_level("Unigram")))),
        "ranks": opened(kind="tiktoken", path=str(write_ranks(folder / "x.tiktoken"))),
    }


def file_tokenizer(path: Path, described: object, **keys: Any) -> FileTokenizer:
    """A tokenizer.json opened."""
    tokenizer = opened(path=str(write_json(path, described)), **keys)
    assert isinstance(tokenizer, FileTokenizer)
    return tokenizer


def encoder_for(tokenizer: Tokenizer, texts: Sequence[str]) -> Tokenizer:
    """The fastest encoder with the ids of `tokenizer`, compared on `texts`; it may be `tokenizer` itself."""
    fast = make_fast(tokenizer, texts)
    return tokenizer if isinstance(fast, str) else fast
