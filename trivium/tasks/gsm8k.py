"""openai/gsm8k: sums in words, with a calculator's calls in the answers."""

import re
from dataclasses import dataclass
from typing import Any, ClassVar

from trivium.tasks.task import Conversation, Kind, Task, final_number, last_text, talk

CALL = re.compile(r"<<([^<>]*)=([^<>=]*)>>")


@dataclass(frozen=True)
class Gsm8k(Task):
    """Answers end in `#### 72`, and are right when that number is."""

    name: ClassVar[str] = "gsm8k"
    kind: ClassVar[Kind] = "generate"
    dataset: ClassVar[str] = "openai/gsm8k"
    subsets: ClassVar[tuple[str, ...]] = ("main", "socratic")

    def conversation(self, row: dict[str, Any]) -> Conversation:
        """`{"question", "answer"}`; `<<12/60=0.2>>` is a call of 12/60 with the result 0.2."""
        texts = CALL.split(row["answer"])
        parts = [{"type": "text", "text": texts[0]}]
        for call, result, text in zip(texts[1::3], texts[2::3], texts[3::3], strict=True):
            parts += [
                {"type": "call", "text": call},
                {"type": "result", "text": result},
                {"type": "text", "text": text},
            ]
        return talk(row["question"], [part for part in parts if part["text"]])

    def evaluate(self, conversation: Conversation, answer: str) -> bool:
        """Whether the number after #### is the right one."""
        right = final_number(last_text(conversation))
        return right is not None and final_number(answer) == right

    @staticmethod
    def where(split: str, subset: str | None) -> tuple[str | None, str]:
        """The main ones."""
        return subset or "main", split
