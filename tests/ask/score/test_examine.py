"""Questions are asked in full, answered in two ways, and scored beside what guessing gives."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from threading import Barrier, Thread
from typing import Any, ClassVar

import numpy as np
import pytest

from tests.support.arc import write_arc
from trivium.ask.score.examine import Examinee, TaskScore, chosen_letters, examine, overall, written_answers
from trivium.ask.score.likelihood import Choice, likeliest
from trivium.ask.score.questions import Exam, exam_tokenizer, open_exams, questions_of, refuse_unaskable
from trivium.config.schema import AskedTask, Config
from trivium.engine.base import Engine, EngineSettings
from trivium.engine.make import make_engine
from trivium.engine.ranks import Ranks
from trivium.errors import PlanError
from trivium.model.spec import ModelSpec
from trivium.tasks.open import open_task
from trivium.tasks.task import Conversation, Kind, Task, talk
from trivium.text.tokenizer import ByteTokenizer

BYTES = ByteTokenizer()
SEQ_LEN = 160
SPEC = ModelSpec(layers=2, width=32, heads=2, kv_heads=2, head_dim=16, ffn=64, vocab=266, max_seq_len=SEQ_LEN)


@cache
def engine() -> Engine:
    """A small model that knows nothing."""
    return make_engine(EngineSettings(SPEC, device="cpu", seed=3))


def examinee(**changes: Any) -> Examinee:
    return replace(Examinee(engine(), BYTES, SEQ_LEN, 12, Ranks()), **changes)


def arc(folder: Path, questions: int, **others: Any) -> Exam:
    (exam,) = open_exams([AskedTask(task="arc", path=(str(write_arc(folder, questions, **others)),))], 100, BYTES)
    return exam


def test_a_score_is_centred_on_what_guessing_gives() -> None:
    scores = {"arc": TaskScore(right=5, questions=8, chance=0.25), "spelling": TaskScore(1, 4, 0.0)}
    assert scores["arc"].score == 0.625
    assert scores["arc"].centred == 0.5
    assert TaskScore(0, 4, 0.25).centred == pytest.approx(-1 / 3)
    assert overall(scores) == 0.375


def test_the_likeliest_choice_is_the_one_with_the_fewest_nats() -> None:
    """One token each, by logits; the same and longer ones, by nats: both as a plain sum of losses says."""
    draw = np.random.default_rng(0)
    prompts = [draw.integers(0, 256, length) for length in (5, 40, 17, 90)]
    letters = [np.array([letter]) for letter in b"ABCD"]
    words = [draw.integers(0, 256, length) for length in (3, 1, 7, 2)]
    for choices in (letters, words):
        expected = [int(np.argmin([sum(nats_of(prompt, choice)) for choice in choices])) for prompt in prompts]
        assert likeliest(engine(), [Choice(prompt, choices) for prompt in prompts], Ranks(), batch_rows=3) == expected


def nats_of(prompt: np.ndarray, choice: np.ndarray) -> list[float]:
    """Loss of each token of a choice, from the logits that stand before it."""
    found = []
    for place in range(len(choice)):
        (logits,) = engine().generation([np.concatenate([prompt, choice[:place]])], 1).logits().astype(np.float64)
        found.append(float(np.log(np.exp(logits - logits.max()).sum()) + logits.max() - logits[choice[place]]))
    return found


def test_a_choice_is_scored_by_the_likeliest_letter(tmp_path: Path) -> None:
    exam = arc(tmp_path / "arc", 9)
    letters = chosen_letters(examinee(), exam.questions)
    right = sum(letter == "ABCD"[number % 4] for number, letter in enumerate(letters))
    assert examine(examinee(), exam) == TaskScore(right, 9, 0.25)
    assert arc(tmp_path / "five", 3, letters="ABCDE").chance == pytest.approx(0.2)


def test_an_answer_is_what_the_model_writes_until_its_turn_ends() -> None:
    questions = questions_of(open_task("spelling", split="test"), 4, BYTES)
    answers = written_answers(examinee(), questions)
    for question, answer in zip(questions, answers, strict=True):
        tokens: list[int] = []
        while len(tokens) < 12:
            logits = engine().generation([np.concatenate([question.prompt, tokens]).astype(np.int64)], 1).logits()
            token = int(np.argmax(logits[0]))
            if token in (256, 257, BYTES.special("assistant_end")):
                break
            tokens.append(token)
        assert answer == BYTES.decode(tokens)


def test_questions_without_room_are_wrong_and_leave_the_others_alone() -> None:
    questions = questions_of(open_task("spelling", split="test"), 6, BYTES)
    lengths = sorted(len(question.prompt) for question in questions)
    assert lengths[0] < lengths[-1]
    whole = written_answers(examinee(), questions)
    # Rows so short that the longest prompt has no room at all, and others less than the answer may take.
    tight = written_answers(examinee(seq_len=lengths[-1]), questions)
    for question, answer, before in zip(questions, tight, whole, strict=True):
        assert before is not None
        assert (answer is None) == (len(question.prompt) == lengths[-1])
        assert answer is None or before.startswith(answer.rstrip("\ufffd"))  # a letter may be cut


def test_a_long_question_leaves_their_room_to_others() -> None:
    asked = questions_of(open_task("spelling", split="test"), 6, BYTES)
    row = max(len(question.prompt) for question in asked) + 6  # less than an answer may take, for all of them
    alone = written_answers(examinee(seq_len=row), asked)
    long = replace(asked[0], prompt=np.resize(asked[0].prompt, row - 1))
    assert written_answers(examinee(seq_len=row), [*asked, long])[:-1] == alone
    for question, answer in zip(asked, alone, strict=True):
        (whole,) = written_answers(examinee(answer_tokens=min(12, row - len(question.prompt))), [question])
        assert answer == whole

    def both(ranks: Pair) -> list[str | None]:
        return written_answers(examinee(seq_len=row, ranks=ranks), [asked, [long]][ranks.rank])

    assert on_two_ranks(both)[0] == alone


def test_an_answer_has_only_tokens_that_the_tokenizer_knows() -> None:
    written: list[int] = []

    class Listening(ByteTokenizer):
        def decode(self, tokens: Sequence[int]) -> str:
            written.extend(tokens)
            return super().decode(tokens)

    spec = replace(SPEC, vocab=2048)  # most of which no tokenizer knows
    large = make_engine(EngineSettings(spec, device="cpu", seed=3))
    asked = questions_of(open_task("spelling", split="test"), 4, BYTES)
    written_answers(examinee(engine=large, tokenizer=Listening()), asked)
    assert written
    assert max(written) < BYTES.vocab


def test_questions_are_spread_over_a_task_that_is_sorted() -> None:
    task = open_task("spelling", split="test", size=50)
    asked = questions_of(task, 5, BYTES)
    assert [question.conversation for question in asked] == [task[number] for number in (0, 10, 20, 30, 40)]
    assert len(questions_of(task, 99, BYTES)) == 50


class Pair(Ranks):
    """One of two ranks that are threads."""

    size = 2

    def __init__(self, rank: int, barrier: Barrier, said: list[Any]) -> None:
        self.rank, self._barrier, self._said = rank, barrier, said

    def gather(self, value: Any) -> list[Any]:
        self._said[self.rank] = value
        self._barrier.wait()
        both = list(self._said)
        self._barrier.wait()
        return both

    def agree(self, *flags: bool) -> tuple[bool, ...]:
        return tuple(any(pair) for pair in zip(*self.gather(flags), strict=True))


def on_two_ranks(act: Callable[[Pair], Any]) -> list[Any]:
    barrier, said, found = Barrier(2, timeout=120), [None, None], [None, None]

    def one(rank: int) -> None:
        try:
            found[rank] = act(Pair(rank, barrier, said))
        except BaseException:
            barrier.abort()
            raise

    threads = [Thread(target=one, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


class Counted:
    """An engine that counts its passes."""

    def __init__(self) -> None:
        self.passes = 0

    def generation(self, prompts: Sequence[Any], room: int) -> Any:
        self.passes += 1
        return engine().generation(prompts, room)

    def nats(self, batch: Any) -> Any:
        self.passes += 1
        return engine().nats(batch)


@dataclass(frozen=True)
class Words(Task):
    """Choices of more than one token."""

    name: ClassVar[str] = "words"
    kind: ClassVar[Kind] = "choice"

    def conversation(self, row: dict[str, Any]) -> Conversation:
        return talk(row["word"], "yes", letters=["yes", "perhaps"])

    def evaluate(self, conversation: Conversation, answer: str) -> bool:
        return answer == "yes"


def test_ranks_share_the_questions_and_make_the_same_passes(tmp_path: Path) -> None:
    spelling = open_task("spelling", split="test", size=5)
    exams = [
        arc(tmp_path / "arc", 5),
        Exam("spelling", spelling, tuple(questions_of(spelling, 5, BYTES))),
        Exam("words", Words(spelling.rows, range(5)), tuple(questions_of(Words(spelling.rows, range(5)), 5, BYTES))),
    ]
    for exam in exams:
        engines = Counted(), Counted()

        def both(ranks: Pair, exam: Exam = exam, engines: Sequence[Any] = engines) -> TaskScore:
            return examine(examinee(engine=engines[ranks.rank], ranks=ranks, reader=ranks.rank, readers=2), exam)

        alone = examine(examinee(), exam)
        assert on_two_ranks(both) == [alone, alone]
        assert engines[0].passes == engines[1].passes > 0


def test_the_fingerprint_of_an_exam_changes_with_its_questions_and_answers() -> None:
    def fingerprint(count: int) -> str:
        (exam,) = open_exams([AskedTask(task="spelling")], count, BYTES)
        return exam.fingerprint

    assert fingerprint(4) == fingerprint(4) != fingerprint(5)
    task = open_task("spelling", split="test")
    questions = questions_of(task, 2, BYTES)
    other = {**questions[0].conversation, "messages": [{"role": "user", "content": "?"}]}
    changed = (replace(questions[0], conversation=other), questions[1])
    assert Exam("spelling", task, changed).fingerprint != Exam("spelling", task, tuple(questions)).fingerprint


def test_every_task_that_cannot_be_had_is_named(tmp_path: Path) -> None:
    (tmp_path / "test.jsonl").write_text("")
    asked = [AskedTask(task="arc", path=(str(tmp_path),)), AskedTask(task="mmlu", subset="none")]
    with pytest.raises(PlanError) as caught:
        open_exams(asked, 5, BYTES)
    assert str(caught.value) == (
        "evaluate.tasks[0]: arc has no questions. Name another path or subset.\n"
        'evaluate.tasks[1]: task: mmlu has no subset "none". Write one of "all" or "auxiliary_train".'
    )


def test_questions_need_a_tokenizer() -> None:
    config = Config.model_validate({"evaluate": {"tasks": ["spelling"]}})
    with pytest.raises(PlanError) as caught:
        exam_tokenizer(config)
    assert str(caught.value) == (
        "evaluate.tasks: needs a tokenizer, and the config has none. Write tokenizer.path, or remove this key."
    )


def test_a_task_of_which_no_question_fits_a_row_is_refused() -> None:
    exams = open_exams([AskedTask(task="needle", tokens=400)], 3, ByteTokenizer())
    refuse_unaskable(exams, 400)
    with pytest.raises(PlanError) as caught:
        refuse_unaskable(exams, 200)
    shortest = min(len(question.prompt) for question in exams[0].questions)
    assert str(caught.value) == (
        f"evaluate.tasks[0]: needle 400 has questions of {shortest} tokens or more, and rows have 200. "
        "Ask for shorter ones, or lengthen the rows."
    )
