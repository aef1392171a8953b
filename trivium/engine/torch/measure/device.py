"""The memory of the GPU that is here."""

import torch

from trivium.engine.memory import DeviceMemory


def gpu_memory(*, reset: bool) -> DeviceMemory | None:
    """Since the last reset; None where this process uses no GPU."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return None
    if reset:
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.reset_accumulated_memory_stats()  # the retries
    found = torch.cuda.get_device_properties(torch.cuda.current_device())
    return DeviceMemory.of(found.name, found.total_memory, torch.cuda.memory_stats())
