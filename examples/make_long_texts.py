"""Write texts of two lengths for examples/long_context.toml, in which what is further up helps to predict what follows.

    python examples/make_long_texts.py

gives texts.jsonl in examples/data/long, most texts with 50 to 500 tokens and some with nearly 4,096, and words.txt, the
words in them. The wording is that of the needle task (trivium/tasks/needle.py), with many facts in a text and questions
about them. The same texts come out on every machine.
"""

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path

from trivium.tasks.needle import FACT, SENTENCE_WORDS
from trivium.tasks.words import split_words

SHORT, LONG = (50, 500), (3600, 4000)  # tokens of a text, about
LETTERS = 5  # of the longest word: few words, and a token for each of them
DIGITS = (1, 4, 7)  # of a number; the task's have 7
SENTENCE, STATED, ASKED = 10, 11, 20  # tokens of the parts of a text


def sentence(draw: random.Random, words: list[str]) -> str:
    """Words that say nothing about each other."""
    return f"{' '.join(draw.choices(words, k=SENTENCE_WORDS)).capitalize()}."


def parts(draw: random.Random, words: list[str]) -> Iterator[tuple[str, int]]:
    """Without end: sentences, new or seen before; facts; questions about one of them, answered. And their tokens."""
    sentences = [sentence(draw, words)]
    facts: dict[str, str] = {}
    new = draw.sample(words, len(words))  # a word has one number in a text
    plain = draw.uniform(0.0, 0.8)  # the part of the parts that are sentences
    while True:
        if draw.random() < plain:
            if draw.random() < 0.5:
                sentences.append(sentence(draw, words))
                yield f" {sentences[-1]}", SENTENCE
            else:
                yield f" {draw.choice(sentences)}", SENTENCE
        elif new and (not facts or draw.random() < 0.4):
            word = new.pop()
            digits = draw.choice(DIGITS)
            facts[word] = f"{FACT.format(word=word)} {draw.randrange(10 ** (digits - 1), 10**digits)}."
            yield f" {facts[word]}", STATED
        else:
            word = draw.choice(list(facts))
            yield f"\nWhat is the magic number of {word}?\n{facts[word]}", ASKED


def make_text(draw: random.Random, words: list[str], tokens: int) -> str:
    """A text of at most this many tokens, about."""
    text, left = "", tokens
    for part, count in parts(draw, words):
        left -= count
        if left < 0:
            break
        text += part
    return text.strip()


def write_texts(folder: Path, short: int = 16_000, long: int = 600) -> None:
    """The words, and a text a line as JSON; texts of both lengths are mixed."""
    folder.mkdir(parents=True, exist_ok=True)
    words = [word for word in split_words(None, "test") if len(word) <= LETTERS]
    (folder / "words.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    draw = random.Random(1234)
    with open(folder / "texts.jsonl", "w", encoding="utf-8") as file:
        for shortest, longest in draw.sample([SHORT] * short + [LONG] * long, short + long):
            text = make_text(draw, words, draw.randint(shortest, longest))
            file.write(json.dumps({"text": text}) + "\n")


if __name__ == "__main__":
    write_texts(Path(sys.argv[1] if len(sys.argv) > 1 else "examples/data/long"))
