"""Accelerators by their exact names: memory, dense bfloat16 FLOP/s as the makers state them, a price.

A CPU has no peak that it keeps beside other work, so that none is here. Memory is what drivers report, rounded down to
whole GiB. Prices are round figures of 2026 for an hour of one device by the hour, in US dollars: give your own.
"""

from dataclasses import dataclass

from trivium.errors import UsageError

GIB = 2**30


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator."""

    name: str
    memory: int  # bytes
    flops: float  # a second
    price: float | None = None  # US dollars an hour
    reported: tuple[str, ...] = ()  # names that drivers have for it

    @property
    def is_tpu(self) -> bool:
        """Whether JAX alone runs on it."""
        return self.name.startswith("TPU-")


def _device(name: str, memory: int, teraflops: float, price: float | None, *reported: str) -> Device:
    return Device(name, memory * GIB, teraflops * 1e12, price, reported)


DEVICES = (
    _device("H100", 79, 989.5, 2.5, "NVIDIA H100 80GB HBM3"),
    _device("H100-PCIe", 79, 756.5, 2.2, "NVIDIA H100 PCIe"),
    _device("H100-NVL", 93, 835.5, 2.4, "NVIDIA H100 NVL"),
    _device("GH200", 94, 989.5, 2.5, "NVIDIA GH200 480GB"),
    _device("H200", 139, 989.5, 3.2, "NVIDIA H200"),
    _device("H200-NVL", 139, 835.5, 3.0, "NVIDIA H200 NVL"),
    _device("B200", 178, 2250, 4.5, "NVIDIA B200"),
    _device("B300", 267, 2250, 5.5, "NVIDIA B300 SXM6 AC", "NVIDIA B300"),
    _device("GB200", 184, 2500, 5.0, "NVIDIA GB200"),
    _device("GB300", 276, 2500, 6.0, "NVIDIA GB300"),
    _device("A100-80GB", 79, 312, 1.5, "NVIDIA A100-SXM4-80GB", "NVIDIA A100 80GB PCIe", "A100-SXM4-80GB"),
    _device("A100-40GB", 39, 312, 1.2, "NVIDIA A100-SXM4-40GB", "NVIDIA A100-PCIE-40GB", "A100-SXM4-40GB"),
    _device("L40S", 44, 362, 1.0, "NVIDIA L40S"),
    _device("L40", 44, 181, 0.9, "NVIDIA L40"),
    _device("L4", 22, 121, 0.6, "NVIDIA L4"),
    _device("A10", 22, 125, 0.7, "NVIDIA A10"),
    _device("A10G", 22, 70, 0.9, "NVIDIA A10G"),
    _device("V100-32GB", 31, 15.7, 0.6, "Tesla V100-SXM2-32GB"),  # its float32: it has no bfloat16
    _device("V100-16GB", 15, 15.7, 0.5, "Tesla V100-SXM2-16GB"),
    _device("RTX-5090", 31, 209.5, 0.6, "NVIDIA GeForce RTX 5090"),
    _device("RTX-4090", 23, 165, 0.4, "NVIDIA GeForce RTX 4090"),
    _device("RTX-3090", 23, 71, 0.25, "NVIDIA GeForce RTX 3090"),
    _device("MI355X", 287, 2500, 4.0, "AMD Instinct MI355X"),
    _device("MI325X", 255, 1307, 3.0, "AMD Instinct MI325X"),
    _device("MI300X", 191, 1307, 2.5, "AMD Instinct MI300X"),
    _device("MI250X", 63, 191.5, 1.0, "AMD Instinct MI250X"),  # a half, which drivers show as a device
    _device("TPU-v6e", 31, 918, 2.7, "TPU v6 lite"),
    _device("TPU-v5p", 95, 459, 4.2, "TPU v5", "TPU v5p"),
    _device("TPU-v5e", 15, 197, 1.2, "TPU v5 lite", "TPU v5e"),
    _device("TPU-v4", 31, 275, 3.2, "TPU v4"),
)


def device_named(name: str) -> Device:
    """The device that people call by this name, in any case; UsageError where none is, or torch does not run on it.

    Forecasts measure the torch engine's step, so that they know nothing of a TPU.
    """
    found = next((device for device in DEVICES if device.name.lower() == name.lower()), None)
    if found is not None and found.is_tpu:
        what = f"{found.name} is a TPU, and only steps of the torch engine are measured without a device, for GPUs"
        raise UsageError(f"--on: {what}. Write a GPU such as 64xH100; on the TPU itself, trivium rehearse measures.")
    if found is None:
        known = ", ".join(device.name for device in DEVICES if not device.is_tpu)
        instead = f"Write one of {known}; or describe it: --memory 80GB --flops 989T --price 2.5"
        raise UsageError(f'--on: "{name}" is not a device that is known here. {instead}.')
    return found


def reported_device(name: str) -> Device | None:
    """The device that a driver reports by this name; None where it is not known."""
    return next((device for device in DEVICES if name in device.reported), None)


def peak_of(name: str) -> float | None:
    """The FLOP/s at its best of the device that a driver reports by this name; None where it is not known."""
    device = reported_device(name)
    return None if device is None else device.flops
