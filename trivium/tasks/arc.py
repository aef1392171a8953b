"""allenai/ai2_arc: science questions of grade schools, easy ones and hard ones."""

from dataclasses import dataclass
from typing import Any, ClassVar

from trivium.tasks.choice import ChoiceTask, ask
from trivium.tasks.task import Conversation


@dataclass(frozen=True)
class Arc(ChoiceTask):
    """The easy ones unless the subset says otherwise."""

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
