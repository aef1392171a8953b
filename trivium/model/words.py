"""A model's shape -> words about its layers, where they differ from Llama's, and about what it is exported as."""

from collections.abc import Iterator

from trivium.model.families.table import family_of, no_family
from trivium.model.spec import ModelSpec, RopeSpec

LONGEST_PATTERN = 12  # layers, of which a shown pattern has


def layer_line(spec: ModelSpec) -> str | None:
    """`24 of 32 slide within 4,096 tokens (SSSL), norms after sublayers`; None for layers like Llama's."""
    return ", ".join(_parts(spec)) or None


def export_line(spec: ModelSpec, rope: RopeSpec | None) -> str:
    """What `trivium export` makes of the model with these rotary positions, or its own, or why it cannot."""
    rope = rope or spec.rope
    reason = no_family(spec, rope)
    return f"exported as {family_of(spec, rope).name}" if reason is None else f"cannot be exported: {reason}"


def _parts(spec: ModelSpec) -> Iterator[str]:
    if spec.sliding and spec.window is not None:
        count = "all" if len(spec.sliding) == spec.layers else f"{len(spec.sliding)} of {spec.layers}"
        yield f"{count} slide within {spec.window:,} tokens{_pattern(spec)}"
    if spec.norm != "before":
        yield "norms after sublayers" if spec.norm == "after" else "norms before and after sublayers"
    if spec.qk_norm:
        yield f"norms of queries and keys{', over all heads together' if spec.qk_norm_joint else ''}"
    if spec.qkv_bias:
        yield "biases of queries, keys and values"
    if spec.activation != "silu" or not spec.gated:
        yield f"{spec.activation}{'' if spec.gated else ' without a gate'}"
    if spec.rotary_dim is not None:
        yield f"{spec.rotary_dim} of {spec.head_dim} channels rotate"
    numbers = {
        "attention scale": spec.attention_scale,
        "attention cap": spec.attention_softcap,
        "logit cap": spec.logit_softcap,
        "logit scale": None if spec.logit_scale == 1 else spec.logit_scale,
        "embedding scale": None if spec.embedding_scale == 1 else spec.embedding_scale,
    }
    yield from (f"{name} {value:.4g}" for name, value in numbers.items() if value is not None)


def _pattern(spec: ModelSpec) -> str:
    """` (SSSL)`: the shortest pattern that is repeated; nothing where all slide, or where it would be long."""
    marks = "".join("S" if layer in spec.sliding else "L" for layer in range(spec.layers))
    sizes = range(1, min(LONGEST_PATTERN, spec.layers) + 1)
    found = next((marks[:size] for size in sizes if (marks[:size] * spec.layers)[: spec.layers] == marks), None)
    return f" ({found})" if found is not None and len(found) > 1 else ""
