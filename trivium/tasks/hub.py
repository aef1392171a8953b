"""Tasks whose rows are datasets on the Hub, and what a right answer is; or a file of one's own conversations.

allenai/ai2_arc (science of grade schools) and cais/mmlu have choices, openai/gsm8k sums in words with a calculator's
calls in the answers, HuggingFaceTB/smol-smoltalk talk about anything.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from trivium.errors import SourceError
from trivium.tasks.task import Conversation, Kind, Task, final_number, last_text, talk

CALL = re.compile(r"<<([^>]+)>>")


def ask(question: str, letters: Sequence[str], choices: Sequence[str], right: str) -> Conversation:
    """A question with its choices by letter, answered by the right letter; ValueError if it has fewer than two.

    No space comes before a letter: "=A" ends in the token of the answer, where " A" would be another one.
    """
    if len(letters) < 2:
        raise ValueError(f"a question needs two choices or more, and it has {len(letters)}")
    lines = [f"- {choice}={letter}" for letter, choice in zip(letters, choices, strict=True)]
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
            what = f'the subset "{subset}" has no split "{split}"'
            raise SourceError(f'mmlu: {what}. Write subset = "{of_split}", or another split.')
        return of_split, split


@dataclass(frozen=True)
class Gsm8k(Task):
    """Answers end in `#### 72`, and are right when that number is."""

    name: ClassVar[str] = "gsm8k"
    kind: ClassVar[Kind] = "generate"
    dataset: ClassVar[str] = "openai/gsm8k"
    subsets: ClassVar[tuple[str, ...]] = ("main", "socratic")

    def conversation(self, row: dict[str, Any]) -> Conversation:
        """`{"question", "answer"}`; `<<12/60=0.2>>` is a call of 12/60 with the result 0.2, `<<12/60>>` has none."""
        texts = CALL.split(row["answer"])
        parts = [{"type": "text", "text": texts[0]}]
        for asked, text in zip(texts[1::2], texts[2::2], strict=True):
            call, equals, result = asked.rpartition("=")
            found = {"call": call if equals else asked, "result": result if equals else "", "text": text}
            parts += [{"type": kind, "text": each} for kind, each in found.items()]
        return talk(row["question"], [part for part in parts if part["text"]])

    def evaluate(self, conversation: Conversation, answer: str) -> bool:
        """Whether the number after #### is the right one."""
        right = final_number(last_text(conversation))
        return right is not None and final_number(answer) == right

    @staticmethod
    def where(split: str, subset: str | None) -> tuple[str | None, str]:
        return subset or "main", split


@dataclass(frozen=True)
class SmolTalk(Task):
    """Talk about anything; nothing in it is right or wrong."""

    name: ClassVar[str] = "smoltalk"
    kind: ClassVar[Kind] = "talk"
    dataset: ClassVar[str] = "HuggingFaceTB/smol-smoltalk"

    def conversation(self, row: dict[str, Any]) -> Conversation:
        """`{"messages"}`; the row's other fields are skipped."""
        return {"messages": row.get("messages")}


@dataclass(frozen=True)
class JsonLinesTask(SmolTalk):
    """A file of one's own conversations."""

    name: ClassVar[str] = "jsonl"
    dataset: ClassVar[str] = ""
