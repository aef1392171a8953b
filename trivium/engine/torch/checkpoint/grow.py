"""Tensors with a row for every token -> the same for a larger vocabulary, laid out as the grown model's."""

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from trivium.engine.grow import grown_part
from trivium.engine.torch.parallel import local_part, whole
from trivium.errors import UsageError


@torch.no_grad()
def lay_rows(target: Tensor, rows: Tensor, vocab: int, *, averaged: bool) -> None:
    """Fill what this rank holds of a matrix from the rows of all old tokens, which it has whole."""
    local, where = local_part(target)
    known = (rows.float() if rows.dtype == torch.bfloat16 else rows).cpu().numpy()
    part = grown_part(known, where, tuple(target.shape), vocab, averaged=averaged)
    local.copy_(torch.from_numpy(part))


def grown(
    tensors: Mapping[str, Tensor], like: Mapping[str, Tensor], rows_of: Collection[str], old: int, vocab: int
) -> dict[str, Tensor]:
    """Weights or a copy of them, by name, of which `rows_of` have a row for every token: new ones are the others' mean.

    All ranks must ask.
    """
    found = dict(tensors)
    for name in rows_of:
        found[name] = torch.empty_like(like[name], dtype=tensors[name].dtype, requires_grad=False)
        lay_rows(found[name], whole(tensors[name])[:old], vocab, averaged=True)
    return found


def grown_state(
    state: Mapping[str, Tensor],
    was: Mapping[str, Tensor],
    like: Mapping[str, Tensor],
    rows_of: Collection[str],
    old: int,
    vocab: int,
) -> dict[str, Tensor]:
    """An optimizer's state, named `parameter:part`, with zeros for new tokens; numbers and the like stay."""
    found = dict(state)
    for key, tensor in state.items():
        name = key.rpartition(":")[0]
        if name not in rows_of or tensor.ndim == 0:
            continue
        if tensor.shape == was[name].shape:
            found[key] = torch.empty_like(like[name], dtype=tensor.dtype, requires_grad=False)
            lay_rows(found[key], whole(tensor)[:old], vocab, averaged=False)
        elif len(was[name]) in tensor.shape and len(was[name]) != len(like[name]):
            what = f"the optimizer keeps {key} in a shape of its own, {tuple(tensor.shape)}, which does not grow"
            raise UsageError(f"{what} with the vocabulary. Write reset_optimizer = true in that stage.")
    return found
