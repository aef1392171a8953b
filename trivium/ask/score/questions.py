"""A task -> the questions that a model is asked: the tokens of each, and its right answer."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from trivium.config.schema import AskedTask, Config
from trivium.errors import PlanError, Problem, SourceError
from trivium.files import hash_json
from trivium.tasks.open import open_task
from trivium.tasks.task import Conversation, Task
from trivium.text.chat import render_prompt
from trivium.text.tokenizer import Tokenizer, open_tokenizer


@dataclass(frozen=True, slots=True)
class Question:
    """A conversation up to the answer; where letters are to be chosen from, the tokens of each."""

    conversation: Conversation
    prompt: NDArray[np.uint32]
    letters: tuple[str, ...] = ()
    choices: tuple[NDArray[np.uint32], ...] = ()


@dataclass(frozen=True)
class Exam:
    """Some questions of a task, under the name that its score has."""

    name: str
    task: Task
    questions: tuple[Question, ...]

    @property
    def chance(self) -> float:
        """The part of the answers that guessing gets right."""
        chances = [1 / len(each.letters) if each.letters else self.task.chance for each in self.questions]
        return sum(chances) / len(chances)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of its questions and answers: scores with the same one can be compared."""
        return hash_json([self.task.name, [question.conversation for question in self.questions]])


def open_exams(
    asked: Sequence[AskedTask], count: int, tokenizer: Tokenizer, asked_by: str = "evaluate.tasks"
) -> list[Exam]:
    """An exam for each task, of at most `count` questions; PlanError with every task that cannot be opened."""
    exams, problems = [], []
    for number, each in enumerate(asked):
        assert each.task is not None, "a checked task has a name"
        try:
            task = open_task(
                each.task,
                path=each.path,
                split="test",
                subset=each.subset,
                columns={str(key): name for key, name in (each.columns or {}).items()},
                tokens=each.tokens,
                tokenizer=tokenizer,
            )
            if not len(task):
                raise SourceError(f"{each.name} has no questions. Name another path or subset.")
            exams.append(Exam(each.name, task, tuple(questions_of(task, count, tokenizer))))
        except SourceError as error:
            problems.append(Problem(f"{asked_by}[{number}]", str(error)))
    if problems:
        raise PlanError(problems)
    return exams


def refuse_unaskable(exams: Sequence[Exam], seq_len: int, asked_by: str = "evaluate.tasks") -> None:
    """PlanError with every task of which no question leaves room for an answer in a row."""
    problems = []
    for number, exam in enumerate(exams):
        shortest = min(len(question.prompt) for question in exam.questions)
        if shortest >= seq_len:
            what = f"{exam.name} has questions of {shortest:,} tokens or more, and rows have {seq_len:,}."
            problems.append(Problem(f"{asked_by}[{number}]", f"{what} Ask for shorter ones, or lengthen the rows."))
    if problems:
        raise PlanError(problems)


def exam_tokenizer(config: Config) -> Tokenizer:
    """The config's tokenizer, which questions and prompts need."""
    tokenizer = open_tokenizer(config.tokenizer)
    if tokenizer is None:
        key = "tasks" if config.evaluate.tasks else "prompts"
        what = "needs a tokenizer, and the config has none. Write tokenizer.path, or remove this key."
        raise PlanError([Problem(f"evaluate.{key}", what)])
    return tokenizer


def questions_of(task: Task, count: int, tokenizer: Tokenizer) -> list[Question]:
    """At most `count` of a task's questions, evenly spread over it: a test split may be sorted by subject."""
    count = min(count, len(task))
    return [_question(task[number * len(task) // count], tokenizer) for number in range(count)]


def _question(conversation: Conversation, tokenizer: Tokenizer) -> Question:
    asked = {**conversation, "messages": conversation["messages"][:-1]}
    letters = tuple(conversation.get("letters", ()))
    choices = tuple(tokenizer.encode(letters)) if letters else ()
    begun = conversation.get("begun")
    prompt = render_prompt(asked, tokenizer) if begun is None else _plain(asked, begun, tokenizer)
    return Question(conversation, prompt, letters, choices)


def _plain(asked: Conversation, begun: str, tokenizer: Tokenizer) -> NDArray[np.uint32]:
    """A question as a text whose answer has begun: a model that has seen no conversations can answer it."""
    bos = tokenizer.special("bos")
    (tokens,) = tokenizer.encode([f"{asked['messages'][0]['content']}\n{begun}"])
    return np.concatenate([np.array([] if bos is None else [bos], np.uint32), tokens])
