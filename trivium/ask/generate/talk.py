"""A conversation with a model, turn by turn; keys and values of the turns before are kept.

Where the next question's prompt does not begin with the tokens that were written (a text may be written in more than
one way), or much of it is new, the whole of it is read again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from trivium.ask.generate.generate import next_tokens
from trivium.ask.generate.parts import PartReader, joined
from trivium.ask.generate.row import GeneratedRow, Writing
from trivium.ask.generate.sampling import row_key
from trivium.engine.base import Engine, Generation
from trivium.errors import UsageError
from trivium.text.chat import render_prompt
from trivium.text.conversation import MessagePart
from trivium.text.tokenizer import Tokenizer

READ_AGAIN = 8  # at most one token in 8 may be new to append them one by one; else the whole prompt is read again


class Talk:
    """Questions -> answers; each is written with the whole conversation before it."""

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        writing: Writing,
        seq_len: int,
        system: str | None = None,
        before: Sequence[dict[str, Any]] = (),
    ) -> None:
        self.messages: list[dict[str, Any]] = [] if system is None else [{"role": "system", "content": system}]
        self.messages += before  # turns of this conversation that were taken elsewhere
        self.prefills = 0
        self._engine = engine
        self._tokenizer = tokenizer
        self._writing = writing
        self._seq_len = seq_len
        self._generation: Generation | None = None
        self._read: list[int] = []  # the tokens that the generation has
        self._turn = sum(message["role"] == "user" for message in before)

    def ask(self, question: str) -> Iterator[MessagePart]:
        """The answer, as it is written; afterwards both are part of the conversation, unless it was empty."""
        messages = [*self.messages, {"role": "user", "content": question}]
        prompt = [int(token) for token in render_prompt(messages, self._tokenizer)]
        room = self._seq_len - len(prompt)
        if room < 1:
            what = f"the conversation has {len(prompt):,} tokens, and the model reads {self._seq_len:,}"
            raise UsageError(f"{what}. Start a new one: /new.")
        writing = replace(self._writing, max_tokens=min(self._writing.max_tokens, room))
        row = GeneratedRow(row_key(writing.sampling.seed, self._turn, 0), writing)
        generation = self._prefilled(prompt)
        reader = PartReader(self._tokenizer, writing.calls)
        parts: list[MessagePart] = []
        for token in self._tokens(generation, row):
            for part in reader.feed(token):
                parts.append(part)
                yield part
        for part in reader.close():
            parts.append(part)
            yield part
        self._turn += 1
        if parts:
            content = [{"type": part.kind, "text": part.text} for part in joined(parts)]
            only_text = len(content) == 1 and content[0]["type"] == "text"
            answer = {"role": "assistant", "content": content[0]["text"] if only_text else content}
            self.messages = [*messages, answer]

    def _tokens(self, generation: Generation, row: GeneratedRow) -> Iterator[int]:
        while not row.ended:
            (token,) = next_tokens(generation, [row]).tolist()
            if not row.stopped:
                yield token
            if not row.ended:
                self._append(generation, token)

    def _append(self, generation: Generation, token: int) -> None:
        generation.append(np.array([token]))
        self._read.append(token)

    def _prefilled(self, prompt: list[int]) -> Generation:
        """A generation that has read the prompt: the one before, if it has most of the prompt."""
        known = len(self._read)
        new = prompt[known:]
        if self._generation is None or prompt[:known] != self._read or not 0 < len(new) <= len(prompt) // READ_AGAIN:
            self._generation = self._engine.generation([np.array(prompt)], self._seq_len - len(prompt))
            self._read = list(prompt)
            self.prefills += 1
        else:
            for token in new:
                self._append(self._generation, token)
        return self._generation
