"""Prompts -> rows that grow: one pass over all prompts, then one over a token of each row at a time.

Prompts of one length are rows; others lie end to end in one row, so that no pass is made over padding.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trivium.engine.torch.attention import Layout
from trivium.engine.torch.batch import DeviceBatch
from trivium.engine.torch.cache import Cache
from trivium.engine.torch.loss import LossTargets
from trivium.engine.torch.next_token import NextToken
from trivium.engine.torch.parallel import HeldModel, ShardedModel
from trivium.engine.torch.rotary import Rotation


class TorchGeneration:
    """Rows of a model whose weights do not change; `table` has a rotation for every position that they may reach."""

    def __init__(self, held: HeldModel, table: Rotation, prompts: Sequence[NDArray[np.integer]], room: int) -> None:
        self.held = held
        self.model = held.model
        self.table = table
        self.cache = Cache([len(prompt) for prompt in prompts], room)
        self._next: NextToken | None = None
        self._logits = self._prefill(prompts)
        self.cache.mask()

    def logits(self) -> NDArray[np.float32]:
        """For each row's next token: (rows, vocab)."""
        return self._logits.cpu().numpy()

    def append(self, tokens: NDArray[np.integer]) -> None:
        """One more token for each row."""
        assert len(tokens) == len(self.cache.first), "a token for each row"
        positions = self.cache.lengths[:, None]
        layout = self.cache.next_slot()
        self._logits = self._step(np.asarray(tokens), positions, layout)

    def select(self, rows: NDArray[np.integer]) -> None:
        """Continue with these rows in this order."""
        chosen = np.asarray(rows, np.int64)
        self.cache.select(chosen)
        self._logits = self._logits[torch.tensor(chosen, device=self._logits.device)]

    @torch.no_grad()
    def _step(self, tokens: NDArray[np.integer], positions: NDArray[np.int64], layout: Layout) -> Tensor:
        if isinstance(self.held, ShardedModel):
            return self._pass(tokens[:, None], positions, layout, np.arange(len(tokens)))
        if self._next is None:
            self._next = NextToken(self.model)
        device = self.table.cos.device
        rotation = self.table.at(torch.tensor(positions, device=device))
        return self._next.logits(torch.tensor(tokens.astype(np.int64), device=device), rotation, layout)

    def _prefill(self, prompts: Sequence[NDArray[np.integer]]) -> Tensor:
        lengths = self.cache.lengths
        positions = [np.arange(length) for length in lengths.tolist()]
        if not prompts:
            return self._pass(np.zeros((0, 1), np.int64), np.zeros((0, 1), np.int64), self.cache.prefill(), lengths)
        if (lengths == lengths[0]).all():
            tokens, at = np.stack(prompts), np.stack(positions)
        else:
            tokens, at = np.concatenate(prompts)[None], np.concatenate(positions)[None]
        return self._pass(tokens, at, self.cache.prefill(), np.cumsum(lengths) - 1)

    @torch.no_grad()
    def _pass(
        self, tokens: NDArray[np.integer], positions: NDArray[np.int64], layout: Layout, ends: NDArray[np.int64]
    ) -> Tensor:
        """Logits after these slots, counted through all rows."""
        device = self.table.cos.device
        nothing = LossTargets(torch.empty(0, dtype=torch.int64, device=device), None)
        rotation = self.table.at(torch.tensor(positions, device=device))
        batch = DeviceBatch(torch.tensor(tokens.astype(np.int64), device=device), rotation, layout, nothing)
        with _as_written():
            logits = self.model.next_logits(batch, torch.tensor(ends, device=device))
        self.held.end_passes()
        return logits


@contextmanager
def _as_written() -> Iterator[None]:
    """Layers that were compiled for rows of one shape are not compiled again for each that grows."""
    with torch.compiler.set_stance("force_eager"):
        yield
