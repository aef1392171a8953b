"""A device's name -> torch's device; and the memory of the GPU that is here."""

import torch

from trivium.engine.memory import DeviceMemory
from trivium.errors import ConfigError, Problem


def gpu_memory(*, reset: bool) -> DeviceMemory | None:
    """Since the last reset; None where this process uses no GPU."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return None
    if reset:
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.reset_accumulated_memory_stats()  # the retries
    found = torch.cuda.get_device_properties(torch.cuda.current_device())
    return DeviceMemory.of(found.name, found.total_memory, torch.cuda.memory_stats())


def first_gpu() -> tuple[str, int] | None:
    """The name and the bytes of the first GPU of this machine; None where torch finds none."""
    if not torch.cuda.is_available():
        return None
    found = torch.cuda.get_device_properties(0)
    return found.name, found.total_memory


def find_device() -> str:
    """The best device of this machine."""
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def open_device(name: str | None) -> torch.device:
    """The device of this name, or the best one; ConfigError where torch does not find it."""
    name = name or find_device()
    kind, _, number = name.partition(":")
    found = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    if found.get(kind, 0) <= int(number or 0):
        what = f'is "{name}", which torch does not find here. Write "{find_device()}", or leave it out.'
        raise ConfigError([Problem("engine.device", what)])
    return torch.device(name)
