"""Prompts -> rows that grow: one pass over all prompts, then one over a token of each row at a time.

Prompts of one length are rows; others lie end to end in one row, so that no pass is made over padding.

Their keys and values are cached:

    slot      0 1 2 3 4 5
    row 0     a b c d e f       six tokens so far
    row 1     . . . x y z       three: the slots before its first are masked

All rows end at the same slot, so that a pass writes one slot of every row, with one copy a layer; rotary positions are
in the keys already, and are the row's own. A query's group of heads asks its keys as if it were several slots of one
head: nothing is repeated. Room is taken as it is needed, half as much again each time. A sliding layer keeps all slots
and asks those of its window.

Where one process holds the model, a token passes through its weights themselves: what the modules compute, with fewer
calls, which at one token a row are the price. Matrices are cast to the precision that flows once for a generation.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import embedding, linear, scaled_dot_product_attention

from trivium.engine.torch.attention import PLAIN, Documents, Layout, Masked, WholeRows, document_starts, is_causal
from trivium.engine.torch.layers import Layer, RMSNorm, Rotation
from trivium.engine.torch.loss import LossTargets
from trivium.engine.torch.model import Decoder, DeviceBatch, uncompiled
from trivium.engine.torch.parallel import HeldModel, ShardedModel
from trivium.engine.torch.span_attention import explicit
from trivium.model.spec import AttentionSpec

FIRST_ROOM = 64  # slots beyond the prompts'


class TorchGeneration:
    """Rows of a model whose weights do not change; `table` has a rotation for every position that they may reach."""

    def __init__(self, held: HeldModel, table: Rotation, prompts: Sequence[NDArray[np.integer]], room: int) -> None:
        assert isinstance(held.model, Decoder), "the cache is the decoder's"
        self.held = held
        self.by_modules = isinstance(held, ShardedModel)
        self.model = held.model
        self.table = table
        self.cache = KVCache([len(prompt) for prompt in prompts], room)
        self._next: NextToken | None = None
        self._logits = self._prefill(prompts)
        self.cache.mask()

    def logits(self) -> NDArray[np.float32]:
        return self._logits.cpu().numpy()

    def append(self, tokens: NDArray[np.integer]) -> None:
        assert len(tokens) == len(self.cache.first), "a token for each row"
        positions = self.cache.lengths[:, None]
        layout = self.cache.next_slot()
        self._logits = self._step(np.asarray(tokens), positions, layout)

    def select(self, rows: NDArray[np.integer]) -> None:
        chosen = np.asarray(rows, np.int64)
        self.cache.select(chosen)
        self._logits = self._logits[torch.tensor(chosen, device=self._logits.device)]

    @torch.no_grad()
    def _step(self, tokens: NDArray[np.integer], positions: NDArray[np.int64], layout: Layout) -> Tensor:
        if self.by_modules:
            return self._pass(tokens[:, None], positions, layout, np.arange(len(tokens)))
        if self._next is None:
            self._next = NextToken(self.model)
        device = self.table.cos.device
        rotation = self.table.at(torch.tensor(positions, device=device))
        return self._next.logits(torch.tensor(tokens.astype(np.int64), device=device), rotation, layout)

    def _prefill(self, prompts: Sequence[NDArray[np.integer]]) -> Tensor:
        lengths = self.cache.lengths
        positions = [np.arange(length) for length in lengths.tolist()]
        layout = _Prefill(self.cache)
        if not prompts:
            return self._pass(np.zeros((0, 1), np.int64), np.zeros((0, 1), np.int64), layout, lengths)
        if (lengths == lengths[0]).all():
            tokens, at = np.stack(prompts), np.stack(positions)
        else:
            tokens, at = np.concatenate(prompts)[None], np.concatenate(positions)[None]
        return self._pass(tokens, at, layout, np.cumsum(lengths) - 1)

    @torch.no_grad()
    def _pass(
        self, tokens: NDArray[np.integer], positions: NDArray[np.int64], layout: Layout, ends: NDArray[np.int64]
    ) -> Tensor:
        """Logits after these slots, counted through all rows."""
        device = self.table.cos.device
        nothing = LossTargets(torch.empty(0, dtype=torch.int64, device=device), None)
        rotation = self.table.at(torch.tensor(positions, device=device))
        batch = DeviceBatch(torch.tensor(tokens.astype(np.int64), device=device), rotation, layout, nothing)
        with uncompiled(self.model):
            logits = self.model.next_logits(batch, torch.tensor(ends, device=device))
        self.held.end_passes()
        return logits


class KVCache:
    """Keys and values of every layer: (rows, kv_heads, slots, head_dim) each, of which `filled` slots count."""

    def __init__(self, lengths: Sequence[int], room: int) -> None:
        self.filled = max(lengths, default=1)
        self.limit = self.filled + room
        self.slots = min(self.limit, self.filled + FIRST_ROOM)
        self.first = np.array([self.filled - length for length in lengths], np.int64)  # slot of a row's first token
        self.layers: list[tuple[Tensor, Tensor]] = []
        self._mask: Tensor | None = None

    def take(self, keys: Tensor, values: Tensor) -> None:
        """One layer's keys and values of the prompts, as the prefill has them."""
        rows = len(self.first)
        shape = (rows, keys.shape[2], self.slots, keys.shape[3])
        room = keys.new_zeros(shape), keys.new_zeros(shape)
        for kept, given in zip(room, (keys, values), strict=True):
            if len(given) == rows:
                kept[:, :, : self.filled] = given.transpose(1, 2)
                continue
            pieces = torch.split(given[0], [self.filled - first for first in self.first.tolist()])
            for row, (first, piece) in enumerate(zip(self.first.tolist(), pieces, strict=True)):
                kept[row, :, first : self.filled] = piece.transpose(0, 1)
        self.layers.append(room)

    def next_slot(self) -> Layout:
        """For a pass over one more token of each row; the slot is filled from now on."""
        assert self.filled < self.limit, "more tokens than room was asked for"
        if self.filled == self.slots:
            self._make_room(min(self.limit, self.slots + self.slots // 2 + 1))
        self.filled += 1
        mask = None if self._mask is None else self._mask[..., : self.filled]
        return _NextSlot(iter(self.layers), self.filled, mask)

    def select(self, rows: NDArray[np.int64]) -> None:
        """Go on with these rows; slots that only others have used stay masked."""
        self.first = self.first[rows]
        if self.layers:
            chosen = torch.tensor(rows, device=self.layers[0][0].device)
            self.layers = [(keys[chosen], values[chosen]) for keys, values in self.layers]
        self.mask()

    def mask(self) -> None:
        """Hide what lies before each row's first token; nothing where all begin at slot 0."""
        self._mask = None
        if self.first.any():
            keys, _ = self.layers[0]
            hidden = np.arange(self.slots) < self.first[:, None]
            mask = np.where(hidden, -np.inf, 0.0)[:, None, None]
            self._mask = torch.tensor(mask, dtype=keys.dtype, device=keys.device)

    def _make_room(self, slots: int) -> None:
        self.slots = slots
        for number, layer in enumerate(self.layers):
            wider = tuple(part.new_zeros(*part.shape[:2], slots, part.shape[3]) for part in layer)
            for new, old in zip(wider, layer, strict=True):
                new[:, :, : self.filled] = old[:, :, : self.filled]
            self.layers[number] = (wider[0], wider[1])
        self.mask()

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each row so far."""
        return self.filled - self.first


@dataclass(frozen=True, slots=True)
class _Prefill:
    """Prompts see themselves; what the layers ask with is kept, one after the other."""

    cache: KVCache
    masks: dict[int | None, Masked] = field(default_factory=dict)  # by window, on devices other than CPUs

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, how: AttentionSpec = PLAIN) -> Tensor:
        """One causal call where all prompts have one length, one for each prompt where not.

        Windows and caps ask by a mask on devices other than CPUs: prompts are short, and a kernel would be compiled
        for each length.
        """
        self.cache.take(keys, values)
        lengths = tuple(self.cache.lengths.tolist())
        is_whole = len(queries) == len(lengths)
        if queries.device.type != "cpu" and not is_causal(how, max(lengths)):
            return self._masked(queries.shape[1], lengths, is_whole, how.window, queries.device).attend(
                queries, keys, values, how
            )
        inner: Layout = WholeRows() if is_whole else Documents(lengths, (False,) * len(lengths))
        return inner.attend(queries, keys, values, how)

    def _masked(
        self, slots: int, lengths: tuple[int, ...], is_whole: bool, window: int | None, device: torch.device
    ) -> Masked:
        if window not in self.masks:
            numbers = np.zeros(slots, np.int32) if is_whole else np.repeat(np.arange(len(lengths)), lengths)
            starts = document_starts(numbers.astype(np.int32)[None])
            self.masks[window] = Masked.of(torch.tensor(starts, device=device), window)
        return self.masks[window]


@dataclass(frozen=True, slots=True)
class _NextSlot:
    """One more token a row, which sees all of its row; for one pass, whose layers come one after the other."""

    layers: Iterator[tuple[Tensor, Tensor]]
    filled: int
    mask: Tensor | None

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, how: AttentionSpec = PLAIN) -> Tensor:
        """Fill the layer's last slot, then ask all slots, or those of a window."""
        kept_keys, kept_values = next(self.layers)
        kept_keys[:, :, self.filled - 1] = keys[:, 0]
        kept_values[:, :, self.filled - 1] = values[:, 0]
        rows, _, kv_heads, head_dim = keys.shape
        grouped = queries.view(rows, kv_heads, queries.shape[2] // kv_heads, head_dim)
        first = 0 if how.window is None else max(0, self.filled - how.window)
        keys, values = (kept[:, :, first : self.filled] for kept in (kept_keys, kept_values))
        mask = self.mask if self.mask is None or not first else self.mask[..., first:]
        if how.softcap is not None:
            seen = torch.ones(1, 1, dtype=torch.bool, device=keys.device) if mask is None else mask == 0
            return explicit(grouped, keys, values, seen, how).reshape(queries.shape)
        found = scaled_dot_product_attention(grouped, keys, values, attn_mask=mask, scale=how.scale)
        return found.reshape(queries.shape)


@dataclass(frozen=True, slots=True)
class _Norm:
    weight: Tensor  # float32
    eps: float

    @classmethod
    def of(cls, norm: RMSNorm) -> "_Norm":
        return cls(norm.weight.detach().float(), norm.eps)

    def __call__(self, vectors: Tensor) -> Tensor:
        normed = torch.rms_norm(vectors.float(), self.weight.shape, self.weight, self.eps)
        return normed.to(vectors.dtype)


@dataclass(frozen=True, slots=True)
class _Layer:
    """A layer's weights; matrices that are added to the stream are transposed for `addmm`."""

    how: AttentionSpec
    attention_norm: _Norm | None
    query: Tensor
    key: Tensor
    value: Tensor
    biases: tuple[Tensor | None, Tensor | None, Tensor | None]
    joint: bool
    query_norm: _Norm | None
    key_norm: _Norm | None
    output: Tensor
    attention_post_norm: _Norm | None
    feed_forward_norm: _Norm | None
    gate: Tensor | None
    up: Tensor
    activation: Callable[[Tensor], Tensor]
    down: Tensor
    feed_forward_post_norm: _Norm | None

    @classmethod
    def of(cls, layer: Layer, precision: torch.dtype) -> "_Layer":
        attention, feed_forward = layer.attention, layer.feed_forward

        def cast(weight: Tensor) -> Tensor:
            return weight.detach().to(precision)

        def bias(module: nn.Linear) -> Tensor | None:
            return None if module.bias is None else cast(module.bias)

        return cls(
            how=attention.how,
            attention_norm=_norm(layer.attention_norm),
            query=cast(attention.query.weight),
            key=cast(attention.key.weight),
            value=cast(attention.value.weight),
            biases=(bias(attention.query), bias(attention.key), bias(attention.value)),
            joint=attention.joint,
            query_norm=_norm(attention.query_norm),
            key_norm=_norm(attention.key_norm),
            output=cast(attention.output.weight).T,
            attention_post_norm=_norm(layer.attention_post_norm),
            feed_forward_norm=_norm(layer.feed_forward_norm),
            gate=None if feed_forward.gate is None else cast(feed_forward.gate.weight),
            up=cast(feed_forward.up.weight),
            activation=feed_forward.activation,
            down=cast(feed_forward.down.weight).T,
            feed_forward_post_norm=_norm(layer.feed_forward_post_norm),
        )

    def forward(self, x: Tensor, head_dim: int, rotation: Rotation, layout: Layout) -> Tensor:
        """The stream (rows, width), one layer on."""
        read = x if self.attention_norm is None else self.attention_norm(x)
        queries, keys, values = (
            linear(read, matrix, bias)
            for matrix, bias in zip((self.query, self.key, self.value), self.biases, strict=True)
        )
        if self.joint:
            queries, keys = self._normed(queries, keys)
        queries, keys, values = (
            each.view(len(x), 1, each.shape[1] // head_dim, head_dim) for each in (queries, keys, values)
        )
        if not self.joint:
            queries, keys = self._normed(queries, keys)
        gathered = layout.attend(rotation.rotated(queries), rotation.rotated(keys), values, self.how)
        x = _added(x, gathered.flatten(1), self.output, self.attention_post_norm)
        read = x if self.feed_forward_norm is None else self.feed_forward_norm(x)
        between = linear(read, self.up)
        if self.gate is None:
            between = self.activation(between)
        else:
            between = self.activation(linear(read, self.gate)).mul_(between)
        return _added(x, between, self.down, self.feed_forward_post_norm)

    def _normed(self, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        if self.query_norm is None or self.key_norm is None:
            return queries, keys
        return self.query_norm(queries), self.key_norm(keys)


def _added(x: Tensor, vectors: Tensor, matrix: Tensor, norm: _Norm | None) -> Tensor:
    """The stream and products with a transposed matrix, through a norm where there is one."""
    return torch.addmm(x, vectors, matrix) if norm is None else x + norm(vectors @ matrix)


def _norm(norm: RMSNorm | None) -> _Norm | None:
    return None if norm is None else _Norm.of(norm)


class NextToken:
    """A decoder's weights, to be used token by token."""

    def __init__(self, model: Decoder) -> None:
        layers = [layer for layer in model.layers if isinstance(layer, Layer)]
        self.spec, self.form = model.spec, model.logit_form
        self.precision = model.precision
        self.embedding = model.embedding.weight.detach()
        self.layers = [_Layer.of(layer, model.precision) for layer in layers]
        self.norm = _Norm.of(model.norm)
        self.unembedding = model.lm_head.weight.detach().to(model.precision)[: model.spec.vocab]

    def logits(self, tokens: Tensor, rotation: Rotation, layout: Layout) -> Tensor:
        """Logits (rows, vocab) in float32 of what follows these tokens (rows,)."""
        x = embedding(tokens, self.embedding)
        if self.spec.embedding_scale != 1:
            x = x * self.spec.embedding_scale
        x = x.to(self.precision)
        for number, layer in enumerate(self.layers):
            x = layer.forward(x, self.spec.head_dim, rotation.of_layer(number, number in self.spec.sliding), layout)
        return self.form.apply(linear(self.norm(x), self.unembedding).float())
