"""Questions of one's own: what a row may have, what is refused with its line, and how answers are compared."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.batches import TINY
from trivium.ask.score.examine import Examinee, examine
from trivium.ask.score.questions import open_exams
from trivium.config.schema import AskedTask
from trivium.engine.base import EngineSettings, StageSettings
from trivium.engine.make import make_engine
from trivium.engine.ranks import Ranks
from trivium.errors import PlanError, SourceError
from trivium.tasks.open import open_task
from trivium.tasks.quiz import normalised
from trivium.text.tokenizer import ByteTokenizer

SKY = {"question": "Which colour is the sky?", "choices": ["red", "blue", "green"]}


def jsonl(path: Path, *rows: Any) -> str:
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    return str(path)


@pytest.mark.parametrize("answer", [1, "blue", "B"])
def test_the_right_choice_is_named_by_number_text_or_letter(tmp_path: Path, answer: Any) -> None:
    (asked,) = open_task("choices", path=jsonl(tmp_path / "quiz.jsonl", {**SKY, "answer": answer}))
    question, right = (message["content"] for message in asked["messages"])
    assert "Which colour is the sky?\n- red=A\n- blue=B\n- green=C" in question
    assert right == "B"
    assert asked["letters"] == ["A", "B", "C"]


def test_a_written_answer_is_right_where_it_is_one_of_those_given_but_for_case_spaces_and_a_full_stop(
    tmp_path: Path,
) -> None:
    rows = [{"question": "6 x 7?", "answer": 42}, {"question": "Who?", "answer": ["Ada Lovelace", "Lovelace"]}]
    number, name = task = open_task("answers", path=jsonl(tmp_path / "sums.jsonl", *rows))
    assert [each["messages"][-1]["content"] for each in task] == ["42", "Ada Lovelace"]
    assert [task.evaluate(number, answer) for answer in ("42", " 42. \n", "42.0", "It is 42")] == [
        True,
        True,
        False,
        False,
    ]
    assert [task.evaluate(name, answer) for answer in ("ADA  LOVELACE.", "lovelace", "Ada")] == [True, True, False]
    assert normalised("  Café\u00a0 No\uff0e") == normalised("cafe\u0301 no")


def test_columns_may_have_other_names(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "quiz.jsonl", {"prompt": "1 + 1?", "options": ["1", "2"], "label": 1}, {"prompt": "?"})
    columns = {"question": "prompt", "choices": "options", "answer": "label"}
    assert open_task("choices", path=path, columns=columns, stop=1)[0]["messages"][-1]["content"] == "B"
    with pytest.raises(SourceError) as refused:
        open_task("choices", path=path, columns=columns)
    assert str(refused.value) == f'{path} line 2 has no "options". Fix it, or take it out.'


def test_every_bad_line_is_refused_with_its_file_and_line(tmp_path: Path) -> None:
    rows = [
        {**SKY, "answer": 3},
        {**SKY, "choices": "red", "answer": 0},
        {**SKY, "choices": ["red", "red"], "answer": 0},
        {**SKY, "question": "", "answer": 0},
        SKY,
        {**SKY, "answer": True},
        {**SKY, "answer": 0},
    ]
    path = jsonl(tmp_path / "quiz.jsonl", *rows)
    with pytest.raises(SourceError) as refused:
        open_task("choices", path=path)
    fix = "Fix it, or take it out."
    assert str(refused.value) == " ".join(
        [
            f"""{path} line 1 cannot be read: "answer" is 3, not 0 to 2, a choice's text, or a letter up to C. {fix}""",
            f'{path} line 2 cannot be read: "choices" is not a list of texts. {fix}',
            f"{path} line 3 cannot be read: it has the same choice twice. {fix}",
            f"""{path} line 4 cannot be read: "question" is '', not a text. {fix}""",
            f'{path} line 5 has no "answer". {fix}',
            "And 1 more.",
        ]
    )
    broken = jsonl(tmp_path / "broken.jsonl", {"question": "?", "answer": []}, "{")
    with pytest.raises(SourceError, match=r"line 1 cannot be read: .* empty list.*line 2: broken JSON"):
        open_task("answers", path=broken)
    with pytest.raises(PlanError, match=r"evaluate.tasks\[0\]: .*line 1"):
        open_exams([AskedTask(task="answers", path=(broken,))], 10, ByteTokenizer())


@pytest.mark.parametrize("engine", ["torch", "jax"])
def test_both_engines_score_them_under_the_name_of_their_file(tmp_path: Path, engine: str) -> None:
    words = ByteTokenizer()
    quiz = jsonl(tmp_path / "quiz.jsonl", *({**SKY, "answer": number % 3} for number in range(6)))
    sums = jsonl(tmp_path / "sums.jsonl", {"question": "1 + 1?", "answer": 2})
    asked = [AskedTask(task="choices", path=(quiz,)), AskedTask(task="answers", path=(sums,))]
    exams = open_exams(asked, 10, words)
    assert [(exam.name, len(exam.questions), exam.chance) for exam in exams] == [
        ("quiz.jsonl", 6, pytest.approx(1 / 3)),
        ("sums.jsonl", 1, 0),
    ]
    made = make_engine(EngineSettings(replace(TINY, vocab=words.vocab, max_seq_len=256), device="cpu"), engine)
    made.enter(StageSettings(256))
    who = Examinee(made, words, 256, 4, Ranks())
    scores = [examine(who, exam) for exam in exams]
    # Whatever letter it takes to the one question, a third of the answers are it.
    assert [(score.right, score.questions) for score in scores] == [(2, 6), (0, 1)]
    assert np.isfinite(scores[0].centred)
