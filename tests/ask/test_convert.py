"""A checkpoint as an engine: in the stage and with the rotary positions that its model was last trained with."""

import json
from pathlib import Path

import pytest

from tests.support.training import train, write_four_stages
from trivium.ask.convert import checkpoint_stage
from trivium.ask.export import export_checkpoint
from trivium.run.folder import RunFolder


def test_a_boundary_checkpoint_has_the_positions_of_the_stage_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_four_stages(tmp_path)
    train("checkpoint.keep=100")
    found = {}
    for checkpoint in RunFolder(Path("runs/run")).checkpoints():
        out = Path(f"out-{checkpoint.step}")
        export_checkpoint(Path("runs/run"), out, step=checkpoint.step)
        theta = json.loads((out / "config.json").read_text())["rope_theta"]
        found[checkpoint.step] = (theta, checkpoint_stage(checkpoint).seq_len)
    assert found[6] == (10_000, 16)  # after the first stage, before the second changes theta
    assert found[11] == (50_000, 32)
    assert found[19][0] == 50_000  # the stages after it ask for none
