"""Where the tests of a dialect write a config of its tool."""

from pathlib import Path

import pytest

TOML_TOOLS = ("torchtitan", "kempnerforge")  # the others write YAML


@pytest.fixture
def file(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A file of the kind that the tool of the test's module reads."""
    writes_toml = any(tool in request.module.__name__ for tool in TOML_TOOLS)
    return tmp_path / ("their.toml" if writes_toml else "their.yaml")
