"""Eight ranks that start cold: which files each of them opens, and how many are hashed.

Executed by itself: `python -m tests.train.startup FOLDER`, in a folder with a run.toml. Prints JSON.
"""

import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from tests.support.forked import launch
from trivium.tokenfiles import manifest
from trivium.tokenfiles.open import TokenFile
from trivium.train.trainer import Trainer

RANKS = 8


def watch(folder: Path) -> tuple["Counter[str]", list[str]]:
    """How often this process opens each file of a folder from now on, and the files that it hashes."""
    opens: Counter[str] = Counter()
    hashed: list[str] = []
    measure_file = manifest.measure_file

    def seen(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str | bytes | os.PathLike):
            path = Path(os.fsdecode(arguments[0])).absolute()
            if path.is_relative_to(folder) and not path.is_dir():
                opens[path.name] += 1

    def measured(file: TokenFile, progress: manifest.Progress | None = None) -> manifest.TokenFileFacts:
        hashed.append(file.name)
        return measure_file(file, progress)

    sys.addaudithook(seen)
    manifest.measure_file = measured
    return opens, hashed


def start(folder: Path) -> None:
    """On one rank: plan, take a step, and write down what was opened by then."""
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    os.environ["TRIVIUM_CACHE"] = str(folder / f"cache-{rank}")  # as on eight machines, each with a disk of its own
    opens, hashed = watch(folder / "web")
    trainer = Trainer("run.toml", show=False)
    planned = dict(opens)
    trainer.run()
    blocks = trainer.plan.sources["web"].blocks
    found = {"planned": planned, "opens": opens, "hashed": hashed, "read": blocks.num_opened, "ranks": RANKS}
    found["rows"] = trainer.loader.batch(0).tokens.tolist()
    (folder / f"found-{rank}.json").write_text(json.dumps(found))


def main() -> None:
    folder = Path(sys.argv[1])
    codes = launch(RANKS, lambda: start(folder))
    assert codes == [0] * RANKS, codes
    print(json.dumps([json.loads((folder / f"found-{rank}.json").read_text()) for rank in range(RANKS)]))  # noqa: T201


if __name__ == "__main__":
    main()
