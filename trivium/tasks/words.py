"""Tasks that are generated from words: spelling them, and counting their letters.

The words are a list of common ones, or one's own; none is in both splits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from trivium.errors import SourceError
from trivium.seeds import derive_key
from trivium.tasks.task import Conversation, Kind, Task, final_number, last_text, talk

COMMON = Path(__file__).with_name("words.txt")
TESTED = 10  # one word in ten is for the test
SPELLING_QUESTIONS = (
    "Spell the word: {word}",
    "How do you spell {word}?",
    'Give me the letters of "{word}", one by one.',
    "What is the spelling of {word}?",
)
COUNTING_QUESTIONS = (
    "How many {letter} are in the word {word}?",
    "How often does the letter {letter} stand in {word}?",
    'Count the letter {letter} in "{word}".',
)
LETTERS = "abcdefghijklmnopqrstuvwxyz"
ABSENT = 5  # one letter in five is any letter, so that zero is an answer too


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


def spelled(word: str) -> str:
    """`apple` -> `a, p, p, l, e`."""
    return ", ".join(word)


@dataclass(frozen=True)
class Spelling(Task):
    """Answers are right when every letter is."""

    name: ClassVar[str] = "spelling"
    kind: ClassVar[Kind] = "generate"

    def conversation(self, row: dict[str, Any]) -> Conversation:
        """A word, asked for in one of some ways."""
        question = SPELLING_QUESTIONS[row["key"] % len(SPELLING_QUESTIONS)]
        return talk(question.format(word=row["word"]), spelled(row["word"]))

    def evaluate(self, conversation: Conversation, answer: str) -> bool:
        """Whether it is the exact spelling."""
        return answer.strip() == last_text(conversation)


@dataclass(frozen=True)
class Counting(Task):
    """Answers spell the word first and end in `#### 2`, and are right when that number is."""

    name: ClassVar[str] = "counting"
    kind: ClassVar[Kind] = "generate"

    def conversation(self, row: dict[str, Any]) -> Conversation:
        """A word, and a letter that mostly is in it."""
        word, key = row["word"], row["key"]
        among = LETTERS if key % ABSENT == 0 else word
        letter = among[key // ABSENT % len(among)]
        question = COUNTING_QUESTIONS[key // 1000 % len(COUNTING_QUESTIONS)].format(letter=letter, word=word)
        places = [str(place) for place, each in enumerate(word, 1) if each == letter]
        found = f"{letter} is at {', '.join(places)}" if places else f"{letter} is not there"
        return talk(question, f"{spelled(word)}: {found}.\n#### {len(places)}")

    def evaluate(self, conversation: Conversation, answer: str) -> bool:
        return final_number(answer) == final_number(last_text(conversation))
