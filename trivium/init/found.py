"""What was found in a folder: its sources, with sizes that are estimates, and the files that were passed over."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Kind = Literal["text", "code", "records", "chat", "tokens"]


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file of a folder: its name within it, and its size."""

    path: Path
    name: str
    size: int

    @property
    def ending(self) -> str:
        """`.jsonl.gz` of `web.jsonl.gz`; of a name without an ending the name itself."""
        suffixes = Path(self.name).suffixes
        if not suffixes:
            return Path(self.name).name
        return "".join(suffixes[-2:]) if suffixes[-1] in (".gz", ".zst") else suffixes[-1]


@dataclass(frozen=True, slots=True)
class Estimate:
    """How much a source holds, from those of its files that were looked into."""

    documents: int
    text_bytes: int  # of tokens: 0
    tokens: int | None = None  # where files hold tokens already
    bad: float = 0.0  # of the lines or files that were looked at, the fraction without a document
    texts: tuple[str, ...] = ()  # some, or parts of some


@dataclass(frozen=True, slots=True)
class FoundSource:
    """Files that are read together, and the paths that name them and no others."""

    name: str
    kind: Kind
    files: tuple[FoundFile, ...]
    paths: tuple[str, ...]
    estimate: Estimate
    column: str | None = None
    tokenizer: str | None = None  # that the token files name
    settings: Mapping[str, str | int] = field(default_factory=dict)  # of token files: what the config must say of them

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


@dataclass(frozen=True, slots=True)
class PassedOver:
    """Files that no source has, with the reason, and one of them."""

    reason: str
    files: int
    size: int
    example: str


@dataclass(frozen=True, slots=True)
class FoundFolder:
    """A folder as it was looked at."""

    folder: Path
    sources: tuple[FoundSource, ...]
    passed_over: tuple[PassedOver, ...]
    tokenizers: tuple[Path, ...]  # every tokenizer.json
    is_whole: bool  # whether all files were listed
