"""Questions of one's own in files of JSON lines or Parquet -> tasks: with choices, or with answers to be written.

All rows are read when a task is opened: it has no bad one, or is refused with the file and line of each.
"""

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any, ClassVar

from trivium.errors import SourceError
from trivium.tasks.hub import ChoiceTask, ask
from trivium.tasks.rows import TaskFiles, TaskRows
from trivium.tasks.task import Conversation, Kind, Task, talk

SHOWN = 5  # bad rows that a refusal names


@dataclass(frozen=True)
class Choices(ChoiceTask):
    """Rows `{"question", "choices", "answer"}`; the answer is a number from 0, a choice's text, or its letter."""

    name: ClassVar[str] = "choices"

    def conversation(self, row: dict[str, Any]) -> Conversation:
        """The question with its choices by letter, as mmlu's; the answer is a letter."""
        choices = row["choices"]
        if not isinstance(choices, list) or not all(isinstance(each, str) and each.strip() for each in choices):
            raise ValueError('"choices" is not a list of texts')
        if len(set(choices)) < len(choices):
            raise ValueError("it has the same choice twice")
        if len(choices) > len(ascii_uppercase):
            raise ValueError(f"it has {len(choices)} choices, and letters are {len(ascii_uppercase)}")
        letters = ascii_uppercase[: len(choices)]
        return ask(_text(row, "question"), letters, choices, letters[_right(row["answer"], choices, letters)])


def _right(answer: Any, choices: list[str], letters: str) -> int:
    """Which choice is right; ValueError where the answer names none."""
    if type(answer) is int and 0 <= answer < len(choices):
        return answer
    if isinstance(answer, str) and answer in choices:
        return choices.index(answer)
    if isinstance(answer, str) and len(answer) == 1 and answer in letters:
        return letters.index(answer)
    what = f"0 to {len(choices) - 1}, a choice's text, or a letter up to {letters[-1:]}"
    raise ValueError(f'"answer" is {answer!r}, not {what}')


@dataclass(frozen=True)
class Answers(Task):
    """Rows `{"question", "answer"}`; an answer is a text, a number, or a list of texts that are all right."""

    name: ClassVar[str] = "answers"
    kind: ClassVar[Kind] = "generate"

    def conversation(self, row: dict[str, Any]) -> Conversation:
        """The question and the first of its right answers."""
        given = row["answer"]
        right = [_answer(each) for each in (given if isinstance(given, list) else [given])]
        if not right:
            raise ValueError('"answer" is an empty list')
        return talk(_text(row, "question"), right[0], right=right)

    def evaluate(self, conversation: Conversation, answer: str) -> bool:
        """Whether what was written is one of the right answers, both normalised."""
        return normalised(answer) in map(normalised, conversation["right"])


def normalised(answer: str) -> str:
    """Unicode's NFKC, without case, one space for any run of them, none at the ends, no full stop at the end."""
    plain = unicodedata.normalize("NFKC", answer).casefold()
    return re.sub(r"\s+", " ", plain).strip().removesuffix(".").rstrip()


def _answer(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float) or not normalised(str(value)):
        raise ValueError(f'"answer" is {value!r}, not a text or a number')
    return str(value)


def _text(row: dict[str, Any], key: str) -> str:
    if not isinstance(row[key], str) or not row[key].strip():
        raise ValueError(f'"{key}" is {row[key]!r}, not a text')
    return str(row[key])


@dataclass(frozen=True)
class NamedColumns:
    """Rows of files whose columns have other names."""

    files: TaskFiles
    columns: Mapping[str, str]  # ours -> the file's

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int, /) -> dict[str, Any]:
        row = self.files[index]
        missing = [theirs for theirs in self.columns.values() if theirs not in row]
        if missing:
            raise SourceError(f'{self.where(index)} has no "{missing[0]}". Fix it, or take it out.')
        return {**row, **{ours: row[theirs] for ours, theirs in self.columns.items()}}

    def where(self, index: int) -> str:
        return self.files.where(index)


def open_quiz(
    kind: type[Task], files: TaskFiles, columns: Mapping[str, str], start: int | None, stop: int | None
) -> Task:
    """The task of some files' rows; SourceError with the first bad ones."""
    rows: TaskRows = NamedColumns(files, columns) if columns else files
    task = kind(rows, range(len(rows))[start:stop])
    found = []
    for number in range(len(task)):
        try:
            task[number]
        except SourceError as error:
            found.append(str(error))
    if found:
        more = f" And {len(found) - SHOWN:,} more." if len(found) > SHOWN else ""
        raise SourceError(" ".join(found[:SHOWN]) + more)
    return task
