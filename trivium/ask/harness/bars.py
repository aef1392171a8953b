"""Progress bars of other people's libraries, switched off while they work: a command shows its own."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import datasets.utils as datasets_utils
import tqdm  # type: ignore[import-untyped]
from huggingface_hub import utils as hub_utils


@contextmanager
def no_bars() -> Iterator[None]:
    """Inside, neither tqdm nor the bars of datasets and the Hub are shown."""
    make = tqdm.tqdm.__init__

    def made(self: Any, *arguments: Any, **settings: Any) -> None:
        make(self, *arguments, **{**settings, "disable": True})

    shown = [each for each in (datasets_utils, hub_utils) if not each.are_progress_bars_disabled()]
    for each in shown:
        each.disable_progress_bars()
    tqdm.tqdm.__init__ = made
    try:
        yield
    finally:
        tqdm.tqdm.__init__ = make
        for each in shown:
            each.enable_progress_bars()
