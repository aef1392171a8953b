"""Where the tests of a dialect write a config of its tool."""

from pathlib import Path

import pytest


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A YAML file; the tests of a tool that writes TOML have a fixture of their own."""
    return tmp_path / "their.yaml"
