"""torchtitan's own code as the judge: the defaults of its config, its schedule, and its dense models on no device."""

import dataclasses
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch


@contextmanager
def _importable() -> Iterator[None]:
    """Its modules can be imported without Triton, a gigabyte that only GPUs need."""
    kernels = ModuleType("torchtitan.models.moe.kernels")  # they sort tokens by expert; no dense model runs them
    vars(kernels)["generate_permute_indices"] = None
    sys.modules.setdefault(kernels.__name__, kernels)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def their_defaults() -> dict[str, Any]:
    """Every key of their config with its default, except those whose default is None, which TOML cannot write."""
    with _importable():
        from torchtitan.config import JobConfig
    return _written(dataclasses.asdict(JobConfig()))


def _written(table: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _written(value) if isinstance(value, dict) else value for key, value in table.items() if value is not None
    }


def their_multipliers(lr_scheduler: dict[str, Any], run_steps: int, steps: int) -> list[float]:
    """What they multiply the learning rate by in the first steps of a run, from their table `[lr_scheduler]`."""
    with _importable():
        from torchtitan.components.lr_scheduler import build_lr_schedulers
        from torchtitan.config import LRScheduler
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    (scheduler,) = build_lr_schedulers([optimizer], LRScheduler(**lr_scheduler), run_steps)
    return [scheduler.lr_lambdas[0](step) for step in range(steps)]


def their_dense_flavors(*names: str) -> list[tuple[str, str]]:
    """The names and flavors of their models without experts."""
    return [
        (name, flavor)
        for name in names
        for flavor, args in _train_spec(name).model_args.items()
        if not getattr(args, "moe_enabled", False)
    ]


def their_model(name: str, flavor: str) -> dict[str, Any]:
    """The shape of a dense model that they build, by our names."""
    spec = _train_spec(name)
    args = spec.model_args[flavor]
    with torch.device("meta"):
        model = spec.model_cls(args)
    layer = model.layers["0"]
    attention = layer.attention
    head_dim = attention.wq.out_features // args.n_heads
    return {
        "layers": len(model.layers),
        "width": model.tok_embeddings.embedding_dim,
        "heads": args.n_heads,
        "kv_heads": attention.wk.out_features // head_dim,
        "head_dim": head_dim,
        "ffn": layer.feed_forward.w1.out_features,
        "vocab": model.tok_embeddings.num_embeddings,
        "qk_norm": getattr(attention, "q_norm", None) is not None,
        "tied_embeddings": model.output.weight is model.tok_embeddings.weight,
        "norm_eps": model.norm.eps,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }


def their_frequencies(name: str, flavor: str) -> list[float]:
    """Radians a position for every pair of a head's channels: the angles at position 1."""
    args = _train_spec(name).model_args[flavor]
    if name == "qwen3":
        from torchtitan.models.qwen3.model.model import precompute_rope_cache

        cosines, sines = precompute_rope_cache(args.head_dim, 2, args.rope_theta)[1].chunk(2)
        return list(torch.atan2(sines, cosines)[: args.head_dim // 2].tolist())
    from torchtitan.models.llama3.model.model import precompute_freqs_cis

    turned = precompute_freqs_cis(args.dim // args.n_heads, 2, args.rope_theta, args.rope_scaling_args)[1]
    return list(turned.angle().tolist())


def keeps_documents_apart(name: str, flavor: str) -> bool:
    return bool(_train_spec(name).model_args[flavor].attn_mask_type == "block_causal")


def _train_spec(name: str) -> Any:
    with _importable():
        from torchtitan.protocols.train_spec import get_train_spec

        return get_train_spec(name)
