"""One row that grows: its tokens, what is put into it, and when it ends."""

from collections import deque
from dataclasses import dataclass, field

from trivium.ask.generate.calls import Calls
from trivium.ask.generate.sampling import PLAIN, Sampling


@dataclass(frozen=True, slots=True)
class Writing:
    """How rows are written."""

    max_tokens: int
    stop: frozenset[int] = frozenset()  # tokens that end a row, and are not part of it
    sampling: Sampling = PLAIN
    samples: int = 1  # rows from each prompt
    calls: Calls | None = None  # absent: what a model calls stays unanswered
    vocab: int | None = None  # ids from here on are never chosen: a model may have more than its tokenizer


@dataclass(slots=True)
class Row:
    """What has been written after a prompt."""

    key: int  # of its draws
    writing: Writing
    tokens: list[int] = field(default_factory=list)
    ended: bool = False  # by a stop token, or because it is full
    stopped: bool = False  # by a stop token
    _put: deque[int] = field(default_factory=deque)  # tokens of a result that are yet to come
    _asked: list[int] | None = None  # of a call that is open

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
        self.ended = len(self.tokens) >= self.writing.max_tokens
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
