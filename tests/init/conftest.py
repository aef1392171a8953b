"""Folders of data as people have them."""

import json
from pathlib import Path

import pytest

from trivium.init.machine import ThisMachine

WORDS = [
    "the",
    "old",
    "mill",
    "by",
    "the",
    "river",
    "ground",
    "flour",
    "for",
    "every",
    "village",
    "in",
    "the",
    "valley",
]


def prose(number: int, words: int = 40) -> str:
    """A text of its own for every number."""
    return f"Page {number}. " + " ".join(WORDS[(number * 7 + place * 3) % len(WORDS)] for place in range(words)) + "."


def write_jsonl(path: Path, records: list[object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records), encoding="utf-8")


def talk(number: int) -> dict[str, object]:
    messages = [{"role": "user", "content": f"What is {number}?"}, {"role": "assistant", "content": f"It is {number}."}]
    return {"messages": messages}


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """Text, code, JSONL, conversations, and what cannot be read."""
    folder = tmp_path / "mixed"
    for number in range(30):
        for name, text in ((f"books/{number}.txt", prose(number, 200)), (f"src/{number}.py", f"x = {number}\n" * 40)):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
    (folder / "src" / "logo.png").write_bytes(b"\x89PNG\0\0" * 20)
    (folder / "src" / "__init__.py").touch()
    write_jsonl(folder / "web-00001.jsonl", [{"id": n, "content": prose(n, 100)} for n in range(40)])
    write_jsonl(folder / "web-00002.jsonl", [{"id": n, "content": prose(n, 100)} for n in range(40, 80)])
    write_jsonl(folder / "chats.jsonl", [talk(number) for number in range(50)])
    (folder / "sheet.csv").write_text("a,b\n1,2\n", encoding="utf-8")
    return folder


@pytest.fixture
def laptop() -> ThisMachine:
    return ThisMachine(4, 16 * 10**9)
