"""A device -> a decoder on it, still empty; its weights, from a seed or from a folder of either kind.

Every parameter is drawn by a generator of its own, keyed by the seed and the parameter's name: the same weights
whatever the device, the layout or the order in which they are made, and without holding two at once. A rank draws
all of a parameter and keeps its part.
"""

from pathlib import Path

import torch
from torch import Tensor, nn

from trivium.engine.base import EngineSettings, Precision
from trivium.engine.parameters import drawn_rows, init_std
from trivium.engine.torch import huggingface
from trivium.engine.torch.model import Decoder, LanguageModel
from trivium.engine.torch.own import OwnModel
from trivium.engine.torch.parallel import HeldModel, hold, local_part
from trivium.engine.torch.state import WEIGHTS, read_into, refuse_other_weights, saved_tensors, under
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
    spec, make = settings.spec, settings.make_model
    with torch.device("meta"):
        model: LanguageModel = Decoder(spec) if make is None else OwnModel(spec, make(spec))
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


def fill(model: LanguageModel, folder: Path) -> None:
    """The weights alone, from what an engine saved or from a Hugging Face folder; another model is refused."""
    if is_saved(folder):
        saved = saved_tensors(folder, model.spec)  # refuses another model's
        weights = {name: parameter.detach() for name, parameter in model.weights().items()}
        refuse_other_weights(folder, weights, saved)
        read_into(folder, under(WEIGHTS, weights))
    else:
        refuse_other_model(folder, model.spec)
        assert isinstance(model, Decoder), "a Hugging Face folder has no model of anyone's own"
        huggingface.read_weights(model, folder)


@torch.no_grad()
def init_weights(model: LanguageModel, seed: int) -> None:
    """Fill what this rank holds of every parameter, by the model's own rule where it has one."""
    for name, parameter in model.weights().items():
        local, where = local_part(parameter)
        own = model.init_weight(name, parameter.shape, generator_of(name, seed))
        local.copy_((init_weight(name, parameter.shape, model.spec, seed) if own is None else own)[where])


def init_weight(name: str, shape: torch.Size, spec: ModelSpec, seed: int) -> Tensor:
    """Biases are zeros, norms ones; matrices normal, narrower where 2 * layers of them add up in the stream."""
    if len(shape) < 2:
        return torch.zeros(shape) if name.endswith("bias") else torch.ones(shape)
    weight = torch.zeros(shape)
    weight[: drawn_rows(name, shape[0], spec)].normal_(std=init_std(name, spec), generator=generator_of(name, seed))
    return weight


def generator_of(name: str, seed: int) -> torch.Generator:
    """The generator that a parameter's first values are drawn from."""
    return torch.Generator().manual_seed(derive_key(seed, "init", name))
