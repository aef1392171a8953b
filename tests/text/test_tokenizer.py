"""Every kind of tokenizer: the same promises."""

import multiprocessing
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.support.tokenizers import NAMES, TRIED, encoder_for, every_kind, opened
from trivium.text.roles import ROLES
from trivium.text.tokenizer import ByteTokenizer, Tokenizer, open_tokenizer

KINDS = ("bytes", "byte-level", "fast", "pieces", "unigram", "ranks")


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    found = every_kind(tmp_path_factory.mktemp("kinds"))
    return {**found, "fast": encoder_for(found["byte-level"], TRIED)}


@pytest.fixture(params=KINDS)
def tokenizer(request: pytest.FixtureRequest, kinds: dict[str, Tokenizer]) -> Tokenizer:
    return kinds[request.param]


def special_ids(tokenizer: Tokenizer) -> set[int]:
    return {number for role in ROLES if (number := tokenizer.special(role)) is not None}


def test_the_fast_one_is_fast(kinds: dict[str, Tokenizer]) -> None:
    assert type(kinds["fast"]).__name__ == "FastTokenizer"


def test_the_bytes_of_a_texts_tokens_add_up_to_its_own(tokenizer: Tokenizer) -> None:
    sizes = tokenizer.token_bytes(tokenizer.vocab)
    for text, tokens in zip(TRIED, tokenizer.encode(TRIED), strict=True):
        assert sizes[tokens].sum() == len(text.encode()), text
    assert sizes[sorted(special_ids(tokenizer))].sum() == 0


def test_text_comes_back(tokenizer: Tokenizer) -> None:
    assert [tokenizer.decode(tokens.tolist()) for tokens in tokenizer.encode(TRIED)] == TRIED


def test_a_special_tokens_name_in_a_text_is_text(tokenizer: Tokenizer) -> None:
    (tokens,) = tokenizer.encode([NAMES])
    assert tokens.dtype == np.uint32
    assert special_ids(tokenizer)
    assert not special_ids(tokenizer) & set(tokens.tolist())
    assert tokenizer.decode(tokens.tolist()) == NAMES
    assert tokenizer.token_bytes(tokenizer.vocab)[tokens].sum() == len(NAMES.encode())


def test_half_a_surrogate_pair_is_replaced(tokenizer: Tokenizer) -> None:
    broken, joined = tokenizer.encode(["a\ud83dz", "\ud83d\ude42"])
    assert tokenizer.decode(broken.tolist()) == "a\ufffdz"
    assert tokenizer.decode(joined.tolist()) == "🙂"


def test_ids_stay_below_the_vocabulary(tokenizer: Tokenizer) -> None:
    assert max(max(tokens, default=0) for tokens in tokenizer.encode([*TRIED, NAMES])) < tokenizer.vocab
    assert max(special_ids(tokenizer)) < tokenizer.vocab
    assert len(tokenizer.token_bytes(1000)) == 1000


def _encoded_elsewhere(pickled: bytes) -> tuple[str, list[list[int]]]:
    tokenizer: Tokenizer = pickle.loads(pickled)
    return tokenizer.fingerprint, [tokens.tolist() for tokens in tokenizer.encode([*TRIED, NAMES])]


def test_threads_and_processes_give_the_same_tokens(kinds: dict[str, Tokenizer]) -> None:
    all_kinds = [kinds[name] for name in KINDS]
    here = [_encoded_elsewhere(pickle.dumps(each)) for each in all_kinds]
    with ThreadPoolExecutor(4) as threads:
        for tokenizer, (_, tokens) in zip(all_kinds, here, strict=True):
            many = threads.map(lambda text, of=tokenizer: of.encode([text])[0].tolist(), [*TRIED, NAMES] * 4)
            assert list(many) == tokens * 4
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(_encoded_elsewhere, [pickle.dumps(each) for each in all_kinds]) == here


def test_bytes_are_their_own_ids_and_special_ones_follow() -> None:
    tokenizer = opened(kind="bytes")
    assert tokenizer == ByteTokenizer()
    assert tokenizer.encode(["aé"])[0].tolist() == [97, 195, 169]
    assert [tokenizer.special(role) for role in ROLES] == [*range(256, 266), None, None]


def test_no_tokenizer_is_none() -> None:
    assert open_tokenizer(None) is None
