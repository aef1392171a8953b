"""Several tasks as one: every conversation as often as its task is repeated, in one shuffled order."""

import random
from collections import Counter

from trivium.tasks.mixture import TaskMixture


def test_the_order_is_that_of_all_pairs_of_task_and_conversation_shuffled_by_nanochats_seed() -> None:
    tasks = [[{"said": f"{task}{number}"} for number in range(size)] for task, size in (("a", 30), ("b", 7), ("c", 3))]
    pairs = [(task, number) for task, count in enumerate((30, 7, 3, 3)) for number in range(count)]
    random.Random(42).shuffle(pairs)
    listed = [*tasks, tasks[2]]  # a task that is repeated is one that is listed twice
    mixture = TaskMixture(tasks, [1, 1, 2])
    assert [said for _, said in mixture] == [listed[task][number] for task, number in pairs]
    assert len(mixture) == len(pairs)


def test_every_conversation_comes_with_its_task_as_often_as_that_is_repeated() -> None:
    tasks = [[{"said": "a0"}, {"said": "a1"}], [{"said": "b0"}]]
    found = Counter((number, said["said"]) for number, said in TaskMixture(tasks, [1, 3]))
    assert found == {(0, "a0"): 1, (0, "a1"): 1, (1, "b0"): 3}
