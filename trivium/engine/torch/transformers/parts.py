"""A parameter of a model of transformers -> the part of the model that it belongs to, by our names (`model/parts.py`).

    embedding, unembedding     the input embeddings and those of trained positions; the lm_head
    layers.3.attention         what asks for attention, with its norms; all of a layer that is called before it
    layers.3.feed_forward      the rest of a layer
    norm                       whatever else stands outside of the layers, which is the last norm

Families call norms by the same names in different places: `post_attention_layernorm` is the feed-forward's in Llama and
attention's in OLMo 2. A pass without values tells the order in which a layer calls its modules. Of two norms between
attention and feed-forward each has one; a single one is the feed-forward's where another came before attention.
"""

from typing import Any

from torch import nn

from trivium.engine.torch.transformers.probe import meta_pass
from trivium.model.spec import ModelSpec

ATTENTION, FEED_FORWARD = "attention", "feed_forward"


def parts_by_parameter(inner: Any, layers: nn.ModuleList, spec: ModelSpec) -> dict[str, str]:
    """The part of every parameter of a model on the meta device, by name."""
    of_layers = _of_layers(inner, layers, spec)
    head = inner.get_output_embeddings()
    found = {}
    for name, module in inner.named_modules():
        for key, _ in module.named_parameters(recurse=False):
            outer = "unembedding" if module is head else "embedding" if isinstance(module, nn.Embedding) else "norm"
            found[f"{name}.{key}"] = of_layers.get(id(module), outer)
    return found


def _of_layers(inner: Any, layers: nn.ModuleList, spec: ModelSpec) -> dict[int, str]:
    """The part of every module inside the layers, by its id."""
    called: list[nn.Module] = []
    hooks = [
        child.register_forward_pre_hook(lambda module, _: called.append(module))
        for layer in layers
        for child in layer.children()
    ]
    try:
        attending = {id(module) for module in meta_pass(inner, spec).modules}
    finally:
        for hook in hooks:
            hook.remove()
    found = {}
    for number, layer in enumerate(layers):
        order = [child for child in dict.fromkeys(called) if any(child is each for each in layer.children())]
        sublayers = _sublayers(order, attending)
        for module in layer.modules():
            found[id(module)] = f"layers.{number}.{FEED_FORWARD}"
        for child, sublayer in zip(order, sublayers, strict=True):
            for module in child.modules():
                found[id(module)] = f"layers.{number}.{sublayer}"
    return found


def _sublayers(order: list[nn.Module], attending: set[int]) -> list[str]:
    """Of a layer's modules in the order in which they are called."""
    attends = [any(id(module) in attending for module in child.modules()) for child in order]
    last = max(number for number, each in enumerate(attends) if each)
    is_norm = ["Norm" in type(child).__name__ for child in order]
    after = next((n for n in range(last + 1, len(order)) if not is_norm[n]), len(order))
    between = after - last - 1
    has_norm_before = any(is_norm[:last])
    own = between // 2 if between != 1 else int(not has_norm_before)
    return [ATTENTION if number <= last + own else FEED_FORWARD for number in range(len(order))]
