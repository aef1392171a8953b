"""A CPU in the place of the accelerator that torchtitan asks for: to try a run out, and for tests.

torch's flex attention has no backward pass on a CPU. There the same mask is made dense, so that a pass costs memory in
the square of the row length. Gloo, which connects CPUs, has no sums that are multiplied on the way.
"""

import os
import platform
import resource
import sys
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.attention.flex_attention import BlockMask, create_mask
from torch.nn.functional import scaled_dot_product_attention
from torchtitan.models.common.attention import FlexAttention
from torchtitan.tools import utils


class Cpu:
    """A CPU with the questions that torchtitan asks of a device; its memory is the machine's."""

    device_count = staticmethod(lambda: 1)
    current_device = staticmethod(lambda: 0)
    set_device = staticmethod(lambda _: None)
    synchronize = staticmethod(lambda: None)
    empty_cache = staticmethod(lambda: None)
    reset_peak_memory_stats = staticmethod(lambda: None)
    get_device_name = staticmethod(lambda _=None: platform.machine())

    @staticmethod
    def get_device_properties(_: Any = None) -> SimpleNamespace:
        """The memory of the whole machine."""
        return SimpleNamespace(total_memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))

    @staticmethod
    def memory_stats(_: Any = None) -> dict[str, int]:
        """This process's peak, in Linux's unit of 1,024 bytes."""
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return {"active_bytes.all.peak": peak, "reserved_bytes.all.peak": peak}


def use_cpu() -> None:
    """Give every module of torchtitan the CPU as its device, those that have been imported before too."""
    theirs = [module for name, module in sys.modules.items() if name.startswith("torchtitan.")]
    for module in (utils, *theirs):
        if getattr(module, "device_type", None) == "cuda":
            module.device_type = "cpu"
        if getattr(module, "device_module", None) is torch.cuda:
            module.device_module = Cpu
    FlexAttention.compiled_flex_attn = staticmethod(dense_attention)


def dense_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    score_mod: Any,
    block_mask: BlockMask,
    scale: float | None,
    enable_gqa: bool,
    **_: Any,
) -> tuple[Tensor, None]:
    """What flex attention computes of a mask, without its kernels."""
    assert score_mod is None, "no decoder of torchtitan changes scores"
    rows, slots = query.shape[0], query.shape[-2]
    mask = create_mask(block_mask.mask_mod, rows, None, slots, key.shape[-2], device=query.device)
    return scaled_dot_product_attention(query, key, value, mask, scale=scale, enable_gqa=enable_gqa), None


def sum_gradients(parts: list[nn.Module]) -> None:
    """Let sharded gradients be plain sums, which is what torchtitan wants of them: its loss is divided beforehand."""
    for module in (each for part in parts for each in part.modules() if isinstance(each, FSDPModule)):
        module.set_force_sum_reduction_for_comms(True)
