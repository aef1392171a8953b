"""Rows that grow token by token, by transformers' own cache and its plainest attention, which every family has.

Prompts of different lengths are padded in front. A rank without rows passes one of its own along, so that all ranks
gather the same layers.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard
from transformers import DynamicCache

from trivium.engine.torch.model import uncompiled
from trivium.engine.torch.parallel import HeldModel
from trivium.engine.torch.transformers.attention import own_heads
from trivium.engine.torch.transformers.model import TransformersModel


class OwnHeads(DynamicCache):
    """transformers' cache, with the heads of this rank where ranks share the model's matrices."""

    def update(self, key_states: Tensor, value_states: Tensor, *others: Any, **named: Any) -> tuple[Tensor, Tensor]:
        if not isinstance(key_states, DTensor):
            plain: tuple[Tensor, Tensor] = super().update(key_states, value_states, *others, **named)
            return plain
        mesh = key_states.device_mesh
        both = super().update(own_heads(key_states), own_heads(value_states), *others, **named)
        keys, values = (DTensor.from_local(each, mesh, [Shard(1)]) for each in both)
        return keys, values


class CachedGeneration:
    """The engine's `Generation` of a model of transformers."""

    def __init__(self, held: HeldModel, prompts: Sequence[NDArray[np.integer]], device: torch.device) -> None:
        assert isinstance(held.model, TransformersModel)
        self.held, self.model, self.device = held, held.model, device
        self.rows = len(prompts)
        longest = max((len(prompt) for prompt in prompts), default=1)
        shape = (max(1, self.rows), longest)
        tokens, seen = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        seen[self.rows :, -1] = 1
        for row, prompt in enumerate(prompts):
            tokens[row, longest - len(prompt) :], seen[row, longest - len(prompt) :] = prompt, 1
        self.seen = torch.from_numpy(seen).to(device)
        self.cache = OwnHeads(config=self.model.inner.config)
        self._logits = self._next(torch.from_numpy(tokens).to(device))

    def logits(self) -> NDArray[np.float32]:
        """For each row's next token: (rows, vocab)."""
        found: NDArray[np.float32] = self._logits[: self.rows].cpu().numpy().copy()
        return found

    def append(self, tokens: NDArray[np.integer]) -> None:
        """One more token for each row, in one pass."""
        given = np.zeros((len(self.seen), 1), np.int64)
        given[: self.rows, 0] = tokens
        self.seen = torch.cat((self.seen, self.seen.new_ones(len(self.seen), 1)), 1)
        self._logits = self._next(torch.from_numpy(given).to(self.device))

    def select(self, rows: NDArray[np.integer]) -> None:
        """Continue with these rows in this order; one stays as filler where none is left."""
        chosen = np.asarray(rows, np.int64)
        self.rows = len(chosen)
        kept = torch.from_numpy(chosen if len(chosen) else np.zeros(1, np.int64)).to(self.device)
        self.cache.batch_select_indices(kept)
        self.seen, self._logits = self.seen[kept], self._logits[kept]

    @torch.no_grad()
    def _next(self, tokens: Tensor) -> Tensor:
        with uncompiled(self.model):
            logits = self.model.cached_logits(tokens, self.seen, self.cache)
        self.held.end_passes()
        return logits
