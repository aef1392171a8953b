"""Several tasks -> one sequence of conversations, in one shuffled order."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trivium.tasks.task import Conversation

SHUFFLED_BY = 42  # nanochat's seed: the same tasks have the order that they have there


@dataclass(frozen=True, slots=True)
class TaskMixture:
    """The conversations of several tasks, each as often as its task is repeated."""

    tasks: Sequence[Sequence[Conversation]]
    repeats: Sequence[int]

    def __len__(self) -> int:
        return sum(len(task) * repeat for task, repeat in zip(self.tasks, self.repeats, strict=True))

    def __iter__(self) -> Iterator[tuple[int, Conversation]]:
        """Every conversation, with the number of its task: all pairs of task and conversation, shuffled."""
        pairs = [
            (number, index)
            for number, (task, repeat) in enumerate(zip(self.tasks, self.repeats, strict=True))
            for _ in range(repeat)
            for index in range(len(task))
        ]
        random.Random(SHUFFLED_BY).shuffle(pairs)
        return ((number, self.tasks[number][index]) for number, index in pairs)
