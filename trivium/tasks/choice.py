"""Questions with choices: how they are asked, and what a right answer is."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from trivium.tasks.task import Conversation, Kind, Task, talk


def ask(question: str, letters: Sequence[str], choices: Sequence[str], right: str) -> Conversation:
    """A question with its choices by letter, answered by the right letter; ValueError where there is no choice."""
    if len(letters) < 2:
        raise ValueError(f"a question needs two choices or more, and it has {len(letters)}")
    lines = [f"- {choice} = {letter}" for letter, choice in zip(letters, choices, strict=True)]
    asked = "\n".join(["Multiple choice question:", question, *lines, "Answer with the letter alone."])
    return talk(asked, right, letters=list(letters))


@dataclass(frozen=True)
class ChoiceTask(Task):
    """A task whose answers are letters; its conversations name them in `letters`."""

    kind: ClassVar[Kind] = "choice"
    chance: ClassVar[float] = 0.25

    def evaluate(self, conversation: Conversation, answer: str) -> bool:
        """Whether the answer is the right letter, perhaps with a dot after it."""
        right: str = conversation["messages"][-1]["content"]
        return re.sub(r"[.)]$", "", answer.strip()) == right
