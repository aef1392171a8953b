"""How a model did on a task: right answers of so many, beside what guessing gives."""

from collections.abc import Mapping
from dataclasses import dataclass

from trivium.run.events import ScoreFigures


@dataclass(frozen=True, slots=True)
class TaskScore:
    """Right answers of some questions; `chance` is the part of them that guessing gets right."""

    right: int
    questions: int
    chance: float

    @property
    def score(self) -> float:
        """The part that is right."""
        return self.right / self.questions

    @property
    def centred(self) -> float:
        """0 is guessing, 1 is all right; below 0 is worse than guessing."""
        return (self.score - self.chance) / (1 - self.chance)

    def figures(self) -> ScoreFigures:
        """As plain values."""
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
