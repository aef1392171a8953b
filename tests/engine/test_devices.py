"""Devices are known by their exact names, or not at all."""

import pytest

from trivium.engine.devices import DEVICES, device_named, peak_of
from trivium.errors import UsageError


@pytest.mark.parametrize(
    ("reported", "teraflops"),
    [
        ("NVIDIA H100 80GB HBM3", 989.5),
        ("NVIDIA H100 PCIe", 756.5),
        ("NVIDIA H100 NVL", 835.5),
        ("NVIDIA A100-SXM4-40GB", 312),
        ("NVIDIA A100 80GB PCIe", 312),
        ("NVIDIA A10G", 70),
        ("Tesla V100-SXM2-32GB", 15.7),  # multiplies in bfloat16 as fast as in float32
        ("NVIDIA L40S", 362),
        ("NVIDIA L40", 181),
        ("NVIDIA B200", 2250),
        ("AMD Instinct MI300X", 1307),
        ("TPU v5 lite", 197),
        ("TPU v5", 459),
    ],
)
def test_a_reported_name_has_its_own_peak(reported: str, teraflops: float) -> None:
    assert peak_of(reported) == teraflops * 1e12


@pytest.mark.parametrize("reported", ["NVIDIA H100 80GB HBM4", "NVIDIA A1000", "cpu", "NVIDIA L40G", ""])
def test_a_name_that_only_looks_like_one_has_no_peak(reported: str) -> None:
    assert peak_of(reported) is None


def test_every_device_has_a_name_of_its_own() -> None:
    names = [device.name.lower() for device in DEVICES] + [name for device in DEVICES for name in device.reported]
    assert len(names) == len(set(names))


def test_a_device_that_is_not_known_is_refused_with_those_that_are() -> None:
    with pytest.raises(UsageError, match=r'^--on: "H99" is not a device that is known here. Write one of H100, H'):
        device_named("H99")
    assert device_named("h100-pcie").flops == 756.5e12


def test_a_tpu_is_known_by_its_driver_and_refused_for_a_forecast() -> None:
    assert peak_of("TPU v5p") == 459e12
    with pytest.raises(UsageError) as error:
        device_named("tpu-V5P")
    what = "TPU-v5p is a TPU, and only steps of the torch engine are measured without a device, for GPUs"
    assert str(error.value) == (
        f"--on: {what}. Write a GPU such as 64xH100; on the TPU itself, trivium rehearse measures."
    )
    with pytest.raises(UsageError) as unknown:
        device_named("H99")
    assert "TPU" not in str(unknown.value)
