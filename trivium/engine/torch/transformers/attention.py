"""What transformers asks of attention -> our layouts, which keep documents apart on one rank or on many.

transformers calls the attention that a config names with queries, keys and values (B, heads, T, head_dim), a layer's
window, scale and cap, and whatever keywords the model was called with: a micro-batch's layout is one of them, so that
a layer that is computed again, or compiled, gets the same one. No mask is registered under the name, so that
transformers makes none.

Values that are narrower or wider than queries (DeepSeek's) are padded with zeros to one width, which changes nothing
but the price; sinks are refused where the model is made.
"""

from typing import Any

from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard
from torch.nn.functional import pad
from transformers import AttentionInterface

from trivium.engine.torch.attention import Layout
from trivium.model.spec import AttentionSpec

NAME = "trivium"


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    layout: Layout | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """As transformers calls it; gathered values (B, T, heads, head_dim)."""
    if layout is None:
        raise RuntimeError("its layers do not hand on to attention what the model is called with")
    how = AttentionSpec(sliding_window, scaling or query.shape[-1] ** -0.5, softcap)
    width, widest = value.shape[-1], max(query.shape[-1], value.shape[-1])
    if isinstance(layout, Recorder):
        return layout.record(module, query, key, value, how, attention_mask, others), None
    if isinstance(query, DTensor):  # of ranks that share the model's matrices, each attends by its own heads
        queries, keys, values = map(own_heads, (query, key, value))
        found, _ = attend(module, queries, keys, values, None, scaling, sliding_window, softcap, layout)
        return DTensor.from_local(found, query.device_mesh, [Shard(2)]), None
    queries, keys, values = (
        pad(each.to(value.dtype), (0, widest - each.shape[-1])).transpose(1, 2) for each in (query, key, value)
    )
    return layout.attend(queries, keys, values, how)[..., :width], None


def own_heads(every: Any) -> Tensor:
    """The heads (B, heads, T, head_dim) of this rank, of which it may have all, or its own alone."""
    if every.placements != (Shard(1),):
        # Gathered, gradients are laid out by heads last: torch's view needs them so, and does not look.
        every = every.transpose(1, 2).contiguous().redistribute(placements=[Shard(2)]).transpose(1, 2)
    own: Tensor = every.to_local()
    return own


class Recorder:
    """Stands for a layout in a pass on the meta device, and keeps what attention was asked."""

    def __init__(self) -> None:
        self.modules: list[nn.Module] = []
        self.asked: list[AttentionSpec] = []
        self.key_flops: list[int] = []  # of one query and one key, over all heads
        self.surprises: list[str] = []  # what attention would have to do beside

    def record(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        how: AttentionSpec,
        mask: Tensor | None,
        others: dict[str, Any],
    ) -> Tensor:
        """Remember one call, and give what has its result's shape."""
        self.modules.append(module)
        self.asked.append(how)
        self.key_flops.append(2 * query.shape[1] * (query.shape[-1] + value.shape[-1]))
        if mask is not None:
            self.surprises.append("its attention uses a mask of its own")
        if others.get("s_aux") is not None:
            self.surprises.append("its attention has sinks (a trained score beside those of keys)")
        if others.get("dropout"):
            self.surprises.append(f"its attention drops {others['dropout']} of the scores")
        if getattr(module, "is_causal", True) is False or others.get("is_causal") is False:
            self.surprises.append("its attention sees later slots")
        if key.shape[2] != query.shape[2]:
            self.surprises.append("its keys are not those of the row's slots")
        return query.new_empty(query.shape[0], query.shape[2], query.shape[1], value.shape[-1])


AttentionInterface.register(NAME, attend)
