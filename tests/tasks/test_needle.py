"""One sentence in a long text: made from a seed at any length, and found by its number."""

import numpy as np
import pytest

from trivium.ask.score.questions import open_exams
from trivium.ask.score_model import asked_tasks
from trivium.config.schema import AskedTask
from trivium.errors import UsageError
from trivium.tasks.open import open_task
from trivium.text.tokenizer import ByteTokenizer


@pytest.mark.parametrize("tokens", [200, 1000, 20_000])
def test_a_question_is_as_long_as_asked_and_no_longer(tokens: int) -> None:
    (exam,) = open_exams([AskedTask(task="needle", tokens=tokens)], 20, ByteTokenizer())
    lengths = [len(question.prompt) for question in exam.questions]
    assert 0.9 * tokens - 100 < min(lengths) <= max(lengths) <= tokens
    assert exam.name == f"needle {tokens:,}"


def test_the_number_is_in_the_text_once_and_anywhere() -> None:
    task = open_task("needle", tokens=2000, tokenizer=ByteTokenizer(), size=60)
    places = []
    for conversation in task:
        asked, answer = (message["content"] for message in conversation["messages"])
        number = conversation["number"]
        assert asked.count(number) == 1
        assert task.evaluate(conversation, answer)
        assert task.evaluate(conversation, f" {number}. And then 12")
        assert not task.evaluate(conversation, f" {int(number) + 1}")
        assert not task.evaluate(conversation, "I do not know")
        places.append(asked.index(number) / len(asked))
    assert min(places) < 0.1 < 0.8 < max(places)
    assert 0.35 < np.mean(places) < 0.6


def test_it_is_the_same_every_time_and_differs_by_split() -> None:
    one, again = (open_task("needle", tokens=500, tokenizer=ByteTokenizer(), size=5) for _ in range(2))
    assert list(one) == list(again)
    test = open_task("needle", tokens=500, tokenizer=ByteTokenizer(), size=5, split="test")
    assert {each["begun"] for each in one}.isdisjoint(each["begun"] for each in test)


def test_the_question_is_a_plain_text_whose_answer_has_begun() -> None:
    (exam,) = open_exams([AskedTask(task="needle", tokens=300)], 1, ByteTokenizer())
    question = exam.questions[0]
    assert ByteTokenizer().decode(question.prompt.tolist()).endswith(f"?\n{question.conversation['begun']}")


def test_the_command_line_gives_the_length() -> None:
    assert asked_tasks("needle:4Ki,needle:512") == [
        AskedTask(task="needle", tokens=4096),
        AskedTask(task="needle", tokens=512),
    ]
    with pytest.raises(UsageError, match=r'not "". Write needle:4Ki'):
        asked_tasks("needle")
