"""This machine -> how much a run of some minutes can compute, and what fits into its memory."""

import os
from dataclasses import dataclass

from trivium.cores import available_cores
from trivium.engine.devices import Device, reported_device

CORE_FLOPS = 25e9  # a second, of a core that trains a small model; measured on two cores: 45 to 70 GFLOP/s together
MOST_CORES = 16  # small models do not use more
GPU_PART = 0.3  # of a GPU's peak that a first run reaches
UNKNOWN_GPU = 50e12  # FLOP/s of a GPU whose name is not known
GPU_FILES = ("/dev/nvidia0", "/dev/kfd")  # without these, torch is not even imported


@dataclass(frozen=True, slots=True)
class ThisMachine:
    """What trains here: a GPU, or cores."""

    cores: int
    memory: int  # bytes, of the GPU where there is one
    gpu: Device | None = None

    @property
    def flops(self) -> float:
        """FLOP/s that training is expected to reach."""
        return min(self.cores, MOST_CORES) * CORE_FLOPS if self.gpu is None else GPU_PART * self.gpu.flops

    @property
    def minutes(self) -> float:
        """How long a first run may take, where nobody says it."""
        return 5.0 if self.gpu is None else 60.0

    def __str__(self) -> str:
        memory = f"{self.memory / 1e9:.0f} GB"
        return f"{self.cores} cores, {memory}, no GPU" if self.gpu is None else f"{self.gpu.name}, {memory}"


def this_machine() -> ThisMachine:
    """The machine that the command runs on."""
    cores, memory = available_cores(), os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if not any(map(os.path.exists, GPU_FILES)):
        return ThisMachine(cores, memory)
    from trivium.engine.torch.measure.device import first_gpu

    found = first_gpu()
    if found is None:
        return ThisMachine(cores, memory)
    name, memory = found
    known = reported_device(name)
    return ThisMachine(cores, memory, Device(name, memory, UNKNOWN_GPU if known is None else known.flops))
