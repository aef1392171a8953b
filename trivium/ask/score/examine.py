"""Exams -> scores of a frozen model; on many ranks each asks its own questions.

A choice is right where the likeliest letter is; an answer that is written (the likeliest token each time, sums
worked out by the calculator) is right where the task judges it so. A question for which the model has no room is wrong.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trivium.ask.generate.generate import generate
from trivium.ask.generate.row import Writing, calculator_calls, turn_ends
from trivium.ask.generate.sampling import GREEDY
from trivium.ask.score.likelihood import Choice, likeliest
from trivium.ask.score.questions import Exam, Question
from trivium.engine.base import Engine
from trivium.engine.ranks import Ranks
from trivium.run.events import ScoreFigures
from trivium.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TaskScore:
    """Right answers of some questions; `chance` is the part that guessing gets right."""

    right: int
    questions: int
    chance: float

    @property
    def score(self) -> float:
        return self.right / self.questions

    @property
    def centred(self) -> float:
        """0 is guessing, 1 is all right; below 0 is worse than guessing."""
        return (self.score - self.chance) / (1 - self.chance)

    def figures(self) -> ScoreFigures:
        return {
            "right": self.right,
            "questions": self.questions,
            "chance": self.chance,
            "score": self.score,
            "centred": self.centred,
        }


def overall(scores: Mapping[str, TaskScore]) -> float:
    """Several tasks in one figure: the mean of their centred scores."""
    return sum(score.centred for score in scores.values()) / len(scores)


@dataclass(frozen=True, slots=True)
class Examinee:
    """A model to ask, its limits of a row's and an answer's tokens, and which part of the questions this rank asks."""

    engine: Engine
    tokenizer: Tokenizer
    seq_len: int
    answer_tokens: int
    ranks: Ranks
    reader: int = 0
    readers: int = 1


def examine(who: Examinee, exam: Exam) -> TaskScore:
    numbers = range(who.reader, len(exam.questions), who.readers)
    own = [exam.questions[number] for number in numbers]
    answers = chosen_letters(who, own) if exam.task.kind == "choice" else written_answers(who, own)
    right = [
        number
        for number, question, answer in zip(numbers, own, answers, strict=True)
        if answer is not None and exam.task.evaluate(question.conversation, answer)
    ]
    # Ranks that share each matrix ask the same questions: one answer of each counts.
    all_right = {number for part in who.ranks.gather(right) for number in part}
    return TaskScore(len(all_right), len(exam.questions), exam.chance)


def chosen_letters(who: Examinee, questions: Sequence[Question]) -> list[str | None]:
    """The likeliest letter of each; None where the question is longer than a row."""
    asked = [Choice(question.prompt, question.choices) for question in questions]
    fitting = [place for place, each in enumerate(asked) if each.longest <= who.seq_len]
    answers: list[str | None] = [None] * len(questions)
    chosen = likeliest(who.engine, [asked[place] for place in fitting], who.ranks)
    for place, number in zip(fitting, chosen, strict=True):
        answers[place] = questions[place].letters[number]
    return answers


def written_answers(who: Examinee, questions: Sequence[Question]) -> list[str | None]:
    """What the model writes to each; None where a row has no room for an answer.

    Questions with less room than an answer may take are asked apart, those of one room together.
    """
    rooms = [min(who.answer_tokens, who.seq_len - len(question.prompt)) for question in questions]
    answers: list[str | None] = [None] * len(questions)
    calls, stop = calculator_calls(who.tokenizer), turn_ends(who.tokenizer)
    # Those of any rank, on every rank: passes are made together.
    for room in sorted({room for part in who.ranks.gather(sorted(set(rooms))) for room in part if room > 0}):
        writing = Writing(room, stop, GREEDY, calls=calls, vocab=who.tokenizer.vocab)
        places = [place for place, own in enumerate(rooms) if own == room]
        prompts = [questions[place].prompt for place in places]
        for place, (row,) in zip(places, generate(who.engine, prompts, writing, ranks=who.ranks), strict=True):
            answers[place] = who.tokenizer.decode(row.tokens)
    return answers
