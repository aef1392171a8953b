"""A model in its engine -> what lm-evaluation-harness asks: likelihoods of texts, and texts up to a stop.

Tokens, windows and limits are those of the harness's own class for Hugging Face folders, so that a run and its export
score alike. A continuation costs one pass for its likelihood, and one or more to see whether it is the likeliest.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import handle_stop_sequences, normalize_gen_kwargs, postprocess_generated_text
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from numpy.typing import NDArray

from trivium.ask.generate.generate import generate
from trivium.ask.generate.row import Writing
from trivium.ask.generate.sampling import Sampling
from trivium.ask.open import LoadedModel
from trivium.ask.score.likelihood import BATCH_ROWS, summed_nats
from trivium.engine.ranks import Ranks
from trivium.errors import UsageError

MAX_NEW_TOKENS = 256  # the harness's own default
LOOKED_AT = 64  # last tokens of a row in which a stop is looked for

Tokens = NDArray[np.integer]
Row = tuple[Tokens, Tokens]  # a context, and what follows it


class EngineLM(TemplateLM):  # type: ignore[misc]  # lm_eval has no types
    """One model, on one process."""

    def __init__(self, model: LoadedModel) -> None:
        super().__init__()
        self.model = model
        words = model.tokenizer
        ends = [words.special(role) for role in ("eos", "bos")]
        known = [each for each in ends if each is not None]
        if not known:
            raise UsageError(f"{model.title}: its tokenizer has neither bos nor eos, with which the harness begins.")
        self._ends, self._begins = known[0], known[-1]
        self._token_bytes = words.token_bytes(words.vocab)

    @property
    def eot_token_id(self) -> int:
        return self._ends

    @property
    def prefix_token_id(self) -> int:
        return self._begins

    @property
    def max_length(self) -> int:
        """Tokens of the longest row."""
        return self.model.seq_len

    @property
    def tokenizer_name(self) -> str:
        return self.model.title

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """A text's tokens, with those before each text unless that is refused."""
        (tokens,) = self.model.tokenizer.encode([string])
        before = () if add_special_tokens is False else self.model.before
        return [*before, *tokens.tolist()]

    def _loglikelihood_tokens(self, requests: Sequence[Any], **_: Any) -> list[tuple[float, bool]]:
        rows = [self._row(context, continuation) for _, context, continuation in requests]
        nats, greedy = self._nats(rows), self._greedy(rows)
        return [(-each, likeliest) for each, likeliest in zip(nats, greedy, strict=True)]

    def _row(self, context: list[int], continuation: list[int]) -> Row:
        """As much of both, from the end, as a row has room for."""
        whole = np.array([*context, *continuation], np.int64)[-(self.max_length + 1) :]
        first = len(whole) - min(len(continuation), len(whole) - 1)
        return whole[:first], whole[first:]

    def _nats(self, rows: Sequence[Row]) -> list[float]:
        """What each continuation costs after its context."""
        found = [0.0] * len(rows)
        order = sorted(range(len(rows)), key=lambda place: len(rows[place][0]) + len(rows[place][1]))
        for start in range(0, len(order), BATCH_ROWS):
            places = order[start : start + BATCH_ROWS]
            nats = summed_nats(self.model.engine, [rows[place] for place in places], Ranks(), BATCH_ROWS)
            for place, each in zip(places, nats, strict=True):
                found[place] = each
        return found

    def _greedy(self, rows: Sequence[Row]) -> list[bool]:
        """Whether each continuation is what the model would write: rows leave at the first token that is not."""
        found = [True] * len(rows)
        for batch in self._fitting(rows):
            left, number = batch, 0
            room = max(len(rows[place][1]) for place in batch) - 1
            generation = self.model.engine.generation([rows[place][0] for place in batch], room)
            while True:
                likeliest = generation.logits().argmax(axis=1)
                right = [token == rows[place][1][number] for token, place in zip(likeliest, left, strict=True)]
                for place, is_right in zip(left, right, strict=True):
                    found[place] = is_right
                more = [at for at, place in enumerate(left) if right[at] and number + 1 < len(rows[place][1])]
                if not more:
                    break
                generation.select(np.array(more))
                left = [left[at] for at in more]
                generation.append(np.array([rows[place][1][number] for place in left]))
                number += 1
        return found

    def _fitting(self, rows: Sequence[Row]) -> Iterator[list[int]]:
        """Places of rows, some at a time, whose longest context has room for the longest continuation."""
        batch: list[int] = []
        room = 0
        for place in sorted(range(len(rows)), key=lambda place: len(rows[place][0])):
            context, continuation = rows[place]
            room = max(room, len(continuation) - 1)
            if batch and (len(batch) == BATCH_ROWS or len(context) + room > self.max_length):
                yield batch
                batch, room = [], len(continuation) - 1
            batch.append(place)
        if batch:
            yield batch

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """The likelihood of whole texts, window by window."""
        windows: list[tuple[int, Row]] = []
        for number, request in enumerate(requests):
            (text,) = request.args
            for window in get_rolling_token_windows(self.tok_encode(text), self.prefix_token_id, self.max_length, 1):
                windows.append((number, self._row(*make_disjoint_window(window))))
        found = [0.0] * len(requests)
        for (number, _), nats in zip(windows, self._nats([row for _, row in windows]), strict=True):
            found[number] -= nats
        return found

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """What the model writes after each context, up to a stop."""
        return [self._written(*request.args) for request in requests]

    def _written(self, context: str, settings: dict[str, Any]) -> str:
        how = normalize_gen_kwargs(settings, MAX_NEW_TOKENS)
        words = self.model.tokenizer
        stops = [each for each in handle_stop_sequences(how["until"], None) if each]
        room = min(how["max_gen_toks"], self.max_length - 1)
        prompt = np.array(self.tok_encode(context), np.uint32)[-(self.max_length - room) :]
        temperature = float(how.get("temperature", 1.0)) if how.get("do_sample") else 0.0
        sampling = Sampling(temperature, how.get("top_k") or None, how.get("top_p"))

        def ends(tokens: Sequence[int]) -> bool:
            written = self._decoded(tokens[-LOOKED_AT:])
            return any(stop in written for stop in stops)

        writing = Writing(room, self.model.ends | {self._ends}, sampling, vocab=words.vocab, ends=ends)
        ((row,),) = generate(self.model.engine, [prompt], writing)
        text: str = postprocess_generated_text(self._decoded(row.tokens), stops, None)
        return text

    def _decoded(self, tokens: Sequence[int]) -> str:
        """Without special tokens, which have no bytes."""
        return self.model.tokenizer.decode([token for token in tokens if self._token_bytes[token]])
