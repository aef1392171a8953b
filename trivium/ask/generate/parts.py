"""Tokens as they come -> text that can be shown, calls and results: the parts of an assistant's message."""

from collections.abc import Iterable, Iterator, Sequence

from trivium.ask.generate.row import Calls
from trivium.text.conversation import MessagePart, MessagePartKind
from trivium.text.tokenizer import Tokenizer

UNFINISHED = "\ufffd"  # what a decoder writes for half a character


class PartReader:
    """Gives text as soon as its characters are whole, calls and results when they are closed."""

    def __init__(self, tokenizer: Tokenizer, calls: Calls | None) -> None:
        self._tokenizer = tokenizer
        self._openings: dict[int, MessagePartKind] = (
            {} if calls is None else {calls.start: "call", calls.result_start: "result"}
        )
        self._closings = frozenset() if calls is None else frozenset((calls.end, calls.result_end))
        self._kind: MessagePartKind = "text"
        self._held: list[int] = []
        self._shown = 0  # of the held tokens; what they decode to has been given

    def feed(self, token: int) -> Iterator[MessagePart]:
        """The parts that are complete with this token."""
        if token in self._openings or token in self._closings:
            yield from self.close()
            self._kind = self._openings.get(token, "text")
            return
        self._held.append(token)
        if self._kind == "text":
            # Decoded with the tokens before it: alone, some tokens lose their space.
            text = self._tokenizer.decode(self._held)
            if not text.endswith(UNFINISHED):
                yield from self._new_text(text)
                self._held = self._held[self._shown :]
                self._shown = len(self._held)

    def close(self) -> Iterator[MessagePart]:
        """The tokens that are held back, as parts, whole or not."""
        if self._kind == "text":
            yield from self._new_text(self._tokenizer.decode(self._held))
        elif self._held:
            yield MessagePart(self._kind, self._tokenizer.decode(self._held))
        self._held, self._shown, self._kind = [], 0, "text"

    def _new_text(self, text: str) -> Iterator[MessagePart]:
        new = text[len(self._tokenizer.decode(self._held[: self._shown])) :]
        if new:
            yield MessagePart("text", new)


def parts_of(tokens: Iterable[int], tokenizer: Tokenizer, calls: Calls | None) -> list[MessagePart]:
    """All parts of an answer, neighbouring text joined."""
    reader = PartReader(tokenizer, calls)
    found = [part for token in tokens for part in reader.feed(token)]
    return joined([*found, *reader.close()])


def joined(parts: Sequence[MessagePart]) -> list[MessagePart]:
    """Parts in which no text follows a text."""
    whole: list[MessagePart] = []
    for part in parts:
        if whole and part.kind == whole[-1].kind == "text":
            part = MessagePart("text", whole.pop().text + part.text)
        whole.append(part)
    return whole
