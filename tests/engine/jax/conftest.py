"""Programs of tests are compiled in half the time, to slower code with the same meaning."""

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(autouse=True, scope="package")
def quick_compilation() -> Iterator[None]:
    """For these tests alone."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
