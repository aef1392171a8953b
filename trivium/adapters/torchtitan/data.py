"""A plan's batches -> what torchtitan's trainer calls a dataloader: passes of a step, one after another.

The state is that of our loader, as one JSON text: torchtitan's checkpoints (DCP) load into the keys that are there, and
a record of a plan has others at every step. It is the same on all ranks and on any number of them.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchtitan.components.dataloader import BaseDataLoader
from torchtitan.components.tokenizer import BaseTokenizer

from trivium.adapters.steps import Steps
from trivium.adapters.torchtitan.passes import Passes
from trivium.errors import ResumeError
from trivium.files import parse_json
from trivium.rows.batch import Batch

STATE = "trivium"


class StagedDataLoader(BaseDataLoader):
    """Passes of every step from the current one on."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        passes: Passes | None = None

        def to_dict(self) -> dict[str, Any]:
            """For torchtitan's logs: the plan is not a setting."""
            return {}

    def __init__(self, config: Config, *, dp_world_size: int, dp_rank: int, **_: Any) -> None:
        assert config.passes is not None
        self.passes = config.passes
        start, end = self.passes.start, self.passes.end
        self.steps = Steps(self.passes.plan, dp_rank, dp_world_size, start=start, end=end)

    def __iter__(self) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
        for step, batch in self.steps.batches():
            yield from passes_of(batch, self.passes.rows(step))

    def state_dict(self) -> dict[str, str]:
        """The step that comes next, and what decided the steps before it."""
        return {STATE: json.dumps(self.steps.state_dict())}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a saved step; refuses the state of another plan by its first difference."""
        saved = state_dict.get(STATE)
        if not isinstance(saved, str):
            raise ResumeError("the checkpoint has no stages: torchtitan wrote it with another dataloader.")
        self.steps.load_state_dict(parse_json(saved))


class NoTokenizer(BaseTokenizer):
    """In the place of torchtitan's, which would look for files: rows come as tokens."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        pass

    def __init__(self, config: Config, **_: Any) -> None:
        super().__init__()

    def encode(self, *_: Any, **__: Any) -> list[int]:
        raise NotImplementedError

    def decode(self, *_: Any, **__: Any) -> str:
        raise NotImplementedError

    def get_vocab_size(self) -> int:
        raise NotImplementedError


def passes_of(batch: Batch, rows: int) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
    """A batch in passes of some rows: tokens, positions and targets.

    torchtitan sees where a document begins by its position 0: joined documents count positions through the row.
    """
    for first in range(0, batch.num_rows, rows):
        part = batch.rows(first, first + rows)
        tokens, positions, targets = (
            torch.from_numpy(np.ascontiguousarray(array, np.int64))
            for array in (part.tokens, part.positions, part.targets)
        )
        yield {"input": tokens, "positions": positions}, targets
