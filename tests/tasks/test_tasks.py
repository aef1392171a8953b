"""Tasks read from files in their datasets' own form, made up from words, and scored."""

import gzip
import json
from pathlib import Path
from typing import Any, Literal

import datasets
import pyarrow
import pyarrow.parquet
import pytest
import zstandard

from trivium.ask.generate.calculator import calculate
from trivium.config.sources import FILES, GENERATED
from trivium.config.sources import TASKS as NAMES
from trivium.errors import SourceError
from trivium.tasks.open import TASKS, open_task
from trivium.tasks.phrasings import COUNTING
from trivium.tasks.words import split_words
from trivium.text.chat import render, render_prompt
from trivium.text.tokenizer import ByteTokenizer

TALK = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
MMLU = {"question": "2 + 2?", "subject": "sums", "choices": ["1", "4", "5", "6"], "answer": 1}
ASKED = "Multiple choice question:\n2 + 2?\n- 1=A\n- 4=B\n- 5=C\n- 6=D\nAnswer with the letter alone."
ARC = {
    "id": "x",
    "question": "Which is hot?",
    "choices": {"text": ["ice", "fire", "rain"], "label": ["1", "2", "3"]},
    "answerKey": "2",
}
GSM8K = {
    "question": "Weng earns $12 an hour. 50 minutes?",
    "answer": "She earns 12/60 = $<<12/60=0.2>>0.2 a minute.\nThat is 0.2 x 50 = $<<0.2*50=10>>10.\n#### 10",
}


def parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def jsonl(path: Path, rows: list[Any]) -> Path:
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    packed = {".gz": gzip.compress, ".zst": zstandard.ZstdCompressor().compress}.get(path.suffix, bytes)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(packed(content))
    return path


def test_the_config_knows_the_same_names() -> None:
    assert tuple(TASKS) == (*NAMES, "needle")  # which is only asked
    assert {name for name, task in TASKS.items() if not task.dataset} == {*FILES, *GENERATED, "needle"}
    assert {name: task.kind for name, task in TASKS.items()} == {
        "smoltalk": "talk",
        "mmlu": "choice",
        "gsm8k": "generate",
        "arc": "choice",
        "jsonl": "talk",
        "spelling": "generate",
        "counting": "generate",
        "choices": "choice",
        "answers": "generate",
        "needle": "generate",
    }


def test_smoltalk_is_read_as_the_hub_keeps_it(tmp_path: Path) -> None:
    rows = [{"messages": [{**TALK[0], "content": f"hi {number}"}, TALK[1]], "source": "x"} for number in range(5)]
    parquet(tmp_path / "data" / "train-00000-of-00002.parquet", rows[:2])
    parquet(tmp_path / "data" / "train-00001-of-00002.parquet", rows[2:])
    parquet(tmp_path / "data" / "test-00000-of-00001.parquet", rows[:1])
    task = open_task("smoltalk", path=str(tmp_path))
    said = [each["messages"][0]["content"] for each in task]
    assert sorted(said) == [f"hi {number}" for number in range(5)]
    assert task[4] == task[-1]
    assert set(task[4]) == {"messages"}
    assert len(open_task("smoltalk", path=str(tmp_path), split="test")) == 1
    some = open_task("smoltalk", path=str(tmp_path), start=1, stop=3)
    assert [each["messages"][0]["content"] for each in some.conversations()] == said[1:3]
    assert len(open_task("smoltalk", path=str(tmp_path), start=4, stop=99)) == 1
    with pytest.raises(IndexError):
        task[5]


def test_stop_takes_the_rows_that_a_shuffled_dataset_has_first(tmp_path: Path) -> None:
    """As nanochat does: of MMLU's test split, which is sorted by subject, a part must be of all subjects."""
    rows = [{**MMLU, "question": f"{number}?"} for number in range(200)]
    parquet(tmp_path / "all" / "test-00000-of-00001.parquet", rows)
    theirs = datasets.Dataset.from_list(rows).shuffle(seed=42)["question"][:30]
    ours = open_task("mmlu", path=str(tmp_path), split="test", stop=30)
    assert [each["messages"][0]["content"].splitlines()[1] for each in ours] == theirs


@pytest.mark.parametrize("name", ["train.jsonl", "train.jsonl.gz", "my_train.jsonl.zst"])
def test_lines_are_read_however_they_are_packed(name: str, tmp_path: Path) -> None:
    path = jsonl(tmp_path / name, [{"messages": TALK}, TALK])
    for where in (path, tmp_path):
        task = open_task("jsonl", path=str(where))
        assert list(task) == [{"messages": TALK}] * 2
    with pytest.raises(NotImplementedError, match=r"^jsonl has no right answers$"):
        task.evaluate(task[0], "ho")


def test_mmlu_asks_by_letter(tmp_path: Path) -> None:
    parquet(tmp_path / "all" / "test-00000-of-00001.parquet", [MMLU])
    nested = {**MMLU, "question": "3 + 3?", "answer": 3}
    parquet(tmp_path / "auxiliary_train" / "train-00000-of-00001.parquet", [{"train": nested}])
    test = open_task("mmlu", path=str(tmp_path), split="test")
    assert test[0] == {
        "messages": [
            {
                "role": "user",
                "content": ASKED,
            },
            {"role": "assistant", "content": "B"},
        ],
        "letters": ["A", "B", "C", "D"],
        "subject": "sums",
    }
    assert [answer for answer in ("B", " B.", "A", "", "AB") if test.evaluate(test[0], answer)] == ["B", " B."]
    assert test.chance == 0.25
    train = open_task("mmlu", path=str(tmp_path), subset="auxiliary_train")
    assert train[0]["messages"][1]["content"] == "D"
    with pytest.raises(SourceError) as caught:
        open_task("mmlu", path=str(tmp_path), subset="all")
    told = 'mmlu: the subset "all" has no split "train". Write subset = "auxiliary_train", or another split.'
    assert str(caught.value) == told


def test_arc_keeps_its_own_labels(tmp_path: Path) -> None:
    parquet(tmp_path / "ARC-Easy" / "train-00000-of-00001.parquet", [ARC])
    parquet(tmp_path / "ARC-Challenge" / "train-00000-of-00001.parquet", [{**ARC, "answerKey": "3"}])
    easy = open_task("arc", path=str(tmp_path))
    hard = open_task("arc", path=str(tmp_path), subset="ARC-Challenge")
    assert easy[0]["messages"][0]["content"] == (
        "Multiple choice question:\nWhich is hot?\n- ice=1\n- fire=2\n- rain=3\nAnswer with the letter alone."
    )
    assert easy[0]["letters"] == ["1", "2", "3"]
    assert (easy.evaluate(easy[0], "2"), hard.evaluate(hard[0], "2")) == (True, False)


def test_gsm8k_calls_a_calculator(tmp_path: Path) -> None:
    parquet(tmp_path / "main" / "test-00000-of-00001.parquet", [GSM8K])
    task = open_task("gsm8k", path=str(tmp_path), split="test")
    assert task[0]["messages"][1]["content"] == [
        {"type": "text", "text": "She earns 12/60 = $"},
        {"type": "call", "text": "12/60"},
        {"type": "result", "text": "0.2"},
        {"type": "text", "text": "0.2 a minute.\nThat is 0.2 x 50 = $"},
        {"type": "call", "text": "0.2*50"},
        {"type": "result", "text": "10"},
        {"type": "text", "text": "10.\n#### 10"},
    ]
    answers = {"so #### 10": True, "#### 10.00": True, "#### 1,0": True, "#### 5\n#### 10": True, "#### 100": False}
    assert {answer: task.evaluate(task[0], answer) for answer in answers} == answers
    assert not task.evaluate(task[0], "10")


def test_a_call_of_gsm8k_without_a_result_is_a_call(tmp_path: Path) -> None:
    row = {"question": "2 + 3?", "answer": "<<2+3>>It is <<1+1=2=2>>5.\n#### 5"}
    (conversation,) = open_task("gsm8k", path=str(jsonl(tmp_path / "train.jsonl", [row])))
    assert [(part["type"], part["text"]) for part in conversation["messages"][1]["content"]] == [
        ("call", "2+3"),
        ("text", "It is "),
        ("call", "1+1=2"),
        ("result", "2"),
        ("text", "5.\n#### 5"),
    ]


def test_words_are_spelled() -> None:
    task = open_task("spelling", size=50)
    for conversation in task:
        question, answer = (message["content"] for message in conversation["messages"])
        word, letters = answer.split(":")
        assert word in question
        assert letters.split(",") == list(word)
        assert task.evaluate(conversation, f" {answer}\n")
        assert not task.evaluate(conversation, answer[:-1])
    assert len({conversation["messages"][0]["content"] for conversation in task}) > 40


def test_letters_are_counted_by_hand_and_by_a_call() -> None:
    task = open_task("counting", size=200)
    counts = []
    for conversation in task:
        by_hand, call, result, end = conversation["messages"][1]["content"]
        told, spelled, *lines = by_hand["text"].splitlines()
        _, letter, _, word, _ = told.split("'")
        counts.append(word.count(letter))
        assert spelled == f"{word}:{','.join(word)}"
        assert [line.split("=")[0] for line in lines[:-2]] == [f"{n}:{each}" for n, each in enumerate(word, 1)]
        hits = [line for line in lines[:-2] if "=" in line]
        assert [line[line.index(":") + 1 :] for line in hits] == [f"{letter}={n + 1}" for n in range(counts[-1])]
        assert lines[-2:] == [f"By hand: {counts[-1]}.", "By a call:"]
        assert calculate(call["text"]) == result["text"] == str(counts[-1])
        assert end["text"] == f"\n#### {counts[-1]}"
        assert word in conversation["messages"][0]["content"]
        assert task.evaluate(conversation, f"#### {counts[-1]}")
        assert not task.evaluate(conversation, f"#### {counts[-1] + 1}")
        assert not task.evaluate(conversation, "many")
    assert {0, 1, 2} <= set(counts)


def test_letters_are_asked_for_in_many_ways() -> None:
    asked = [each["messages"][0]["content"] for each in open_task("counting", size=4000)]
    typed = [each for each in asked if each.lower().startswith(("how", "count"))]
    assert 0.25 < sum(each[0].islower() for each in typed) / len(typed) < 0.35
    english = [each for each in asked if each.isascii()]
    assert 0.45 < sum(each.endswith("?") for each in english) / len(english) < 0.55
    assert not any(each.endswith("??") for each in asked)
    assert 0.5 < len(english) / len(asked) < 0.85
    for quote in "'\"":
        quoted = sum(f"{quote} " in each or each.rstrip("?").endswith(quote) for each in english)
        assert 0.4 < quoted / len(english) < 0.7
    assert len(COUNTING) == len(set(COUNTING)) == 51
    assert all("{letter}" in each and "{word}" in each for each in COUNTING)


def test_what_is_made_up_depends_on_the_seed_and_number_alone() -> None:
    first = open_task("counting", size=100)
    assert list(first) == list(open_task("counting", size=200))[:100]
    assert list(first[10:12]) == list(open_task("counting", size=100, start=10, stop=12))
    assert list(first) != list(open_task("counting", size=100, seed=1))
    assert first[0] == {
        "messages": [
            {"role": "user", "content": "How many 'b's has \"best\" got"},
            {
                "role": "assistant",
                "content": [
                    {
                        "type": "text",
                        "text": "Count 'b' in 'best'.\nbest:b,e,s,t\n1:b=1\n2:e\n3:s\n4:t\nBy hand: 1.\nBy a call:",
                    },
                    {"type": "call", "text": '"best".count("b")'},
                    {"type": "result", "text": "1"},
                    {"type": "text", "text": "\n#### 1"},
                ],
            },
        ]
    }


def test_no_word_is_in_both_splits(tmp_path: Path) -> None:
    train, test = split_words(None, "train"), split_words(None, "test")
    assert not set(train) & set(test)
    assert len(train) + len(test) > 2500
    assert 0.07 < len(test) / len(train) < 0.15
    shuffled = tmp_path / "mine.txt"
    shuffled.write_text("\n".join([*reversed(test), "zyzzyva", *train[:100]]))
    assert set(split_words(shuffled, "test")) - {"zyzzyva"} == set(test)
    assert len(open_task("spelling", path=str(shuffled))) in (100, 101)


def test_splits_by_rows_draw_from_all_words_under_keys_of_their_own(tmp_path: Path) -> None:
    words = tmp_path / "words.txt"
    words.write_text("apple\npear\nplum\n")
    train, test = (
        [
            each["messages"][1]["content"]
            for each in open_task("spelling", path=str(words), split=split, size=30, split_by="rows")
        ]
        for split in ("train", "test")
    )
    assert set(train) == set(test) == {"apple:a,p,p,l,e", "pear:p,e,a,r", "plum:p,l,u,m"}
    assert train != test


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("split", ["train", "test"])
def test_every_task_can_be_rendered(name: str, split: Literal["train", "test"], tmp_path: Path) -> None:
    rows = {"smoltalk": {"messages": TALK}, "jsonl": {"messages": TALK}, "mmlu": MMLU, "gsm8k": GSM8K, "arc": ARC}
    rows |= {
        "choices": {"question": "?", "choices": ["a", "b"], "answer": 0},
        "answers": {"question": "?", "answer": "!"},
    }
    path = None if name in GENERATED else str(jsonl(tmp_path / f"{split}.jsonl", [rows[name]]))
    task = open_task(name, path=path, split=split)
    tokens = render(task[0], ByteTokenizer())
    prompt = render_prompt(task[0]["messages"][:-1], ByteTokenizer())
    assert tokens.tokens[: len(prompt)].tolist() == prompt.tolist()
    assert 0 < tokens.loss_mask.sum() < len(tokens.loss_mask)


def test_what_cannot_be_opened_says_why(tmp_path: Path) -> None:
    jsonl(tmp_path / "test.jsonl", ["x"])
    (tmp_path / "broken.parquet").write_bytes(b"PAR1")
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("gsmk8", {}, 'task: "gsmk8" is not known. Did you mean "gsm8k"?'),
        ("arc", {"subset": "ARC-Eazy"}, 'task: arc has no subset "ARC-Eazy". Did you mean "ARC-Easy"?'),
        ("spelling", {"subset": "x"}, 'task: spelling has no subset "x". Leave it out.'),
        ("jsonl", {}, 'task: jsonl needs a file. Write path = "data/chat.jsonl".'),
        (
            "jsonl",
            {"path": f"{tmp_path}/x"},
            f"{tmp_path}/x: is not there. Name a JSONL or Parquet file, or a folder of them.",
        ),
        (
            "jsonl",
            {"path": str(tmp_path)},
            f'{tmp_path}: has no files of the split "train". Name its file, such as train.jsonl.',
        ),
        (
            "counting",
            {"path": f"{tmp_path}/x"},
            f"{tmp_path}/x: is not there. Name a file with a word a line, or none.",
        ),
    ]
    for name, keys, said in cases:
        with pytest.raises(SourceError) as caught:
            open_task(name, **keys)
        assert str(caught.value) == said
    task = open_task("jsonl", path=str(tmp_path), split="test")
    with pytest.raises(SourceError) as caught:
        task[0]
    assert str(caught.value) == f"{tmp_path}/test.jsonl line 1: not a JSON object. Fix it, or take it out."
    with pytest.raises(SourceError, match=r"broken\.parquet: cannot be read: .* copy it again, or take it out\.$"):
        open_task("jsonl", path=f"{tmp_path}/broken.parquet")


def test_a_row_that_is_no_question_is_named(tmp_path: Path) -> None:
    whole = {"question": "Why?", "choices": {"text": ["a", "b"], "label": ["A", "B"]}, "answerKey": "A"}
    one = {**whole, "choices": {"text": ["a"], "label": ["A"]}}
    jsonl(tmp_path / "test.jsonl", [whole, {"question": "Why?", "answerKey": "A"}, one])
    task = open_task("arc", path=str(tmp_path), split="test")
    third, second, first = range(3)  # as they are shuffled
    assert task[first]["letters"] == ["A", "B"]
    needs = "cannot be read: a question needs two choices or more, and it has 1"
    for number, what in ((second, 'line 2 has no "choices"'), (third, f"line 3 {needs}")):
        with pytest.raises(SourceError) as caught:
            task[number]
        assert str(caught.value) == f"{tmp_path}/test.jsonl {what}. Fix it, or take it out."
