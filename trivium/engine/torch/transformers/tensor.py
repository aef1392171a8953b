"""A model of transformers -> the same model whose modules hold a rank's part of their matrices.

transformers says by module how a family's matrices divide (`_tp_plan`): by their outputs (`colwise`) or by their inputs
(`rowwise`). That is all that is taken from it. Inside a layer every tensor is a DTensor, which knows what each rank
holds of it: torch finds what follows from divided matrices (heads, norms over all heads together, activations with
trained numbers) and sends what has to be sent. What it cannot find raises.

    embedding, lm_head      rows of the vocabulary
    colwise                 outputs; with `_gather_output` they are gathered at once, unless they are whole heads
    rowwise                 inputs
    all else                whole on every rank

Between layers every rank has the whole stream, and computes its norms as all others do: a layer takes one sum over the
ranks after attention and one after the feed-forward. Backward, each matrix that is divided by its outputs takes one.
"""

import re
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.utils._pytree import tree_map

from trivium.model.spec import ModelSpec

BY_OUTPUTS = ("colwise", "colwise_gather_output")
BY_INPUTS = ("rowwise", "rowwise_split_input")
WHOLE = ("replicated_with_grad_allreduce",)


def why_undivided(inner: Any) -> str | None:
    """Why a family's matrices cannot be split; None where they can."""
    styles = _styles(inner)
    divided = {name for name, style in styles.items() if style in (*BY_OUTPUTS, *BY_INPUTS)}
    unknown = {style for style in styles.values() if style not in (*BY_OUTPUTS, *BY_INPUTS, *WHOLE)}
    if unknown:
        return f"transformers' plan of its matrices has {', '.join(sorted(unknown))}, which is not built"
    linear = {name for name, module in inner.named_modules() if isinstance(module, nn.Linear)}
    if divided - linear:
        return f"transformers' plan divides {min(divided - linear)}, which is not a linear layer"
    return None if divided else "transformers has no plan of how its matrices divide"


def split_matrices(inner: Any, layers: nn.ModuleList, spec: ModelSpec, mesh: DeviceMesh) -> None:
    """Let a model without storage hold this rank's part of its matrices."""
    heads = (spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim)
    styles, of_vocab = _styles(inner), (inner.get_input_embeddings(), inner.get_output_embeddings())
    in_layers = {id(module) for module in layers.modules()}
    for name, module in list(inner.named_modules()):
        style = styles.get(name)
        for key, parameter in list(module.named_parameters(recurse=False)):
            by_rows = any(module is each for each in of_vocab) or style in BY_OUTPUTS
            placement = Shard(0) if by_rows else Shard(1) if style in BY_INPUTS and key == "weight" else Replicate()
            split = distribute_tensor(parameter.detach(), mesh, [placement], src_data_rank=None)
            module.register_parameter(key, nn.Parameter(split))
        gathers = style == "colwise_gather_output" and module.out_features not in heads
        if style in BY_INPUTS or gathers:
            module.register_forward_hook(lambda _, __, output: output.redistribute(placements=[Replicate()]))
        if any(True for _ in module.parameters(recurse=False)) and id(module) not in in_layers:
            _compute_on_dtensors(module, mesh)
    for layer in layers:
        _compute_on_dtensors(layer, mesh)


def to_be_divided(hidden: Tensor, mesh: DeviceMesh) -> Tensor:
    """Hidden states that all ranks have, each of which gives a summand of their gradient."""
    return DTensor.from_local(hidden, mesh, [Replicate()]).to_local(grad_placements=[Partial()])


def _styles(inner: Any) -> dict[str, str]:
    """By the name of a module or parameter inside the model, how transformers divides it; without the vocabulary's."""
    plan = dict(inner._tp_plan or {})
    of_vocab = (inner.get_input_embeddings(), inner.get_output_embeddings())
    names = [name for name, module in inner.named_modules() if not any(module is each for each in of_vocab)]
    names += [name for name, _ in inner.named_parameters()]
    found = {name: plan.get(re.sub(r"\.\d+(?=\.|$)", ".*", name)) for name in names}
    return {name: style for name, style in found.items() if style is not None}


def _compute_on_dtensors(module: nn.Module, mesh: DeviceMesh) -> None:
    """Let a module compute on tensors that know what each rank holds, and be given and give whole ones."""

    def known(value: Any) -> Any:
        plain = isinstance(value, Tensor) and not isinstance(value, DTensor)
        return DTensor.from_local(value, mesh, [Replicate()], run_check=False) if plain else value

    def whole(value: Any) -> Any:
        return value.redistribute(placements=[Replicate()]).to_local() if isinstance(value, DTensor) else value

    def before(_: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        return tree_map(known, given), tree_map(known, named)

    module.register_forward_pre_hook(before, with_kwargs=True)
    module.register_forward_hook(lambda _, __, output: tree_map(whole, output))
