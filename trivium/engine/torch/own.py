"""A module of the user's own -> a model as the engine holds it.

The module is called with tokens, positions and documents and returns hidden states; `layers` are sharded, compiled and
recomputed one by one, `lm_head` has the weight that makes logits. Everything else is the module's own. It is made
on the meta device and filled by its parameters' names, so that it may have no buffers.
"""

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from trivium.engine.base import MakeModel
from trivium.engine.torch.model import DeviceBatch, LanguageModel, recomputed
from trivium.errors import UsageError
from trivium.model.spec import ModelSpec

ARGUMENTS = ("tokens", "positions", "documents")


class OwnModel(LanguageModel):
    """Hidden states are those of the module inside, whose names the parameters have."""

    def __init__(self, spec: ModelSpec, inner: Any) -> None:
        super().__init__()
        problems = list(_problems(inner, spec))
        if problems:
            what = f"{spec.made_by}: {spec.own} made a {type(inner).__name__}, which {'; '.join(problems)}"
            raise UsageError(f"{what}. docs/trainer.md has what a model needs.")
        self.spec = spec
        self.precision = torch.float32
        self.inner: nn.Module = inner
        for layer in self.layers:
            layer.forward = recomputed(self, layer.forward)

    @property
    def layers(self) -> nn.ModuleList:  # type: ignore[override]
        layers: nn.ModuleList = self.inner.layers  # type: ignore[assignment]
        return layers

    @property
    def lm_head(self) -> nn.Module:
        head: nn.Module = self.inner.lm_head  # type: ignore[assignment]
        return head

    def hidden(self, batch: DeviceBatch) -> Tensor:
        """Hidden states (B, T, width), in the precision that flows; in training mode where gradients are recorded."""
        places = batch.places
        assert places is not None, "a model of one's own is given places"
        self.inner.train(torch.is_grad_enabled())
        with torch.autocast(batch.tokens.device.type, self.precision, enabled=self.precision != torch.float32):
            hidden = self.inner(batch.tokens, places.positions, places.documents)
        expected = (*batch.tokens.shape, self.use_lm_head(lambda weight: weight.shape[1]))
        if not isinstance(hidden, Tensor) or hidden.shape != expected:
            found = tuple(hidden.shape) if isinstance(hidden, Tensor) else type(hidden).__name__
            what = f"returned {found} where hidden states {expected} are expected: rows, slots, the lm_head's width"
            raise UsageError(f"{self.spec.made_by}: {type(self.inner).__name__} {what}.")
        return hidden.to(self.precision)

    def weights(self) -> dict[str, nn.Parameter]:
        return dict(self.inner.named_parameters())

    def init_weight(self, name: str, shape: torch.Size, generator: torch.Generator) -> Tensor | None:
        own = getattr(self.inner, "init_weight", None)
        return None if own is None else own(name, tuple(shape), generator)


def count_own(spec: ModelSpec, make: MakeModel) -> int:
    """The parameters of a module of the user's own; nothing is allocated."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in OwnModel(spec, make(spec)).weights().values())


def _problems(model: Any, spec: ModelSpec) -> Iterator[str]:
    """What a model lacks, or has and may not have."""
    if not isinstance(model, nn.Module):
        yield "is not an nn.Module"
        return
    try:
        inspect.signature(model.forward).bind(*ARGUMENTS)
    except TypeError:
        yield f"has a forward that does not take {', '.join(ARGUMENTS)}"
    layers, head = getattr(model, "layers", None), getattr(model, "lm_head", None)
    if not isinstance(layers, nn.ModuleList):
        yield "has no layers (an nn.ModuleList)"
    elif not len(layers):
        yield "has an empty list of layers: put one module or more in it"
    weight = getattr(head, "weight", None)
    if not isinstance(weight, nn.Parameter) or weight.ndim != 2 or not spec.vocab <= len(weight) <= spec.padded_vocab:
        rows = f"{spec.vocab:,} to {spec.padded_vocab:,} rows"
        yield f"has no lm_head (a module whose weight has {rows} and the width of the hidden states)"
    elif getattr(head, "bias", None) is not None:
        yield "has an lm_head with a bias, which logits do not use"
    buffers = [name for name, _ in model.named_buffers()]
    if buffers:
        yield f"has buffers ({', '.join(buffers[:3])}), which are not filled: compute them in forward"
    if sum(len(module._parameters) for module in model.modules()) > len(list(model.parameters())) + _absent(model):
        yield "has one parameter in two modules: let lm_head be the embedding itself"


def _absent(model: nn.Module) -> int:
    """Parameters that modules have registered as None, such as the bias of a Linear without one."""
    return sum(each is None for module in model.modules() for each in module._parameters.values())
