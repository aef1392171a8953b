"""Layers that multiply in float8, by torchao: about twice the speed of bfloat16 where a GPU has it, in compiled layers.

Before each product both matrices are cast to eight bits, with a scale for each matrix (`tensorwise`) or for each of
their rows (`rowwise`, more exact and slower). Scales are found again each time, so that there is no further state:
weights, gradients, checkpoints and exports are as without it. Embedding, lm_head and attention's own products stay as
they are, and so do matrices with a size that 16 does not divide. A CPU emulates it: right, and slower than without.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from trivium.engine.base import Float8
from trivium.engine.torch.model import LanguageModel
from trivium.engine.torch.numerics.hushed import hushed
from trivium.errors import ConfigError, Problem

MULTIPLE = 16  # of both sizes of a matrix, as the hardware's products need it
CAPABILITY = (8, 9)  # of GPUs, from which on they have float8
EMULATED = (
    "engine.float8 is emulated on this CPU: numbers are rounded as a GPU would round them, and steps take longer than "
    "without it"
)


def use_float8(model: LanguageModel, scales: Float8, device: torch.device) -> None:
    """Make the layers' matrices multiply in float8; ConfigError where device, package or model does not allow it."""
    _refuse_device(scales, device)
    convert, config = _torchao(scales)
    config = replace(config, emulate=device.type == "cpu")
    found = 0
    for layer in model.layers:
        convert(layer, config=config, module_filter_fn=lambda module, _: has_sizes(module))
        found += sum(map(has_sizes, layer.modules()))
    if not found:
        what = f'is "{scales}", but no matrix of the layers has sizes that {MULTIPLE} divides. Leave it out'
        raise _refusal(f"{what}, or choose other sizes for the model.")


def has_sizes(module: nn.Module) -> bool:
    """Whether a module is a matrix that float8 can multiply."""
    return isinstance(module, nn.Linear) and not (module.in_features % MULTIPLE or module.out_features % MULTIPLE)


def _refuse_device(scales: Float8, device: torch.device) -> None:
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < CAPABILITY:
        name = torch.cuda.get_device_name(device)
        raise _refusal(f'is "{scales}", but {name} does not multiply in float8, as H100 and later do. Leave it out.')
    if device.type not in ("cuda", "cpu"):
        raise _refusal(f'is "{scales}", but {device.type} devices do not multiply in float8. Leave it out.')


def _torchao(scales: Float8) -> tuple[Any, Any]:
    """torchao's function that converts modules, and its settings."""
    try:
        with hushed("torchao", "torch.utils._pytree"):  # what the package cannot use here, and nobody asked for
            from torchao.float8 import Float8LinearConfig, convert_to_float8_training
    except ImportError:
        what = f"is \"{scales}\", but torchao is not installed. Get the extra: pip install 'trivium[float8]'"
        raise _refusal(what) from None
    return convert_to_float8_training, Float8LinearConfig.from_recipe_name(scales)


def _refusal(what: str) -> ConfigError:
    return ConfigError([Problem("engine.float8", what)])
