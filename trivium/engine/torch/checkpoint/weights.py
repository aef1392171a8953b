"""A device -> a decoder on it, still empty; its weights, from a seed or from a folder of either kind.

A rank draws its own part of every parameter (`engine/draw.py`), some rows at a time. A model of the user's own may have
a rule of its own, which gives whole parameters; of these a rank keeps its part.
"""

from pathlib import Path

import torch
from torch import nn

from trivium.engine.base import EngineSettings, MakeModel, Precision
from trivium.engine.draw import init_key
from trivium.engine.torch import huggingface
from trivium.engine.torch.checkpoint.grow import lay_rows
from trivium.engine.torch.checkpoint.state import WEIGHTS, read_into, refuse_other_weights, saved_tensors, under
from trivium.engine.torch.model import Decoder, LanguageModel
from trivium.engine.torch.numerics.float8 import use_float8
from trivium.engine.torch.own import OwnModel
from trivium.engine.torch.parallel import HeldModel, hold, local_part
from trivium.errors import UsageError
from trivium.model.folder import is_saved, read_spec, refuse_other_model
from trivium.model.foreign import with_vocab
from trivium.model.spec import ModelSpec, RopeSpec

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
DRAWN_AT_ONCE = 1 << 24  # elements


def engine_precision(settings: EngineSettings, device: torch.device) -> Precision:
    """The type of what flows between weights where the settings give none."""
    return settings.precision or ("bfloat16" if device.type == "cuda" else "float32")


def empty_model(
    settings: EngineSettings, device: torch.device, precision: Precision, dtype: torch.dtype = torch.float32
) -> HeldModel:
    """A decoder whose weights are memory and no more; `dtype` is that of its matrices, norms stay float32."""
    spec, make = settings.spec, settings.make_model
    with torch.device("meta"):
        model = _made(spec, make)
    model.precision = PRECISIONS[precision]
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            module.to(dtype)
    if settings.float8 is not None:
        use_float8(model, settings.float8, device)
    held = hold(model, settings, device)
    model.to_empty(device=device)
    model.fill_constants()
    if settings.compile:
        for layer in model.layers:
            layer.compile(dynamic=False)
    return held


def _made(spec: ModelSpec, make: MakeModel | None) -> LanguageModel:
    """The user's own model, one of transformers, or the decoder."""
    if make is not None:
        return OwnModel(spec, make(spec))
    if spec.foreign is None:
        return Decoder(spec)
    from trivium.engine.torch.transformers.model import TransformersModel  # which takes seconds to import

    return TransformersModel(spec)


def fill(model: LanguageModel, folder: Path) -> None:
    """The weights alone, from what an engine saved or from a Hugging Face folder; another model is refused.

    Of a smaller vocabulary the model's new rows are the mean of the others.
    """
    there = read_spec(folder, foreign=model.spec.foreign is not None)
    spec = model.spec
    if there.own is None:
        spec = with_vocab(spec, min(there.vocab, spec.vocab))
    apart = model.vocab_rows() if spec.vocab < model.spec.vocab else ()
    weights = model.tensors()
    if not is_saved(folder):
        refuse_other_model(folder, spec)
        if spec.foreign is not None:
            from trivium.engine.torch.transformers import files
            from trivium.engine.torch.transformers import model as foreign

            assert isinstance(model, foreign.TransformersModel)
            files.read_weights(model, folder, spec)
            return
        assert isinstance(model, Decoder), "a Hugging Face folder has no model of anyone's own"
        huggingface.read_weights(model, folder, spec.vocab)
        return
    saved = saved_tensors(folder, spec)  # refuses another model's
    shapes = {
        name: (spec.padded_vocab, *each.shape[1:]) if name in apart else each.shape for name, each in weights.items()
    }
    refuse_other_weights(folder, shapes, saved)
    read_into(folder, saved, under(WEIGHTS, {name: each for name, each in weights.items() if name not in apart}))
    for name in apart:
        rows = torch.empty(saved[WEIGHTS + name].shape, dtype=saved[WEIGHTS + name].dtype)
        read_into(folder, saved, {WEIGHTS + name: rows})
        lay_rows(weights[name], rows[: spec.vocab], model.spec.vocab, averaged=True)


def write_folder(model: LanguageModel, rope: RopeSpec, seq_len: int, folder: Path) -> None:
    """The weights in Hugging Face form, with these rotary positions; all ranks take part."""
    if model.spec.foreign is not None:
        from trivium.engine.torch.transformers import files
        from trivium.engine.torch.transformers import model as foreign

        assert isinstance(model, foreign.TransformersModel)
        files.write_folder(model, rope, seq_len, folder)
        return
    if not isinstance(model, Decoder):
        raise UsageError(f"{folder}: Hugging Face's form is for decoders, and {model.spec.own} made this model.")
    huggingface.write_folder(model, rope, seq_len, folder)


@torch.no_grad()
def init_weights(model: LanguageModel, seed: int) -> None:
    """Fill what this rank holds of every parameter, by the model's own rule where it has one."""
    model.fill_constants()
    for name, parameter in model.weights().items():
        local, where = local_part(parameter)
        own = model.init_weight(name, parameter.shape, torch.Generator().manual_seed(init_key(name, seed)))
        if own is not None:
            local.copy_(own[where])
            continue
        if not parameter.ndim:
            local.fill_(float(model.first_values(name, (), (), seed)))
            continue
        rows = max(1, DRAWN_AT_ONCE // max(1, local[:1].numel()))
        for first in range(0, len(local), rows):
            part = local[first : first + rows]
            begin = where[0].start + first
            here = (slice(begin, begin + len(part)), *where[1:])
            part.copy_(torch.from_numpy(model.first_values(name, tuple(parameter.shape), here, seed)))
