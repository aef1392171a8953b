"""What all tests of plans share."""

import pytest

from tests.support.plans import plan_of


@pytest.fixture(scope="session", autouse=True)
def compiled_kernels() -> None:
    """Compile before any test, or Hypothesis takes the first call's second for a slow example."""
    fade = {"steps": 1, "shape": "cosine"}
    plan_of({"steps": 2, "mixture": {"web": 0.5, "code": 0.5}}, {"steps": 2, "fade": fade})
