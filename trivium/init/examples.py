"""The examples that ship with the package -> a list, or a folder of one's own."""

import shutil
from collections.abc import Iterator
from importlib.resources import as_file, files
from importlib.resources.abc import Traversable
from pathlib import Path

from trivium.errors import UsageError

IGNORED = shutil.ignore_patterns("data", "__pycache__", "*.egg-info", "build")


def example_files() -> Traversable:
    """The folder of examples: inside an installed package, beside it in a checkout."""
    installed = files("trivium") / "examples"
    return installed if installed.is_dir() else Path(__file__).parents[2] / "examples"


def list_examples() -> Iterator[str]:
    """Every config, and what it is for: its first line."""
    with as_file(example_files()) as folder:
        for path in sorted(folder.rglob("*.toml")):
            name = path.relative_to(folder).as_posix()
            if "published" in path.parts or path.name == "pyproject.toml":
                continue
            first = path.read_text(encoding="utf-8").partition("\n")[0]
            what = first.removeprefix("#").removeprefix(f" examples/{name}:").strip() if first.startswith("#") else ""
            yield f"{name:<30} {what.partition('. ')[0].rstrip('.')}".rstrip()


def copy_examples(folder: Path) -> str:
    """Copy them; UsageError where the folder exists."""
    if folder.exists():
        raise UsageError(f"{folder}: exists already. Name another folder.")
    with as_file(example_files()) as source:
        shutil.copytree(source, folder, ignore=IGNORED)
    return f"{folder}: configs, and make_data.py, which writes what they read. See trivium plan {folder}/stages.toml."
