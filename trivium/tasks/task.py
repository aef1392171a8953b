"""A task: conversations by number, some of them with an answer that can be scored."""

import re
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, ClassVar, Literal, overload

import numpy as np
from numpy.typing import NDArray

from trivium.errors import SourceError
from trivium.tasks.rows import TaskRows

Conversation = dict[str, Any]
Kind = Literal["talk", "choice", "generate"]
FINAL_NUMBER = re.compile(r"####\s*(-?[\d,]*\.?\d+)")


@dataclass(frozen=True)
class Task(Sequence[Conversation]):
    """Conversations `[i]` of a split; `kind` is how an answer is scored: not at all, by letter, or by its text."""

    name: ClassVar[str]
    kind: ClassVar[Kind]
    chance: ClassVar[float] = 0.0  # of being right by guessing
    dataset: ClassVar[str] = ""  # its name on the Hub
    subsets: ClassVar[tuple[str, ...]] = ()

    rows: TaskRows
    taken: Sequence[int] | NDArray[np.int64]  # numbers of rows, in order

    def __len__(self) -> int:
        return len(self.taken)

    @overload
    def __getitem__(self, index: int) -> Conversation: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Conversation]: ...
    def __getitem__(self, index: int | slice) -> Conversation | Sequence[Conversation]:
        if isinstance(index, slice):
            return type(self)(self.rows, self.taken[index])
        number = int(self.taken[index])
        row = self.rows[number]
        try:
            return self.conversation(row)
        except (LookupError, TypeError, ValueError) as error:
            known = getattr(self.rows, "where", None)  # of files
            where = f"{self.name}: row {number:,}" if known is None else known(number)
            what = f'has no "{error.args[0]}"' if isinstance(error, KeyError) else f"cannot be read: {error}"
            raise SourceError(f"{where} {what}. Fix it, or take it out.") from None

    def conversations(self) -> Sequence[Conversation]:
        """All of them, made when they are asked for."""
        return self

    @abstractmethod
    def conversation(self, row: dict[str, Any]) -> Conversation:
        """The conversation of a row of the dataset."""

    def evaluate(self, conversation: Conversation, answer: str) -> bool:
        """Whether an answer to its last question is right."""
        raise NotImplementedError(f"{self.name} has no right answers")

    @staticmethod
    def where(split: str, subset: str | None) -> tuple[str | None, str]:
        """The dataset's own subset and split."""
        return subset, split


def talk(question: str, answer: str | list[dict[str, str]], **others: Any) -> Conversation:
    """A conversation of one question and one answer."""
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}], **others}


def final_number(text: str) -> Decimal | None:
    """The number after the last ####; None where there is none."""
    found = FINAL_NUMBER.findall(text)
    return Decimal(found[-1].replace(",", "")) if found else None


def last_text(conversation: Conversation) -> str:
    content = conversation["messages"][-1]["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)
