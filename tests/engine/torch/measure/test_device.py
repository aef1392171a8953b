"""A GPU's memory, from what torch counts."""

import torch

from trivium.engine.memory import DeviceMemory, device_memory

STATS = {  # as `torch.cuda.memory_stats` names them
    "active.all.current": 412,
    "active_bytes.all.allocated": 913_884_160_512,
    "active_bytes.all.current": 21_474_836_480,
    "active_bytes.all.peak": 61_203_283_968,
    "allocated_bytes.all.peak": 60_129_542_144,
    "num_alloc_retries": 3,
    "num_ooms": 0,
    "reserved_bytes.all.current": 64_424_509_440,
    "reserved_bytes.all.peak": 68_719_476_736,
}


def test_the_peaks_and_the_retries_are_taken_from_torchs_counts() -> None:
    found = DeviceMemory.of("NVIDIA H100 80GB HBM3", 84_974_239_744, STATS)
    assert (found.active, found.reserved, found.retries) == (61_203_283_968, 68_719_476_736, 3)


def test_torch_has_these_names() -> None:
    told = torch.cuda.memory_stats.__doc__ or ""
    for name in ("active_bytes.{all,large_pool,small_pool}.{current,peak", "reserved_bytes.{all", "num_alloc_retries"):
        assert name in told


def test_a_process_that_uses_no_gpu_has_none() -> None:
    assert device_memory(reset=True) is None
