"""Texts from what every Python has."""

import json
import string
from pathlib import Path

import pytest

from trivium.demo.texts import library_files, read_module, sums, write_texts


def test_prose_is_taken_out_of_the_code(tmp_path: Path) -> None:
    path = tmp_path / "scale.py"
    path.write_text('"""Scales\n\nthings."""\n\nLIMIT = 3\n\n\ndef scale(x):\n    """Twice."""\n    return 2 * x\n')
    module = read_module(path)
    assert module.code == "LIMIT = 3\ndef scale(x):\n    return 2 * x\n"
    assert module.prose == "Scales\n\nthings.\n\nTwice."


@pytest.mark.parametrize("content", [b"def broken(:\n", b"# coding: nothing-known\n", b"x = '\xff'\n", b"x = 1\0\n"])
def test_a_file_that_is_no_python_gives_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bad.py").write_bytes(content)
    module = read_module(tmp_path / "bad.py")
    assert (module.code, module.prose) == ("", "")


@pytest.mark.slow
def test_the_library_is_read_up_to_a_size_in_one_order() -> None:
    few, more = library_files(100_000), library_files(1_000_000)
    assert more[: len(few)] == few
    assert sum(path.stat().st_size for path in few) >= 100_000
    assert sum(path.stat().st_size for path in few[:-1]) < 100_000
    assert not any("test" in path.parts or "site-packages" in path.parts for path in more)


def test_texts_are_documents_a_line(tmp_path: Path) -> None:
    told = []
    write_texts(tmp_path, 200_000, lambda done, total: told.append((done, total)))
    assert told[-1][0] == told[-1][1] == len(told)
    for name in ("code", "prose"):
        documents = [json.loads(line)["text"] for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()]
        assert len(documents) > 3
        assert min(map(len, documents)) > 200


def test_sums_are_right_and_the_same_every_time() -> None:
    made = list(sums(200))
    assert made == list(sums(200))
    for conversation in made:
        question, answer = (message["content"] for message in conversation["messages"])
        left, _, right = answer.partition(" = ")
        assert sum(map(int, left.split(" + "))) == int(right)
        assert set(left.split(" + ")) <= set(question.translate(str.maketrans("", "", string.punctuation)).split())
