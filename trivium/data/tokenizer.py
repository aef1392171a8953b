"""Tokens -> text, for people to read: a Hugging Face tokenizer's file, or plain bytes."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trivium.config.schema import Tokenizer as TokenizerConfig
from trivium.errors import SourceError


@dataclass(frozen=True, slots=True)
class ByteTokenizer:
    """A token is a byte; ids from 256 on are special."""

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of some tokens; bytes that are no UTF-8 are replaced."""
        return bytes(token for token in tokens if token < 256).decode(errors="replace")


@dataclass(frozen=True, slots=True)
class FileTokenizer:
    """What a tokenizer.json describes."""

    inner: Any

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of some tokens, special ones included."""
        return str(self.inner.decode(list(tokens), skip_special_tokens=False))


def open_tokenizer(config: TokenizerConfig | None) -> ByteTokenizer | FileTokenizer | None:
    """The config's tokenizer; None where it names none."""
    if config is None:
        return None
    if config.kind == "bytes":
        return ByteTokenizer()
    path = Path(config.path or "")
    path = path / "tokenizer.json" if path.is_dir() else path
    if config.kind != "huggingface" or not path.is_file():
        raise SourceError(f"tokenizer.path: {path} is not there. Write the path of a tokenizer.json or its folder.")
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise SourceError("tokenizer: the package tokenizers is not installed: pip install 'trivium[hf]'.") from None
    return FileTokenizer(Tokenizer.from_file(str(path)))
