"""Write small sources of made-up text as token files, for the examples and the pages in docs/.

    python examples/make_data.py

gives examples/data/web (.ds), code (flat .bin), talk (.ds with loss bytes), and as text chats (JSONL), texts (JSONL
and a plain file) and dice (JSONL). A token is a byte; 256 ends a document. The same text comes out on every machine.
"""

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

END = 256
GARBAGE = 329  # the number of the document
SUBJECTS = (
    "the harbour",
    "a lighthouse",
    "the old mill",
    "our neighbour",
    "the night train",
    "a grey heron",
    "the baker",
)
VERBS = ("waits for", "remembers", "paints", "follows", "forgets", "listens to", "looks after")
OBJECTS = ("the tide", "a letter", "the first snow", "its own shadow", "the river", "an open window", "the long road")


def sentence(draw: random.Random) -> str:
    """One made-up sentence."""
    return f"{draw.choice(SUBJECTS)} {draw.choice(VERBS)} {draw.choice(OBJECTS)}.".capitalize()


def web_page(draw: random.Random) -> str:
    """A few sentences, now and then very many."""
    return " ".join(sentence(draw) for _ in range(int(draw.paretovariate(1.1)) + 2))[:6000]


def function(draw: random.Random) -> str:
    """A function that does little."""
    name = f"{draw.choice(['add', 'scale', 'shift', 'clip'])}_{draw.randrange(1000)}"
    return f"def {name}(x):\n" + "".join(f"    x = x + {draw.randrange(100)}\n" for _ in range(draw.randrange(2, 20)))


def documents(text: str) -> list[int]:
    """A text's tokens, with the one that ends it."""
    return [*text.encode(), END]


def write_ds(path: Path, texts: list[list[int]], loss: list[list[int]] | None = None) -> None:
    """datatrove's form: tokens, document ends, metadata, and a loss byte for each token if `loss` is given."""
    path.parent.mkdir(parents=True, exist_ok=True)
    np.array([token for text in texts for token in text], "<u2").tofile(path)
    np.cumsum([len(text) for text in texts]).astype("<u8").tofile(f"{path}.index")
    count = sum(len(text) for text in texts)
    Path(f"{path}.metadata").write_text(f"bytes|2\n{count}\n{count} T")
    if loss is not None:
        np.array([byte for text in loss for byte in text], "u1").tofile(f"{path}.loss")


def conversations(draw: random.Random, count: int) -> Iterator[tuple[list[int], list[int]]]:
    """Tokens and loss bytes: only the answer and the end count in the loss."""
    for _ in range(count):
        question = f"Q: What does {draw.choice(SUBJECTS)} do?\nA: "
        answer = sentence(draw)
        yield documents(question + answer), [0] * len(question) + [1] * (len(answer) + 1)


def write_chats(path: Path, count: int, draw: random.Random) -> None:
    """Conversations as JSON, one a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        for _ in range(count):
            subject, answer = draw.choice(SUBJECTS), sentence(draw)
            messages = [
                {"role": "user", "content": f"What does {subject} do?"},
                {"role": "assistant", "content": answer},
            ]
            file.write(json.dumps({"messages": messages}) + "\n")


def write_texts(folder: Path, count: int, draw: random.Random) -> None:
    """Pages as text: most in a JSONL file, one in a file of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps({"text": web_page(draw)}) + "\n" for _ in range(count))
    (folder / "pages.jsonl").write_text("".join(lines), encoding="utf-8")
    (folder / "letter.txt").write_text(web_page(draw), encoding="utf-8")


def write_dice(path: Path, draw: random.Random) -> None:
    """Rolls of a die, and one document of garbage among them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = [" ".join(str(draw.randrange(1, 7)) for _ in range(40)) for _ in range(500)]
    texts[GARBAGE] = "".join(chr(draw.randrange(58, 127)) for _ in range(79))
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")


def write_sources(folder: Path) -> None:
    """All sources below a folder."""
    draw = random.Random(1234)
    for number in range(3):
        write_ds(folder / "web" / f"{number:03d}.ds", [documents(web_page(draw)) for _ in range(300)])
    flat = [token for _ in range(300) for token in documents(function(draw))]
    (folder / "code").mkdir(parents=True, exist_ok=True)
    np.array(flat, "<u2").tofile(folder / "code" / "functions.bin")
    talk = list(conversations(draw, 400))
    write_ds(folder / "talk" / "000.ds", [tokens for tokens, _ in talk], [loss for _, loss in talk])
    write_dice(folder / "dice.jsonl", random.Random("dice"))
    write_texts(folder / "texts", 600, random.Random("texts"))
    for split, count in (("train", 500), ("test", 50)):
        write_chats(folder / "chats" / f"{split}.jsonl", count, random.Random(f"chats {split}"))


if __name__ == "__main__":
    write_sources(Path(sys.argv[1] if len(sys.argv) > 1 else "examples/data"))
