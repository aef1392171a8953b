"""What torchtitan 0.3 expects of its surroundings and does not find with torch 2.13 -> the same, filled in.

torchtitan follows torch's nightly builds. Of torch 2.13 it lacks one function, the form in which a pipeline is given
micro-batches (`pipeline.py` has that), and DTensors that it may type: `parallelism.spmd_backend` must be
"partial_dtensor". On a machine without an accelerator it asks for CUDA all the same; it is given the CPU (`cpu.py`).
"""

from collections.abc import Callable
from datetime import timedelta
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from trivium.errors import UsageError

KNOWN = "0.3."
INSTALL = 'pip install "trivium[torchtitan]"'


def prepare() -> None:
    """Refuse another torchtitan, and fill in what this one lacks; as often as one likes."""
    refuse_others()
    import torch

    if not hasattr(torch.distributed, "set_timeout"):
        vars(torch.distributed)["set_timeout"] = set_timeout
    if not torch.accelerator.is_available():
        from trivium.adapters.torchtitan.cpu import use_cpu

        use_cpu()


def refuse_others(found: Callable[[str], str] = version) -> None:
    """Only torchtitan 0.3 has the parts that are built upon here."""
    try:
        present = found("torchtitan")
    except PackageNotFoundError:
        raise UsageError(f"torchtitan is not installed. Write: {INSTALL}") from None
    if not present.startswith(KNOWN):
        raise UsageError(f"torchtitan is {present}, and stages need 0.3. Write: {INSTALL}")


def set_timeout(timeout: timedelta, group: Any = None) -> None:
    """From now on a group's exchanges fail after this time."""
    from torch.distributed import distributed_c10d

    distributed_c10d._set_pg_timeout(timeout, group)


def spmd_backend(asked: str) -> str:
    """What torch can do of `parallelism.spmd_backend`; torchtitan's own default needs a newer one than 2.13."""
    import torch

    too_old = tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 14)
    return "partial_dtensor" if asked == "spmd_types" and too_old else asked
