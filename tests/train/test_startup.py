"""How a launch of many ranks starts: rank 0 finds out about the sources, the others open what they read, once."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.corpus import write_source
from tests.support.scripts import ROOT
from tests.support.training import SMALL_MODEL
from trivium.config.load import load
from trivium.loader.loader import Loader
from trivium.plan.make import make_plan

FILES = 200
CONFIG = f"""{SMALL_MODEL}
vocab = 12000
[sources.web]
kind = "tokens"
path = "web"
window_blocks = 8
validation = 0.1
[[stages]]
name = "general"
steps = 2
seq_len = 16
batch_size = 8
"""


@pytest.mark.slow
def test_eight_cold_ranks_hash_200_files_once_and_open_what_they_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_source(tmp_path / "web", [[20 + number % 7, 30] for number in range(FILES)], "uint16")
    (tmp_path / "run.toml").write_text(CONFIG)
    command = [sys.executable, "-m", "tests.train.startup", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    first, *others = json.loads(ran.stdout.splitlines()[-1])
    token_files = [f"{number:03}.ds" for number in range(FILES)]
    assert sorted(Path(name).name for name in first["hashed"]) == token_files
    assert max(first["opens"].values()) == 1
    for other in others:
        assert (other["hashed"], other["planned"]) == ([], {})
        assert max(other["opens"].values()) == 1  # no file twice
        opened = [name for name in other["opens"] if name.endswith(".ds")]
        assert 0 < len(opened) == other["read"] <= 16  # of two windows of eight files at the most
    # The rows are those of one process that has opened all files.
    monkeypatch.setenv("TRIVIUM_CACHE", str(tmp_path / "another"))
    with Loader(make_plan(load(Path("run.toml")).config)) as loader:
        assert [row for rank in (first, *others) for row in rank["rows"]] == loader.batch(0).tokens.tolist()
