"""Counting: how often a letter stands in a word."""

from dataclasses import dataclass
from typing import Any, ClassVar

from trivium.tasks.spelling import spelled
from trivium.tasks.task import Conversation, Kind, Task, final_number, last_text, talk

QUESTIONS = (
    "How many {letter} are in the word {word}?",
    "How often does the letter {letter} stand in {word}?",
    'Count the letter {letter} in "{word}".',
)
LETTERS = "abcdefghijklmnopqrstuvwxyz"
ABSENT = 5  # one letter in so many is any letter, so that zero is an answer too


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
        question = QUESTIONS[key // 1000 % len(QUESTIONS)].format(letter=letter, word=word)
        places = [str(place) for place, each in enumerate(word, 1) if each == letter]
        found = f"{letter} is at {', '.join(places)}" if places else f"{letter} is not there"
        return talk(question, f"{spelled(word)}: {found}.\n#### {len(places)}")

    def evaluate(self, conversation: Conversation, answer: str) -> bool:
        """Whether the number after #### is the right one."""
        return final_number(answer) == final_number(last_text(conversation))
