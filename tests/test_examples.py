"""The scripts in examples/ run, with warnings as errors, and its configs load."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from trivium.config.load import load

ROOT = Path(__file__).parent.parent
SCRIPTS = {
    "torch_loop.py": "resuming at step 6, stage general",
    "hf_trainer.py": "6 steps; stopped at 3 and resumed: the same weights",
}


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_runs_where_a_reader_would_run_it(script: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("data", "__pycache__"))
    done = subprocess.run(
        [sys.executable, "-W", "error", f"examples/{script}"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert SCRIPTS[script] in done.stdout


@pytest.mark.parametrize("config", sorted((ROOT / "examples").glob("*.toml")), ids=lambda path: path.name)
def test_a_config_loads_without_a_warning(config: Path) -> None:
    assert load(config).warnings == ()
