"""Spelling: the letters of a word, one by one."""

from dataclasses import dataclass
from typing import Any, ClassVar

from trivium.tasks.task import Conversation, Kind, Task, last_text, talk

QUESTIONS = (
    "Spell the word: {word}",
    "How do you spell {word}?",
    'Give me the letters of "{word}", one by one.',
    "What is the spelling of {word}?",
)


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
        question = QUESTIONS[row["key"] % len(QUESTIONS)]
        return talk(question.format(word=row["word"]), spelled(row["word"]))

    def evaluate(self, conversation: Conversation, answer: str) -> bool:
        """Whether it is the exact spelling."""
        return answer.strip() == last_text(conversation)
