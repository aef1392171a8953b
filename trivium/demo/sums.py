"""Conversations about small sums, made up; the same ones every time."""

from collections.abc import Iterator

from trivium.seeds import derive_key
from trivium.tasks.task import Conversation, talk

QUESTIONS = ("What is {sum}?", "How much is {sum}?", "Add {a} and {b}.", "{sum} =")


def sums(count: int, most: int = 50) -> Iterator[Conversation]:
    """Questions like `What is 12 + 7?`, with their answers."""
    for number in range(count):
        key = derive_key(0, "sums", number)
        a, b = key % most, key // most % most
        question = QUESTIONS[key // most**2 % len(QUESTIONS)]
        yield talk(question.format(sum=f"{a} + {b}", a=a, b=b), f"{a} + {b} = {a + b}")
