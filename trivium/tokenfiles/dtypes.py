"""dtypes: which integers a file's tokens are, as the config or metadata beside the file declares.

Never the file's size: a uint16 file with an even number of tokens looks just like a uint32 file.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trivium.errors import SourceError
from trivium.files import parse_json

DTYPES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64")
SIDECARS = ("metadata.json", "metadata.yaml", "metadata.yml")


@dataclass(frozen=True, slots=True)
class TokenMetadata:
    """The dtype and the tokenizer that `where` (a file, or the config) declares; None where it does not."""

    where: str
    dtype: str | None = None
    tokenizer: str | None = None


def token_dtype(name: str, where: str) -> np.dtype[Any]:
    """The little-endian dtype called `name`; tokens are integers, so nothing else has a name here."""
    if name not in DTYPES:
        known = ", ".join(f'"{known}"' for known in DTYPES)
        raise SourceError(f'{where}: dtype "{name}" is not a dtype of tokens. Write one of {known}.')
    return np.dtype(name).newbyteorder("<")


def agreed_dtype(path: Path, metadata: list[TokenMetadata]) -> np.dtype[Any]:
    """The one dtype in all of `metadata`; refused where none declares one, or two differ."""
    declared = [each for each in metadata if each.dtype is not None]
    if not declared:
        raise SourceError(
            f"{path}: its dtype is not known: no metadata declares it, and the file's size does not show it. "
            f'Write dtype = "uint16" (or what the file was written with) in the source.'
        )
    first = declared[0]
    for other in declared[1:]:
        if other.dtype != first.dtype:
            raise SourceError(
                f"{path}: {first.where} has {first.dtype}, {other.where} has {other.dtype}. "
                f"Tokens have one dtype. Fix the one that is wrong."
            )
    assert first.dtype is not None
    return token_dtype(first.dtype, first.where)


def read_sidecar(folder: Path) -> TokenMetadata | None:
    """The metadata of a folder of flat files, in tatm's form, which KempnerForge reads too.

    `{"tokenized_info": {"dtype": "uint16", "tokenizer": "gpt2"}}`, or the same keys at the top, as JSON or
    YAML. nanoGPT's `meta.pkl` has no dtype, and no pickle is ever loaded.
    """
    for name in SIDECARS:
        path = folder / name
        if path.is_file():
            text = path.read_text(encoding="utf-8", errors="replace")
            keys = _json_keys(text, path) if path.suffix == ".json" else _yaml_keys(text)
            return TokenMetadata(str(path), keys.get("dtype"), keys.get("tokenizer"))
    return None


def _json_keys(text: str, path: Path) -> dict[str, str]:
    try:
        keys = parse_json(text)
    except ValueError as error:
        raise SourceError(f"{path}: is not JSON ({error}). Fix it, or write dtype in the source.") from None
    keys = keys.get("tokenized_info", keys) if isinstance(keys, dict) else None
    keys = keys if isinstance(keys, dict) else {}
    return {key: value for key, value in keys.items() if isinstance(value, str)}


def _yaml_keys(text: str) -> dict[str, str]:
    """The plain `key: value` lines of `tokenized_info`, or of the top: enough for two keys."""
    block = re.search(r"^tokenized_info:[ ]*\n((?:[ ]+.*\n?)*)", text, re.MULTILINE)
    lines = re.findall(r"^[ ]*(\w+):[ ]*['\"]?([^'\"\n]+?)['\"]?[ ]*$", block[1] if block else text, re.MULTILINE)
    return dict(lines)
