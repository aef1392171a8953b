"""A spec with a foreign model -> that model on the meta device, looked at once for each shape."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedModel, logging

from trivium.engine.torch.transformers import attention, experts
from trivium.engine.torch.transformers.parts import parts_by_parameter
from trivium.engine.torch.transformers.probe import probe, refusal
from trivium.engine.torch.transformers.tensor import why_undivided
from trivium.model.parts import all_parts
from trivium.model.spec import ForeignSpec, ModelSpec


def make_inner(spec: ModelSpec) -> tuple[PreTrainedModel, dict[str, Tensor]]:
    """transformers' own model without storage, with our attention and experts; and tensors of numbers in its code.

    In evaluation mode: dropout and noise are refused, so that it is training's too.
    """
    assert spec.foreign is not None
    try:
        with hushed(), torch.device("meta"), _NumbersKept():
            config = CONFIG_MAPPING[spec.foreign.family](**spec.foreign.table)
            inner: Any = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
                config, attn_implementation=attention.NAME, experts_implementation=experts.NAME, dtype=torch.float32
            )
    except Exception as error:  # a family that transformers' own interface does not reach
        why = f"transformers cannot make it with another attention ({type(error).__name__}: {str(error)[:200]})"
        raise refusal(spec, why) from error
    every = [*inner.named_parameters(), *inner.named_buffers()]
    numbers = {name: tensor.detach().clone() for name, tensor in every if not tensor.is_meta}
    return inner.to("meta").eval(), numbers


class _NumbersKept(TorchFunctionMode):
    """Inside, tensors that code makes of numbers have their values."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.tensor and kwargs.get("device") is None:
            kwargs["device"] = "cpu"
        return func(*args, **kwargs)


def layers_of(inner: PreTrainedModel, spec: ModelSpec) -> nn.ModuleList:
    """The list of layers, which are sharded, compiled and computed again one by one."""
    for module in inner.base_model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == spec.layers:
            return module
    raise refusal(spec, f"it has no list of {spec.layers} layers")


def counted(spec: ModelSpec) -> ModelSpec:
    """The spec with what can only be counted on the model; ConfigError where it cannot be trained here."""
    assert spec.foreign is not None
    uncounted = ForeignSpec(spec.foreign.family, spec.foreign.config)
    return replace(spec, foreign=_looked_at(replace(spec, foreign=uncounted)))


@cache
def _looked_at(spec: ModelSpec) -> ForeignSpec:
    assert spec.foreign is not None
    inner, _ = make_inner(spec)
    layers = layers_of(inner, spec)
    probed = probe(inner, layers, spec)
    empty = all_parts(spec) - set(parts_by_parameter(inner, layers, spec).values())
    return replace(
        spec.foreign,
        parameters=sum(each.numel() for each in inner.parameters()),
        token_weights=probed.token_weights,
        attention=probed.attention,
        undivided=why_undivided(inner) or "",
        empty_parts=tuple(sorted(empty)),
    )


@cache
def parts_of_model(spec: ModelSpec) -> dict[str, str]:
    """The part that every parameter belongs to, by name."""
    inner, _ = make_inner(spec)
    return parts_by_parameter(inner, layers_of(inner, spec), spec)


@contextmanager
def hushed() -> Iterator[None]:
    """Inside, transformers says nothing below an error: token ids of a default config, and the like."""
    before = logging.get_verbosity()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        logging.set_verbosity(before)
