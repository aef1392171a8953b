"""Tasks that are generated from words: spelling them, and counting their letters.

The words are a list of common ones, or one's own. No word is in both splits, unless they are split by rows. Letters of
an answer follow no space, so that they are the same tokens wherever they are.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from trivium.errors import SourceError
from trivium.seeds import derive_key
from trivium.tasks.phrasings import COUNTING, SPELLING
from trivium.tasks.task import Conversation, Kind, Task, final_number, last_text, talk

COMMON = Path(__file__).with_name("words.txt")
TESTED = 10  # one word in ten is for the test
LETTERS = "abcdefghijklmnopqrstuvwxyz"
QUOTES = ("", "'", '"')


class WordRows:
    """Rows `{"word", "key"}`, drawn by a key of the seed, the task, the split and the row's number."""

    def __init__(self, words: Sequence[str], task: str, split: str, size: int | None, seed: int) -> None:
        self.words = tuple(words)
        self._path = (task, split)
        self._size = len(words) if size is None else size
        self._seed = seed

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int, /) -> dict[str, Any]:
        key = derive_key(self._seed, *self._path, index)
        return {"word": self.words[key % len(self.words)], "key": derive_key(key, "asked")}


def read_words(path: Path | None) -> list[str]:
    """All words of a file with a word a line, each once; without a file the common ones."""
    path = path or COMMON
    if not path.is_file():
        raise SourceError(f"{path}: is not there. Name a file with a word a line, or none.")
    return list(dict.fromkeys(path.read_text(encoding="utf-8").split()))


def split_words(path: Path | None, split: str) -> list[str]:
    """The words of a split; which split a word is in depends on the word alone."""
    found = [word for word in read_words(path) if (derive_key(0, "word", word) % TESTED == 0) == (split == "test")]
    if not found:
        raise SourceError(f'{path or COMMON}: has no words for the split "{split}". Name a longer list.')
    return found


class Draws:
    """Small numbers drawn from one key, one after the other."""

    def __init__(self, key: int) -> None:
        self._left = key

    def below(self, count: int) -> int:
        """A number of `[0, count)`."""
        self._left, drawn = divmod(self._left, count)
        return drawn

    def one_of(self, choices: Sequence[str]) -> str:
        return choices[self.below(len(choices))]


def spelled(word: str) -> str:
    """`apple` -> `apple:a,p,p,l,e`."""
    return f"{word}:{','.join(word)}"


def counted(word: str, letter: str) -> Iterator[str]:
    """`1:b`, `2:e=1`, ...: every letter by its number, and the count wherever it grows."""
    count = 0
    for number, each in enumerate(word, 1):
        count += each == letter
        yield f"{number}:{each}" + (f"={count}" if each == letter else "")


def question(word: str, letter: str, draws: Draws) -> str:
    """As people type it: three in ten in lower case, half without a question mark, some with quotes."""
    phrasing = draws.one_of(COUNTING)
    phrasing = phrasing.lower() if draws.below(10) < 3 else phrasing
    letter_quote, word_quote = draws.one_of(QUOTES), draws.one_of(QUOTES)
    asked = phrasing.format(letter=f"{letter_quote}{letter}{letter_quote}", word=f"{word_quote}{word}{word_quote}")
    return f"{asked}?" if draws.below(2) and not asked.endswith("?") else asked


@dataclass(frozen=True)
class Spelling(Task):
    """Answers are right when every letter is."""

    name: ClassVar[str] = "spelling"
    kind: ClassVar[Kind] = "generate"

    def conversation(self, row: dict[str, Any]) -> Conversation:
        """A word, asked for in one of several ways."""
        return talk(Draws(row["key"]).one_of(SPELLING).format(word=row["word"]), spelled(row["word"]))

    def evaluate(self, conversation: Conversation, answer: str) -> bool:
        """Whether it is the exact spelling."""
        return answer.strip() == last_text(conversation)


@dataclass(frozen=True)
class Counting(Task):
    """Answers count by hand, then by a call of the tool; they end in `#### 2`, and are right when that number is."""

    name: ClassVar[str] = "counting"
    kind: ClassVar[Kind] = "generate"

    def conversation(self, row: dict[str, Any]) -> Conversation:
        """A word, and a letter of it; once in ten any letter, so that zero is an answer too."""
        word, draws = row["word"], Draws(row["key"])
        letter = draws.one_of(LETTERS if draws.below(10) == 0 else word)
        count = word.count(letter)
        by_hand = "\n".join([f"Count '{letter}' in '{word}'.", spelled(word), *counted(word, letter)])
        answer = {
            "text": f"{by_hand}\nBy hand: {count}.\nBy a call:",
            "call": f'"{word}".count("{letter}")',
            "result": str(count),
        }
        parts = [{"type": kind, "text": text} for kind, text in answer.items()]
        return talk(question(word, letter, draws), [*parts, {"type": "text", "text": f"\n#### {count}"}])

    def evaluate(self, conversation: Conversation, answer: str) -> bool:
        return final_number(answer) == final_number(last_text(conversation))
