"""Fill-in-the-middle: texts cut in three, by themselves alone, and put together again."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trivium.config.schema import Tokenizer as TokenizerConfig
from trivium.config.sources import Fim as FimConfig
from trivium.errors import SourceError
from trivium.text.file_tokenizer import FileTokenizer
from trivium.text.fim import USUAL_NAMES, CutText, Fim, find_fim
from trivium.text.tokenizer import ByteTokenizer, open_tokenizer, replace_surrogates
from trivium.text.train_tokenizer import train_tokenizer, write_tokenizer

PREFIX, SUFFIX, MIDDLE = IDS = (300, 301, 302)
TEXTS = [f"def f{number}(x):\n    return x + {number}\n" for number in range(2000)]


def made(rate: float = 1.0, spm: float = 0.5) -> Fim:
    return Fim(rate, spm, USUAL_NAMES[0], IDS)


def encode(fim: Fim, *texts: str) -> list[list[int]]:
    return [each.tolist() for each in fim.encode(texts, ByteTokenizer().encode)]


def put_together(tokens: Sequence[int]) -> bytes:
    """The text of a document, whether it was cut or not."""
    if PREFIX not in tokens:
        return bytes(tokens)
    assert sorted(token for token in tokens if token >= 256) == [*IDS]
    assert tokens[0] == PREFIX
    suffix, middle = tokens.index(SUFFIX), tokens.index(MIDDLE)
    if suffix == 1:
        return bytes(tokens[middle + 1 :]) + bytes(tokens[2:middle])
    return bytes(tokens[1:suffix]) + bytes(tokens[middle + 1 :]) + bytes(tokens[suffix + 1 : middle])


@given(st.text(st.characters(codec=None)), st.sampled_from([0.5, 1.0]), st.sampled_from([0.0, 0.5, 1.0]))
def test_no_text_loses_a_byte_and_a_cut_one_has_three_tokens_more(text: str, rate: float, spm: float) -> None:
    (tokens,) = encode(made(rate, spm), text)
    plain = replace_surrogates(text).encode()
    assert put_together(tokens) == plain
    assert len(tokens) in (len(plain), len(plain) + 3)


def test_rates_are_kept_and_cuts_are_anywhere() -> None:
    found = [made(0.5, 0.25).cut(text) for text in TEXTS]
    cut = [each for each in found if len(each.parts) == 3]
    assert len(cut) == pytest.approx(1000, abs=100)
    assert sum(each.suffix_first for each in cut) == pytest.approx(250, abs=60)
    lengths = np.array([[len(part) for part in each.parts] for each in cut])
    assert lengths.mean(axis=0) == pytest.approx([lengths.sum() / 3 / len(cut)] * 3, rel=0.15)
    assert (lengths.min(axis=0) == 0).all()


def test_a_text_is_cut_alike_wherever_it_is() -> None:
    whole = encode(made(0.5), *TEXTS[:100])
    assert [encode(made(0.5), text)[0] for text in reversed(TEXTS[:100])] == whole[::-1]
    more = encode(made(0.9), *TEXTS[:100])
    assert all(other == one for one, other in zip(whole, more, strict=True) if PREFIX in one)  # a higher rate cuts more


def test_where_texts_are_cut_never_changes() -> None:
    cuts = [made(spm=spm).cut("def f(x): return x") for spm in (0.0, 1.0)]
    parts = ("def ", "f(x): retur", "n x")
    assert cuts == [CutText(parts, False), CutText(parts, True)]


def test_a_text_with_the_name_of_a_marking_token_stays_whole() -> None:
    text = f"what {USUAL_NAMES[0][1]} is"
    assert encode(made(), text) == [list(text.encode())]


def test_tokens_are_found_by_their_usual_names(tmp_path: Path) -> None:
    path = write_tokenizer(train_tokenizer(TEXTS, 400, USUAL_NAMES[0]), tmp_path)
    config = TokenizerConfig(path=str(path))
    tokenizer = open_tokenizer(config)
    assert isinstance(tokenizer, FileTokenizer)
    found = find_fim(FimConfig(rate=0.5), tokenizer, config)
    assert found is not None
    assert [tokenizer.decode([number]) for number in found.ids] == [*USUAL_NAMES[0]]
    assert find_fim(None, tokenizer, config) is None
    others = TokenizerConfig(path=str(path), fim_tokens=("<|eos|>", "<|bos|>", "<|user_start|>"))
    found = find_fim(FimConfig(), tokenizer, others)
    assert found is not None
    assert found.ids == (0, 1, 2)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (
            None,
            "fim: the tokenizer has no tokens for fill-in-the-middle",
        ),
        (["<|eos|>", "<x>", "<|bos|>"], 'tokenizer.fim_tokens: "<x>" is not a token of it. Write the tokens before '),
        (["<y>", "<x>", "<|bos|>"], 'tokenizer.fim_tokens: "<y>" and "<x>" are not tokens of it. Write the tokens '),
        (["<|eos|>", "<|eos|>", "<|bos|>"], "tokenizer.fim_tokens: names one token twice. Write the tokens before "),
    ],
)
def test_a_tokenizer_without_the_tokens_is_refused(names: list[str] | None, said: str, tmp_path: Path) -> None:
    path = write_tokenizer(train_tokenizer(TEXTS, 400), tmp_path)
    config = TokenizerConfig(path=str(path), fim_tokens=None if names is None else tuple(names))  # type: ignore[arg-type]
    tokenizer = open_tokenizer(config)
    assert tokenizer is not None
    with pytest.raises(SourceError) as caught:
        find_fim(FimConfig(), tokenizer, config)
    assert str(caught.value).startswith(said)
