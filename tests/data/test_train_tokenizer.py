"""A tokenizer trained on texts: the same file every time, and one that we and others read."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from tests.data.tokenizers import LINES, TRIED, opened
from trivium.data.fast_bpe import FastTokenizer, encoder_for
from trivium.data.roles import ROLES
from trivium.data.train_tokenizer import train_tokenizer, write_tokenizer
from trivium.errors import SourceError, UsageError

ROOT = Path(__file__).parents[2]


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "trivium", "tokenizer", "train", *arguments]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(folder)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_the_command_writes_the_same_tokenizer_every_time(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("".join(LINES), encoding="utf-8")
    (tmp_path / "b.jsonl").write_text("".join(json.dumps({"body": line}) + "\n" for line in LINES))
    arguments = ("texts", "b.jsonl", "--column", "body", "--vocab", "300", "--out")
    runs = [run(tmp_path, *arguments, name) for name in ("one", "two")]
    assert [(each.returncode, each.stderr.strip()) for each in runs] == [(0, ""), (0, "")]
    documents = (tmp_path / "texts" / "a.txt").read_bytes().count(b"\n") + 1 + len(LINES)
    size = 2 * sum(len(line.encode()) for line in LINES)
    assert runs[0].stdout == f"one/tokenizer.json: 300 tokens, from {documents} texts, {size} bytes\n"
    one, two = ((tmp_path / name / "tokenizer.json").read_bytes() for name in ("one", "two"))
    assert one == two
    again = run(tmp_path, *arguments, "one")
    assert (again.returncode, again.stdout) == (2, "")
    told = "has a tokenizer.json already. Name another folder, or take it away."
    assert again.stderr.strip().splitlines()[-1] == f"--out: one {told}"


def test_what_was_written_is_opened_and_is_fast(tmp_path: Path) -> None:
    trained = train_tokenizer(LINES * 5, 350)
    path = write_tokenizer(trained, tmp_path / "tok")
    tokenizer = opened(path=str(tmp_path / "tok"))
    assert (tokenizer.vocab, trained.documents) == (350, 20)
    assert [tokenizer.special(role) for role in ROLES] == list(range(12))
    theirs = Tokenizer.from_file(str(path))
    assert [each.tolist() for each in tokenizer.encode(TRIED)] == [theirs.encode(text).ids for text in TRIED]
    assert isinstance(encoder_for(tokenizer, TRIED), FastTokenizer)
    said = json.loads((tmp_path / "tok" / "tokenizer_config.json").read_text())
    assert (said["bos_token"], said["eos_token"]) == ("<|bos|>", "<|eos|>")


def test_fewer_tokens_where_there_is_nothing_to_merge() -> None:
    assert train_tokenizer(["abab"], 1000).vocab == 256 + len(ROLES) + 2


def test_too_small_a_vocabulary_and_no_text_are_refused() -> None:
    with pytest.raises(UsageError) as caught:
        train_tokenizer(LINES, 267)
    assert str(caught.value) == "--vocab: 267 is too small: bytes and special tokens are 268. Write more."
    with pytest.raises(SourceError) as nothing:
        train_tokenizer(["", ""], 300)
    assert str(nothing.value) == "there is no text in these files. Name others, or the column that holds the text."


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.jsonl", b'{"text": "x"}\n{"body": "y"}\n', 'line 2 is no JSON with "text"'),
        ("a.jsonl", b"{", 'line 1 is no JSON with "text"'),
        ("a.txt", b"\xff\xff", "line 1 is no UTF-8"),
    ],
    ids=["column", "broken", "bytes"],
)
def test_a_file_that_cannot_be_read_is_one_line(name: str, content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    ran = run(tmp_path, name, "--out", "tok")
    told = f"{name}: {said}. Name text files, or the column that holds the text."
    assert (ran.returncode, ran.stdout, ran.stderr.strip().splitlines()[-1]) == (2, "", told)
    assert not (tmp_path / "tok").exists()
