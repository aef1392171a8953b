"""Python's own library -> texts to read: its code, the prose in it, kept apart; and made-up conversations.

Docstrings are taken out of the code, so that what is held out of one is not read in the other. Parses a few
megabytes a second.
"""

import ast
import json
import sysconfig
import tokenize
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from trivium.errors import UsageError
from trivium.files import draft
from trivium.seeds import derive_key
from trivium.tasks.task import Conversation, talk

SKIPPED_FOLDERS = {"test", "tests", "site-packages", "dist-packages", "idlelib", "lib2to3", "encodings", "__pycache__"}
QUESTIONS = ("What is {sum}?", "How much is {sum}?", "Add {a} and {b}.", "{sum} =")
LEAST_LETTERS = 200  # of a document
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Module:
    """A module of the standard library: its code without docstrings, and these."""

    name: str
    code: str
    prose: str


def library_files(most_bytes: int) -> list[Path]:
    """Files of the standard library with `most_bytes` in all, in an order that is the same everywhere."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    found = [path for path in folder.rglob("*.py") if not SKIPPED_FOLDERS & set(path.relative_to(folder).parts)]
    found.sort(key=lambda path: derive_key(0, "demo", path.relative_to(folder).as_posix()))
    if not found:
        raise UsageError(f"demo: {folder} has no Python files. Use a Python that has its library as files.")
    chosen, total = [], 0
    for path in found:
        if total >= most_bytes:
            break
        chosen.append(path)
        total += path.stat().st_size
    return chosen


def read_module(path: Path) -> Module:
    """A file's code and prose; both empty where this Python cannot parse it."""
    try:
        with tokenize.open(path) as file:
            text = file.read()
        tree = ast.parse(text)
    except (OSError, SyntaxError, ValueError):
        return Module(path.stem, "", "")
    lines, prose = text.splitlines(), []
    for node in ast.walk(tree):
        if not isinstance(node, DOCUMENTED) or (docstring := ast.get_docstring(node)) is None:
            continue
        prose.append((node.body[0].lineno, docstring))
        last = node.body[0].end_lineno or node.body[0].lineno
        lines[node.body[0].lineno - 1 : last] = [""] * (last - node.body[0].lineno + 1)
    code = "\n".join(line for line in lines if line.strip())
    return Module(path.stem, code + "\n", "\n\n".join(docstring for _, docstring in sorted(prose)))


def help_texts() -> Iterator[str]:
    """The topics of Python's `help("topics")`; none where this Python came without them."""
    try:
        from pydoc_data.topics import topics
    except ImportError:
        return
    yield from topics.values()


def write_texts(folder: Path, most_bytes: int, progress: Callable[[int, int], None]) -> None:
    """Write code.jsonl and prose.jsonl; `progress` is called with the files done and their total."""
    files = library_files(most_bytes)
    modules = []
    for number, path in enumerate(files, 1):
        modules.append(read_module(path))
        progress(number, len(files))
    topics = help_texts() if most_bytes >= 1_000_000 else ()
    write_lines(folder / "code.jsonl", ({"text": each.code} for each in modules if len(each.code) > LEAST_LETTERS))
    prose = (text for text in (*(each.prose for each in modules), *topics) if len(text) > LEAST_LETTERS)
    write_lines(folder / "prose.jsonl", ({"text": text} for text in prose))


def write_lines(path: Path, records: Iterable[object]) -> None:
    """JSON, a record a line; whole or absent."""
    with draft(path) as file:
        for record in records:
            file.write(json.dumps(record).encode() + b"\n")


def sums(count: int, most: int = 50) -> Iterator[Conversation]:
    """Made-up questions like `What is 12 + 7?` with their answers; the same ones every time."""
    for number in range(count):
        key = derive_key(0, "sums", number)
        a, b = key % most, key // most % most
        question = QUESTIONS[key // most**2 % len(QUESTIONS)]
        yield talk(question.format(sum=f"{a} + {b}", a=a, b=b), f"{a} + {b} = {a + b}")
