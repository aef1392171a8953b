"""One row that grows: how it is written, what a tool's result puts into it, and the tokens that end it."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from trivium.ask.generate.calculator import calculate
from trivium.ask.generate.sampling import PLAIN, Sampling
from trivium.text.chat import render
from trivium.text.roles import Role
from trivium.text.tokenizer import Tokenizer

MARKERS: tuple[Role, ...] = ("call_start", "call_end", "result_start", "result_end")
BETWEEN_TEXTS: tuple[Role, ...] = ("eos", "bos")  # the next text begins where a model writes bos


def text_ends(tokenizer: Tokenizer) -> frozenset[int]:
    """The tokens between two texts."""
    return frozenset(found for role in BETWEEN_TEXTS if (found := tokenizer.special(role)) is not None)


def turn_ends(tokenizer: Tokenizer) -> frozenset[int]:
    """The special token that ends an assistant's turn, by markers or by the chat template; and a text's ends."""
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "a"}]
    rendered = render(messages, tokenizer)
    last = int(rendered.tokens[np.flatnonzero(rendered.loss_mask)[-1]])
    is_special = tokenizer.token_bytes(tokenizer.vocab)[last] == 0
    return text_ends(tokenizer) | ({last} if is_special else set())


@dataclass(frozen=True, slots=True)
class Calls:
    """Between `start` and `end` a model asks; the answer is put into the row between two tokens of its own."""

    tokenizer: Tokenizer
    start: int
    end: int
    result_start: int
    result_end: int
    answer: Callable[[str], str | None] = calculate

    def result(self, asked: Sequence[int]) -> list[int]:
        """The tokens to put after a call; none where the tool has no answer, and the model continues by itself."""
        answer = self.answer(self.tokenizer.decode(asked))
        if answer is None:
            return []
        (tokens,) = self.tokenizer.encode([answer])
        return [self.result_start, *tokens.tolist(), self.result_end]


def calculator_calls(tokenizer: Tokenizer) -> Calls | None:
    """Calls of the calculator; None where the tokenizer has no tokens for them."""
    start, end, result_start, result_end = (tokenizer.special(role) for role in MARKERS)
    if start is None or end is None or result_start is None or result_end is None:
        return None
    return Calls(tokenizer, start, end, result_start, result_end)


@dataclass(frozen=True, slots=True)
class Writing:
    """The settings of generation: length, stop tokens, sampling, calls of tools."""

    max_tokens: int
    stop: frozenset[int] = frozenset()  # tokens that end a row, and are not part of it
    sampling: Sampling = PLAIN
    samples: int = 1  # rows from each prompt
    calls: Calls | None = None  # None: a model's calls are not answered
    vocab: int | None = None  # ids from this one on are never chosen: a model may have more than its tokenizer
    ends: Callable[[Sequence[int]], bool] | None = None  # whether what is written so far ends the row


@dataclass(slots=True)
class GeneratedRow:
    """What has been written after a prompt."""

    key: int  # of its draws
    writing: Writing
    tokens: list[int] = field(default_factory=list)
    ended: bool = False  # by a stop token, or because it is full
    stopped: bool = False  # by a stop token
    _put: deque[int] = field(default_factory=deque)  # tokens of a result that are put in next
    _asked: list[int] | None = None  # tokens of a call that is open

    def take(self, chosen: int) -> int:
        """The row's next token: the chosen one, or the next of a tool's result."""
        if self._put:
            token = self._put.popleft()
        elif chosen in self.writing.stop:
            self.ended = self.stopped = True
            return chosen
        else:
            token = chosen
            self._follow_call(token)
        self.tokens.append(token)
        is_full, ends = len(self.tokens) >= self.writing.max_tokens, self.writing.ends
        self.ended = is_full or (ends is not None and ends(self.tokens))
        return token

    def _follow_call(self, token: int) -> None:
        calls = self.writing.calls
        if calls is None:
            return
        if token == calls.start:
            self._asked = []
        elif token == calls.end and self._asked is not None:
            self._put.extend(calls.result(self._asked))
            self._asked = None
        elif self._asked is not None:
            self._asked.append(token)
