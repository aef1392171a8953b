"""What is set before torch is imported, unless the user has set it."""

import json
import os
import subprocess
import sys

import pytest

from tests.support.scripts import ROOT

NAMES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
SCRIPT = f"import json, os, trivium.engine.torch; print(json.dumps([os.environ.get(name) for name in {NAMES}]))"


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, ["expandable_segments:True", None]),
        ({NAMES[0]: "max_split_size_mb:64"}, ["max_split_size_mb:64", None]),
        ({NAMES[1]: "max_split_size_mb:64"}, [None, "max_split_size_mb:64"]),
    ],
)
def test_segments_grow_unless_the_user_has_settings_by_either_name(given: dict[str, str], found: list[str]) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in NAMES}
    environment |= {"PYTHONPATH": str(ROOT), **given}
    ran = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, check=True)
    assert json.loads(ran.stdout) == found
