"""A foreign spec and a number of ranks -> whether torch finds how its layers compute on divided matrices.

transformers' plan says how matrices divide; whether a family's code runs on such parts shows when it runs. Here it runs
once forward and backward, without values, as one of that many ranks, whose others answer at once: a few layers, in a
second.
"""

from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from trivium.engine.torch.transformers.make import layers_of, make_inner
from trivium.engine.torch.transformers.tensor import split_matrices
from trivium.errors import ConfigError, Problem
from trivium.model.foreign import with_layers
from trivium.model.spec import AttentionSpec, ModelSpec

SLOTS, FEW_LAYERS = 8, 8


def refuse_uncomputable(spec: ModelSpec, tensor: int) -> None:
    """ConfigError where a pass fails; a process that is a rank already is not asked: the plan was, before it."""
    assert spec.foreign is not None
    if dist.is_initialized():
        return
    few = with_layers(spec, min(spec.layers, FEW_LAYERS))
    inner: Any
    inner, _ = make_inner(few)
    tokens = torch.zeros(1, SLOTS, dtype=torch.long, device="meta")
    positions = torch.arange(SLOTS, device="meta")[None]
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=tensor)
    try:
        split_matrices(inner, layers_of(inner, few), few, init_device_mesh("cpu", (tensor,)))
        found = inner.base_model(input_ids=tokens, position_ids=positions, use_cache=False, layout=_Attention())
        found.last_hidden_state.sum().backward()
    except Exception as error:  # whatever torch and a family's own code do with what they do not expect
        why = f"torch does not find how ({type(error).__name__}: {str(error)[:200]})"
        what = f"is {tensor}, but the matrices of {spec.foreign.family} cannot be split: {why}"
        problem = Problem("engine.parallel.tensor", f"{what}. Set it to 1, and share the model by shard.")
        raise ConfigError([problem]) from error
    finally:
        dist.destroy_process_group()


class _Attention:
    """Stands for a layout: what it gives depends on all that it is given."""

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, how: AttentionSpec) -> Tensor:
        return queries + keys.sum() + values.sum()
