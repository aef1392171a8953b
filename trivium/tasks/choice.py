"""Questions with choices, and what a right answer is: allenai/ai2_arc (science of grade schools) and cais/mmlu."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from trivium.errors import SourceError
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


@dataclass(frozen=True)
class Arc(ChoiceTask):
    """Reads the easy questions unless the subset names the hard ones."""

    name: ClassVar[str] = "arc"
    dataset: ClassVar[str] = "allenai/ai2_arc"
    subsets: ClassVar[tuple[str, ...]] = ("ARC-Easy", "ARC-Challenge")

    def conversation(self, row: dict[str, Any]) -> Conversation:
        """`{"question", "choices": {"text", "label"}, "answerKey"}`; some labels are digits."""
        choices = row["choices"]
        return ask(row["question"], choices["label"], choices["text"], row["answerKey"])

    @staticmethod
    def where(split: str, subset: str | None) -> tuple[str | None, str]:
        """The easy ones."""
        return subset or "ARC-Easy", split


@dataclass(frozen=True)
class Mmlu(ChoiceTask):
    """Questions of 57 subjects with four choices: trained on auxiliary ones, tested on all subjects."""

    name: ClassVar[str] = "mmlu"
    dataset: ClassVar[str] = "cais/mmlu"
    subsets: ClassVar[tuple[str, ...]] = ("all", "auxiliary_train")

    def conversation(self, row: dict[str, Any]) -> Conversation:
        """`{"question", "subject", "choices", "answer": 0 to 3}`; the auxiliary ones are under "train"."""
        row = row.get("train") or row
        letters = "ABCD"[: len(row["choices"])]
        return {**ask(row["question"], letters, row["choices"], letters[row["answer"]]), "subject": row["subject"]}

    @staticmethod
    def where(split: str, subset: str | None) -> tuple[str | None, str]:
        """Each subset has one of the splits."""
        of_split = "auxiliary_train" if split == "train" else "all"
        if subset not in (None, of_split):
            raise SourceError(
                f'mmlu: the subset "{subset}" has no split "{split}". Write subset = "{of_split}", or another split.'
            )
        return of_split, split
