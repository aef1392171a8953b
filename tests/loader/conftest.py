"""A config that the tests of the loader read."""

from pathlib import Path

import numpy as np
import pytest

from tests.support.loading import write_config
from trivium.config.schema import Config


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """Two sources, three stages in which everything changes."""
    rng = np.random.default_rng(0)
    sources = {name: [rng.integers(1, 60, 40).tolist() for _ in range(2)] for name in ("web", "code")}
    return write_config(
        tmp_path,
        sources,
        [
            {"steps": 5, "seq_len": 16, "batch_size": 8, "mixture": {"web": 0.75, "code": 0.25}},
            {"steps": 7, "seq_len": 32, "batch_size": 4, "mixture": {"web": 0.5, "code": 0.5}, "fade": {"steps": 3}},
            {"steps": 6, "seq_len": 16, "batch_size": 8, "mixture": {"code": 1.0}, "packing": "concat", "seed": 7},
        ],
    )
