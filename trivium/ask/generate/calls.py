"""A tokenizer -> how a model calls a tool: the tokens around a call and around its result, and who answers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trivium.ask.generate.calculator import calculate
from trivium.text.roles import Role
from trivium.text.tokenizer import Tokenizer

MARKERS: tuple[Role, ...] = ("call_start", "call_end", "result_start", "result_end")


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
        """The tokens that are put after a call; none where there is no answer, and the model goes on by itself."""
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
