"""The words that tasks are made of: a list of common ones, or one's own; none is in both splits."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trivium.errors import SourceError
from trivium.seeds import derive_key

COMMON = Path(__file__).with_name("words.txt")
TESTED = 10  # one word in so many is for the test


class WordRows:
    """Rows `{"word", "key"}`, drawn by a key of the seed, the task, the split and the row's number."""

    def __init__(self, words: Sequence[str], task: str, split: str, size: int | None, seed: int) -> None:
        self._words = words
        self._path = (task, split)
        self._size = len(words) if size is None else size
        self._seed = seed

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int, /) -> dict[str, Any]:
        key = derive_key(self._seed, *self._path, index)
        return {"word": self._words[key % len(self._words)], "key": derive_key(key, "asked")}


def split_words(path: Path | None, split: str) -> list[str]:
    """The words of a split, from a file with a word a line; which split a word is in depends on the word alone."""
    path = path or COMMON
    if not path.is_file():
        raise SourceError(f"{path}: is not there. Name a file with a word a line, or none.")
    words = dict.fromkeys(path.read_text(encoding="utf-8").split())
    found = [word for word in words if (derive_key(0, "word", word) % TESTED == 0) == (split == "test")]
    if not found:
        raise SourceError(f'{path}: has no words for the split "{split}". Name a longer list.')
    return found
