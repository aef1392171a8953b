"""A launch of a run of four stages, without an engine."""

from pathlib import Path

import pytest

from tests.support.training import write_four_stages
from trivium.config.load import load
from trivium.plan.make import make_plan
from trivium.train.screens.standing import Launch


@pytest.fixture
def launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Launch:
    monkeypatch.chdir(tmp_path)
    write_four_stages(tmp_path)
    loaded = load("run.toml")
    plan = make_plan(loaded.config).complete()
    folder = tmp_path / "runs" / "run"
    folder.mkdir(parents=True)
    return Launch(lambda: plan, lambda: plan.total_steps, lambda: None, folder, loaded=loaded)
