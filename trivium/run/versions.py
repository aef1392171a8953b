"""The versions that a run's bits depend on."""

import platform
from importlib.metadata import PackageNotFoundError, version


def versions() -> dict[str, str]:
    """Python's and the packages' that compute."""
    found = {"python": platform.python_version(), "machine": platform.machine()}
    for package in ("trivium", "numpy", "numba", "torch", "jax"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
