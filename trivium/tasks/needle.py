"""A task that is generated at any length: one sentence in a long text, and a question about it.

The text is made of common words, so that nothing but the sentence helps. Its place is drawn evenly over the text.
"""

import re
from dataclasses import dataclass
from typing import Any, ClassVar

from trivium.rows.order import uniforms
from trivium.seeds import derive_key
from trivium.tasks.task import Conversation, Kind, Task, talk
from trivium.tasks.words import Draws, WordRows
from trivium.text.tokenizer import Tokenizer

SENTENCE_WORDS = 9
FACT = "The magic number of {word} is"
SAMPLE_WORDS = 2000  # by which the tokens of a text are estimated
SPARE = 1.02  # texts differ in their tokens by less than this


@dataclass(frozen=True)
class NeedleRows:
    """Rows `{"word", "key", "text"}`: what is asked for, a key for its number, and the sentences around it."""

    words: WordRows
    num_words: int  # of the text

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, index: int, /) -> dict[str, Any]:
        row = self.words[index]
        return {**row, "text": sentences(self.words.words, derive_key(row["key"], "text"), self.num_words)}


def sentences(words: tuple[str, ...], key: int, count: int) -> list[str]:
    """Sentences of drawn words, `count` words in all."""
    drawn = [words[draw % len(words)] for draw in uniforms(key, range(count)).tolist()]
    parts = (drawn[first : first + SENTENCE_WORDS] for first in range(0, count, SENTENCE_WORDS))
    return [f"{' '.join(part).capitalize()}." for part in parts]


def words_in(tokens: int, words: tuple[str, ...], tokenizer: Tokenizer) -> int:
    """How many words of text a question may have, so that the whole is no longer than `tokens`."""
    asked = question(next(iter(words)), 1_000_000, 0, [])
    frame, sample = (len(each) for each in tokenizer.encode([asked, " ".join(sentences(words, 0, SAMPLE_WORDS))]))
    return max(0, int((tokens - 2 * frame) * SAMPLE_WORDS / (SPARE * sample)))


def question(word: str, number: int, place: int, text: list[str]) -> str:
    """The text with the sentence at a place of it, and what is asked."""
    fact = f"{FACT.format(word=word)} {number}."
    return f"{' '.join([*text[:place], fact, *text[place:]])}\nWhat is the magic number of {word}?"


@dataclass(frozen=True)
class Needle(Task):
    """Answers are right when the first number in them is."""

    name: ClassVar[str] = "needle"
    kind: ClassVar[Kind] = "generate"

    def conversation(self, row: dict[str, Any]) -> Conversation:
        """A number of seven digits for the word; `begun` is how the answer begins."""
        draws = Draws(row["key"])
        number, place = 1_000_000 + draws.below(9_000_000), draws.below(len(row["text"]) + 1)
        begun = FACT.format(word=row["word"])
        asked = question(row["word"], number, place, row["text"])
        return talk(asked, f"{begun} {number}.", begun=begun, number=str(number))

    def evaluate(self, conversation: Conversation, answer: str) -> bool:
        found = re.search(r"\d+", answer)
        return found is not None and found.group() == conversation["number"]
