"""Writes the tree of rooms and modules into docs/design.md, each module with the first line of its docstring.

python docs/make_rooms.py
"""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "design.md"
TREE = re.compile(r"(?<=^```text\n)trivium/\n.*?(?=^```$)", re.MULTILINE | re.DOTALL)
ORDER = re.compile(r"(?<=^ROOMS = \()[^)]*", re.MULTILINE)


def first_line(path: Path) -> str:
    """What a module's docstring begins with, without the full stop; empty where it has none."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return docstring.partition("\n")[0].rstrip(".")


def rooms() -> list[str]:
    """The rooms in their order, as the test of imports has it."""
    test = (ROOT / "tests" / "test_rooms.py").read_text(encoding="utf-8")
    found = ORDER.search(test)
    assert found is not None, "tests/test_rooms.py lists the rooms"
    return re.findall(r'"(\w+)"', found[0])


def folder_lines(folder: Path, depth: int) -> list[str]:
    """A folder, its modules by name, then the folders in it."""
    lines = [line(f"{folder.name}/", first_line(folder / "__init__.py"), depth)]
    modules = [path for path in sorted(folder.glob("*.py")) if path.name != "__init__.py"]
    lines += [line(path.name, first_line(path), depth + 1) for path in modules]
    for inner in sorted(path for path in folder.iterdir() if (path / "__init__.py").is_file()):
        lines += folder_lines(inner, depth + 1)
    return lines


def line(name: str, what: str, depth: int) -> str:
    """`    order.py             Keys and numbers -> orders`."""
    return f"{'  ' * depth}{name:<{25 - 2 * depth}} {what}".rstrip()


def tree() -> str:
    """All of the package, room by room."""
    lines = ["trivium/"]
    for room in rooms():
        folder = ROOT / "trivium" / room
        module = folder.with_suffix(".py")
        lines += folder_lines(folder, 1) if folder.is_dir() else [line(module.name, first_line(module), 1)]
    return "\n".join(lines) + "\n"


def with_rooms(page: str) -> str:
    """The page with the tree as it is now."""
    return TREE.sub(lambda _: tree(), page)


if __name__ == "__main__":
    PAGE.write_text(with_rooms(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
