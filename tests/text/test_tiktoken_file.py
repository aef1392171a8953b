"""A .tiktoken file: ranks, pattern, special tokens after them."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.tokenizers import opened, write_ranks
from trivium.errors import SourceError
from trivium.text.roles import ROLES


def ranks(path: Path, **keys: Any) -> Any:
    return opened(kind="tiktoken", path=str(path), **keys)


def test_ranks_are_ids_and_special_tokens_follow(tmp_path: Path) -> None:
    tokenizer = ranks(write_ranks(tmp_path / "x.tiktoken"))
    assert tokenizer.encode(["in the"])[0].tolist() == [*b"in", 258]
    assert [tokenizer.special(role) for role in ROLES] == list(range(259, 271))
    assert tokenizer.vocab == 271
    assert tokenizer.decode([258, 260]) == " the<|bos|>"


def test_special_tokens_as_the_config_lists_them(tmp_path: Path) -> None:
    write_ranks(tmp_path / "x.tiktoken")
    tokenizer = ranks(tmp_path, special_tokens=["<|begin_of_text|>", "<|x|>"], eos="<|x|>")
    assert (tokenizer.vocab, tokenizer.special("bos"), tokenizer.special("eos")) == (261, 259, 260)
    assert tokenizer.special("user_start") is None


def test_the_pattern_splits(tmp_path: Path) -> None:
    path = write_ranks(tmp_path / "x.tiktoken")
    assert ranks(path, pattern=r"\S|\s").encode([" the"])[0].tolist() == [*b" the"]


def test_a_long_run_of_white_space_is_read(tmp_path: Path) -> None:
    path = write_ranks(tmp_path / "x.tiktoken")
    (tokens,) = ranks(path).encode([" " * 1_500_001 + "the"])
    assert (len(tokens), tokens[-1]) == (1_500_001, 258)


def test_the_fingerprint_changes_with_all_that_changes_tokens(tmp_path: Path) -> None:
    path = write_ranks(tmp_path / "x.tiktoken")
    other = write_ranks(tmp_path / "y.tiktoken", (b" th", b"th", b" the"))
    forms = [ranks(path), ranks(other), ranks(path, pattern="."), ranks(path, special_tokens=["<|bos|>"])]
    forms += [ranks(path, bos="<|eos|>")]
    assert len({form.fingerprint for form in forms}) == len(forms)
    assert ranks(path).fingerprint == forms[0].fingerprint


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("dGg=", "line 257 is not a token in base64 and its rank. Name a .tiktoken file."),
        ("d?g= 256", "line 257 is not a token in base64 and its rank. Name a .tiktoken file."),
        ("dGg= 7", "two tokens have one rank, or a rank is below 0. Name another file."),
    ],
    ids=["no-rank", "no-base64", "one-rank"],
)
def test_what_is_no_ranks_file_is_refused(line: str, said: str, tmp_path: Path) -> None:
    path = write_ranks(tmp_path / "x.tiktoken", ())
    path.write_text(path.read_text() + line)
    with pytest.raises(SourceError) as caught:
        ranks(path)
    assert str(caught.value) == f"{path}: {said}"


def test_every_byte_has_a_token(tmp_path: Path) -> None:
    path = tmp_path / "x.tiktoken"
    path.write_text("YQ== 0\n")
    with pytest.raises(SourceError) as caught:
        ranks(path)
    told = "has no token for 255 of the 256 bytes, such as 0: not every text could be written. Name another file."
    assert str(caught.value) == f"{path}: {told}"


def test_a_missing_file_and_a_wrong_pattern_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError) as caught:
        ranks(tmp_path / "x.tiktoken")
    told = "does not exist. Write the path of a .tiktoken file."
    assert str(caught.value) == f"tokenizer.path: {tmp_path}/x.tiktoken {told}"
    with pytest.raises(SourceError) as caught:
        ranks(tmp_path)
    told = "has 0 .tiktoken files, not one. Write the path of a .tiktoken file."
    assert str(caught.value) == f"tokenizer.path: {tmp_path} {told}"
    with pytest.raises(SourceError, match=r"^tokenizer\.pattern: cannot be used: .*\. Write a regular expression\.$"):
        ranks(write_ranks(tmp_path / "x.tiktoken"), pattern="(")
