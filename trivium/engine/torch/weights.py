"""A device -> a decoder on it, still empty; its weights, from a seed or from a folder of either kind.

Every parameter is drawn by a generator of its own, keyed by the seed and the parameter's name: the same weights
whatever the device, the layout or the order in which they are made, and without holding two at once. A rank draws
all of a parameter and keeps its part.
"""

from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from trivium.engine.base import EngineSettings, Precision
from trivium.engine.parameters import init_std
from trivium.engine.torch import huggingface
from trivium.engine.torch.model import Decoder, DecoderModel
from trivium.engine.torch.parallel import HeldModel, hold, local_part
from trivium.engine.torch.state import WEIGHTS, read_into, saved_tensors, under
from trivium.errors import UsageError
from trivium.model.folder import is_saved, refuse_other_model
from trivium.model.spec import ModelSpec
from trivium.seeds import derive_key

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def engine_precision(settings: EngineSettings, device: torch.device) -> Precision:
    """The type of what flows between weights where the settings give none."""
    return settings.precision or ("bfloat16" if device.type == "cuda" else "float32")


def empty_model(
    settings: EngineSettings, device: torch.device, precision: Precision, dtype: torch.dtype = torch.float32
) -> HeldModel:
    """A decoder whose weights are memory and no more; `dtype` is that of its matrices, norms stay float32."""
    with torch.device("meta"):
        model = checked_model((settings.make_model or Decoder)(settings.spec))
    model.precision = PRECISIONS[precision]
    model.activation_checkpointing = settings.activation_checkpointing
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            module.to(dtype)
    held = hold(model, settings.mesh, device)
    model.to_empty(device=device)
    if settings.compile:
        for layer in model.layers:
            layer.compile(dynamic=False)
    return held


def checked_model(model: Any) -> Decoder:
    """A model that `make_model` made, refused where it lacks something that the engine uses."""
    if isinstance(model, nn.Module) and isinstance(model, DecoderModel):
        return cast(Decoder, model)
    wanted = (*DecoderModel.__annotations__, "lm_head", "forward", "hidden", "next_logits")
    lacks = [name for name in wanted if not hasattr(model, name)]
    what = f"lacks {', '.join(lacks)}" if lacks else "is not an nn.Module"
    raise UsageError(f"make_model: made a {type(model).__name__}, which {what}. Subclass the torch engine's Decoder.")


def fill(model: Decoder, folder: Path) -> None:
    """The weights alone, from what an engine saved or from a Hugging Face folder; another model is refused."""
    if is_saved(folder):
        saved_tensors(folder, model.spec)  # refuses another model's
        weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
        read_into(folder, under(WEIGHTS, weights))
    else:
        refuse_other_model(folder, model.spec)
        huggingface.read_weights(model, folder)


@torch.no_grad()
def init_weights(model: Decoder, seed: int) -> None:
    """Fill what this rank holds of every parameter."""
    for name, parameter in model.named_parameters():
        local, where = local_part(parameter)
        local.copy_(init_weight(name, parameter.shape, model.spec, seed)[where])


def init_weight(name: str, shape: torch.Size, spec: ModelSpec, seed: int) -> Tensor:
    """Norms are ones; matrices normal, narrower where 2 * layers of them add up in the residual stream."""
    if len(shape) == 1:
        return torch.ones(shape)
    rows = min(shape[0], spec.vocab) if "embedding" in name else shape[0]
    weight = torch.zeros(shape)
    generator = torch.Generator().manual_seed(derive_key(seed, "init", name))
    weight[:rows].normal_(std=init_std(name, spec), generator=generator)
    return weight
