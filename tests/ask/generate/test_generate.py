"""Rows of a real, tiny model: what they say does not depend on who is beside them."""

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.batches import TINY
from tests.support.generated import log_probabilities
from trivium.ask.generate.generate import generate
from trivium.ask.generate.row import Calls, GeneratedRow, Writing, calculator_calls
from trivium.ask.generate.sampling import GREEDY, Sampling
from trivium.engine.base import Engine, EngineSettings
from trivium.engine.torch.engine import TorchEngine
from trivium.text.tokenizer import ByteTokenizer

PROMPTS: list[NDArray[np.integer]] = [np.array(prompt) for prompt in ([1, 2, 3], [4], [5, 6, 7, 8, 9, 10], [11, 12])]
VOCAB = TINY.vocab
BYTES = ByteTokenizer()


@pytest.fixture(scope="module")
def engine() -> Engine:
    return TorchEngine(EngineSettings(TINY, device="cpu", seed=1))


def tokens_of(rows: list[list[GeneratedRow]]) -> list[list[list[int]]]:
    return [[row.tokens for row in samples] for samples in rows]


def test_greedy_rows_are_the_likeliest_tokens_of_whole_rows(engine: Engine) -> None:
    rows = generate(engine, PROMPTS, Writing(6, sampling=GREEDY), batch_rows=3)
    for prompt, (row,) in zip(PROMPTS, rows, strict=True):
        assert len(row.tokens) == 6
        assert (row.ended, row.stopped) == (True, False)
        whole = log_probabilities(engine, [*prompt.tolist(), *row.tokens], VOCAB).argmax(axis=1)
        assert row.tokens == whole[len(prompt) - 1 : -1].tolist()


def test_a_row_does_not_depend_on_the_rows_beside_it(engine: Engine) -> None:
    writing = Writing(8, sampling=Sampling(1.0, top_p=0.95, seed=3), samples=3)
    together = tokens_of(generate(engine, PROMPTS, writing))
    assert len({tuple(row) for samples in together for row in samples}) == 12
    for place, prompt in enumerate(PROMPTS):
        assert tokens_of(generate(engine, [prompt], writing, numbers=[place])) == [together[place]]
    assert tokens_of(generate(engine, PROMPTS, writing, batch_rows=1)) == together
    another = Writing(8, sampling=Sampling(1.0, top_p=0.95, seed=4), samples=3)
    assert tokens_of(generate(engine, PROMPTS, another)) != together


def test_a_row_ends_at_a_stop_token_which_is_not_part_of_it(engine: Engine) -> None:
    plain = generate(engine, PROMPTS, Writing(8, sampling=GREEDY))
    stop = plain[0][0].tokens[3]
    stopped = generate(engine, PROMPTS, Writing(8, frozenset({stop}), GREEDY))
    for (before,), (row,) in zip(plain, stopped, strict=True):
        at = before.tokens.index(stop) if stop in before.tokens else 8
        assert row.tokens == before.tokens[:at]
        assert row.stopped == (stop in before.tokens)


def row_with(tokens: list[int], calls: Calls | None, max_tokens: int = 100) -> GeneratedRow:
    """A row whose model says these tokens, whatever stands in it."""
    row = GeneratedRow(0, Writing(max_tokens, frozenset({256}), calls=calls))
    for token in tokens:
        row.take(token)
    return row


def test_a_call_is_answered_and_its_result_is_put_into_the_row() -> None:
    calls = calculator_calls(BYTES)
    assert calls is not None
    call = [calls.start, *b"12/60", calls.end]
    result = [calls.result_start, *b"0.2", calls.result_end]
    row = row_with([*b"It is ", *call, *b"?????", *b"0.2."], calls)
    assert row.tokens == [*b"It is ", *call, *result, *b"0.2."]
    assert row_with([*call, 256, 256], calls).tokens == [*call, *result[:2]]
    assert row_with([calls.start, *b"what?", calls.end, *b"no"], calls).tokens == [
        calls.start,
        *b"what?",
        calls.end,
        *b"no",
    ]
    assert row_with([*call, *b"no"], None).tokens == [*call, *b"no"]
    assert row_with([calls.end, *b"no"], calls).tokens == [calls.end, *b"no"]


def test_a_result_ends_with_the_row() -> None:
    calls = calculator_calls(BYTES)
    assert calls is not None
    row = row_with([calls.start, *b"1+1", calls.end, 0], calls, max_tokens=6)
    assert row.tokens == [calls.start, *b"1+1", calls.end, calls.result_start]
    assert row.ended


def test_without_tokens_for_calls_there_are_none() -> None:
    class Plain(ByteTokenizer):
        def special(self, role: str) -> None:
            return None

    assert calculator_calls(Plain()) is None
