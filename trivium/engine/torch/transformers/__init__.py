"""Causal language models of the package transformers as the engine's model: any family, from a config or a folder."""

from trivium.engine.torch.numerics.hushed import hushed

with hushed("torchao", "torch.utils._pytree"):  # which transformers imports where it is there
    import transformers.modeling_utils  # noqa: F401
