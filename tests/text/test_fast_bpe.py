"""tiktoken in place of the slow library: the same ids, or not at all."""

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.tokenizers import LINES, NAMES, TRIED, byte_level, encoder_for, file_tokenizer, opened, piece_level
from trivium.text.fast_bpe import COMPARED_PATTERNS, FastTokenizer, make_fast

DESCRIBED = byte_level()
PLAIN = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
FLAGS = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}


def with_pattern(pattern: str) -> dict[str, Any]:
    split, byte_level = DESCRIBED["pre_tokenizer"]["pretokenizers"]
    parts = [{**split, "pattern": {"Regex": pattern}}, byte_level]
    return {**DESCRIBED, "pre_tokenizer": {"type": "Sequence", "pretokenizers": parts}}


def fast(path: Path, described: dict[str, Any]) -> FastTokenizer:
    found = make_fast(file_tokenizer(path / "tokenizer.json", described), TRIED)
    assert isinstance(found, FastTokenizer), found
    return found


def agree(tokenizer: FastTokenizer, texts: list[str]) -> bool:
    pairs = zip(tokenizer.encode(texts), tokenizer.slow.encode(texts), strict=True)
    return all(ours.tolist() == theirs.tolist() for ours, theirs in pairs)


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> FastTokenizer:
    return fast(tmp_path_factory.mktemp("usual"), DESCRIBED)


@settings(max_examples=100, deadline=None)
@given(text=st.text(st.sampled_from("aeth'rsTE 19\n\t\r.é日🙂<|bos>_"), max_size=40) | st.text(max_size=20))
def test_any_text_has_the_same_ids(usual: FastTokenizer, text: str) -> None:
    assert agree(usual, [text, f" {text}{text}"])


@pytest.mark.parametrize("pattern", sorted(COMPARED_PATTERNS), ids=range(len(COMPARED_PATTERNS)))
def test_every_pattern_has_the_same_ids(pattern: str, tmp_path: Path) -> None:
    draw = random.Random(pattern)
    characters = [chr(draw.randrange(0x20, 0xD7FF)) for _ in range(3000)] + list("'sStT \n\r\t.123aA") * 100
    draw.shuffle(characters)
    assert agree(fast(tmp_path, with_pattern(pattern)), ["".join(characters), *TRIED, NAMES])


def test_a_plain_byte_level_splits_as_gpt2(tmp_path: Path) -> None:
    assert agree(fast(tmp_path, {**DESCRIBED, "pre_tokenizer": PLAIN}), [*TRIED, NAMES])


@pytest.mark.slow
def test_a_text_that_only_the_slow_one_can_read_goes_there(usual: FastTokenizer) -> None:
    texts = ["x" + " " * 1_500_000 + "y"]
    assert agree(usual, texts)


def test_ids_need_not_be_in_the_order_of_merges(tmp_path: Path) -> None:
    vocab = DESCRIBED["model"]["vocab"]
    names = [name for name in vocab if not name.startswith("<|")]
    numbers = [vocab[name] for name in names]
    turned = vocab | dict(zip(names, reversed(numbers), strict=True))
    described = {**DESCRIBED, "model": {**DESCRIBED["model"], "vocab": turned}}
    assert agree(fast(tmp_path, described), [*TRIED, NAMES])


def test_added_tokens_that_are_not_special_are_found(tmp_path: Path) -> None:
    added = [*DESCRIBED["added_tokens"], {"id": 400, "content": "brown fox", "special": False, **FLAGS}]
    tokenizer = fast(tmp_path, {**DESCRIBED, "added_tokens": added})
    assert 400 in tokenizer.encode(LINES)[0]
    assert agree(tokenizer, [*TRIED, NAMES])


def test_it_is_the_same_tokenizer_otherwise(usual: FastTokenizer) -> None:
    slow = usual.slow
    assert (usual.fingerprint, usual.vocab) == (slow.fingerprint, slow.vocab)
    assert usual.special("eos") == slow.special("eos")
    assert usual.token_bytes(400).tolist() == slow.token_bytes(400).tolist()


def model(**keys: Any) -> dict[str, Any]:
    return {**DESCRIBED, "model": {**DESCRIBED["model"], **keys}}


def two_merges() -> dict[str, Any]:
    vocab = {**DESCRIBED["model"]["vocab"], "ab": 500, "bc": 501, "abc": 502}
    return model(vocab=vocab, merges=[["a", "b"], ["b", "c"], ["ab", "c"], ["a", "bc"]])


def unreachable() -> dict[str, Any]:
    """`abc` comes from `ab` and `c`, but `bc` is merged before."""
    vocab = {**DESCRIBED["model"]["vocab"], "ab": 500, "bc": 501, "abc": 502}
    return model(vocab=vocab, merges=[["b", "c"], ["a", "b"], ["ab", "c"]])


@pytest.mark.parametrize(
    ("described", "reason"),
    [
        pytest.param(piece_level(), "normalizer", id="normalizer"),
        pytest.param(with_pattern(r"\w+|\W+"), "pre_tokenizer", id="pattern"),
        pytest.param({**DESCRIBED, "pre_tokenizer": None}, "pre_tokenizer", id="none"),
        pytest.param({**DESCRIBED, "pre_tokenizer": {**PLAIN, "add_prefix_space": True}}, "pre_tokenizer", id="prefix"),
        pytest.param(model(unk_token="!"), "model", id="unknown"),
        pytest.param(model(end_of_word_suffix="e"), "model", id="suffix"),
        pytest.param(two_merges(), "tokens of two merges", id="two-merges"),
        pytest.param(unreachable(), "tokens that no merges make", id="unreachable"),
    ],
)
def test_what_may_differ_stays_slow(described: dict[str, Any], reason: str, tmp_path: Path) -> None:
    slow = file_tokenizer(tmp_path / "tokenizer.json", described)
    assert make_fast(slow, TRIED) == reason
    assert encoder_for(slow, TRIED) is slow


def test_one_text_that_differs_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = file_tokenizer(tmp_path / "tokenizer.json", with_pattern("."))
    monkeypatch.setattr("trivium.text.fast_bpe.COMPARED_PATTERNS", {r"."})
    assert isinstance(make_fast(slow, ["no line ends"]), FastTokenizer)
    monkeypatch.setattr("trivium.text.fast_bpe._pattern", lambda _: r"(?s).+")
    monkeypatch.setattr("trivium.text.fast_bpe.COMPARED_PATTERNS", {r"(?s).+"})
    assert make_fast(slow, ["a", "the the the"]) == "other ids"


def test_other_kinds_stay_as_they_are() -> None:
    tokenizer = opened(kind="bytes")
    assert encoder_for(tokenizer, TRIED) is tokenizer
    assert make_fast(tokenizer, TRIED) == "no tokenizer.json"
