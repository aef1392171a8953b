"""A tokenizer trained on texts: the same file every time, and one that we and others read."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from tests.support.command_line import trivium
from tests.support.tokenizers import LINES, TRIED, encoder_for, opened
from trivium.errors import SourceError, UsageError
from trivium.text.fast_bpe import FastTokenizer
from trivium.text.roles import ROLES
from trivium.text.train_tokenizer import train_tokenizer, write_tokenizer


def run(folder: Path, *arguments: str) -> tuple[int, str, str]:
    return trivium(folder, "tokenizer", "train", *arguments)


def test_the_command_writes_the_same_tokenizer_every_time(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("".join(LINES), encoding="utf-8")
    (tmp_path / "b.jsonl").write_text("".join(json.dumps({"body": line}) + "\n" for line in LINES))
    arguments = ("texts", "b.jsonl", "--column", "body", "--vocab", "300", "--out")
    runs = [run(tmp_path, *arguments, name) for name in ("one", "two")]
    assert [(code, err.strip()) for code, _, err in runs] == [(0, ""), (0, "")]
    size = 2 * sum(len(line.encode()) for line in LINES)
    assert runs[0][1] == f"one/tokenizer.json: 300 tokens, from {1 + len(LINES)} texts, {size} bytes\n"
    one, two = ((tmp_path / name / "tokenizer.json").read_bytes() for name in ("one", "two"))
    assert one == two
    code, out, err = run(tmp_path, *arguments, "one")
    assert (code, out) == (2, "")
    told = "has a tokenizer.json already. Name another folder, or remove it."
    assert err.strip().splitlines()[-1] == f"--out: one {told}"


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
    assert str(caught.value) == "--vocab: 267 is too small: bytes and special tokens alone are 268. Write 268 or more."
    with pytest.raises(SourceError) as nothing:
        train_tokenizer(["", ""], 300)
    assert str(nothing.value) == "these files hold no text. Name others, or the column that holds the text."


CONFIG = """
run.name = "small"
model.size = "tiny"
tokenizer.path = "tok"
sources.web = {kind = "text", path = "web.jsonl", column = "body", bad_lines = 0.5}
sources.code = {kind = "text", path = "code"}
sources.test = {kind = "text", path = "missing.jsonl", validation_only = true}
sources.done = {kind = "tokens", path = "done"}
stages = [{name = "only", steps = 10, mixture = {web = 0.5, code = 0.25, done = 0.25}}]
"""


def test_a_config_gives_the_text_of_its_sources(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "a.py").write_text(LINES[2], encoding="utf-8")
    (tmp_path / "web.jsonl").write_text(json.dumps({"body": LINES[0]}) + "\n{\n")
    (tmp_path / "run.toml").write_text(CONFIG)
    code, out, err = run(tmp_path, "run.toml", "run.seed=2", "--vocab", "300", "--out", "tok")
    size = len((LINES[0] + LINES[2]).encode())
    assert (code, out) == (0, f"tok/tokenizer.json: 300 tokens, from 2 texts, {size} bytes\n")
    assert err == "web: skipped 1 broken JSON: web.jsonl line 2\n"
    code, _, err = run(tmp_path, "run.toml", "--bad-lines", "0", "--out", "other")
    told = "web: 1 of 2 lines hold no document, 50.00%: over the limit of 0. Fix them, or allow 0.5 with --bad-lines"
    assert (code, err.partition(", or with")[0]) == (2, told)
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("run.toml", "--column", "body"),
            "tokenizer train: --column goes with files; a config has it in its sources.",
        ),
        (
            ("run.toml", "sources.web.validation_only=true", "sources.code.validation_only=true"),
            'run.toml: has no source of kind = "text" to train on. Name files or folders instead.',
        ),
        (("nowhere",), "nowhere: does not exist. Write the path of a file or folder, or a pattern."),
    ],
    ids=["column", "no text", "missing"],
)
def test_what_cannot_be_trained_on_is_one_line(arguments: tuple[str, ...], said: str, tmp_path: Path) -> None:
    mixture = "{web = 0.5, code = 0.25, done = 0.25}"
    (tmp_path / "run.toml").write_text(CONFIG.replace(mixture, "{done = 1.0}"))
    assert run(tmp_path, *arguments, "--out", "tok") == (2, "", f"{said}\n")
    assert not (tmp_path / "tok").exists()
