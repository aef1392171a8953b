"""torchtitan's multi-stage configs run as they are, on small local data."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.support.corpus import write_source
from tests.support.events import steps_taken
from trivium.run.events import read_events
from trivium.run.folder import RunFolder
from trivium.train.trainer import Trainer

CONFIGS = Path(__file__).parents[2] / "docs" / "data_stages" / "configs"
# Narrower than their debug model, so that fifteen steps take a second; everything else as it is.
SMALL = ["model.layers=1", "model.width=32", "model.heads=2", "model.ffn=64", "engine.device=cpu"]

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folders that the configs name, below the folder that the test stands in."""
    rng = np.random.default_rng(0)
    for name in ("web", "code"):
        folder = write_source(tmp_path / "data" / name, [[1]], "uint16")
        lengths = rng.integers(20, 400, 200)
        rng.integers(0, 2048, lengths.sum()).astype("<u2").tofile(folder / "000.ds")
        np.cumsum(lengths).astype("<u8").tofile(folder / "000.ds.index")
        (folder / "000.ds.metadata").write_text(f"test|2\n{lengths.sum()}\n")
    monkeypatch.chdir(tmp_path)


def train(name: str, *overrides: str) -> tuple[Trainer, Path]:
    trainer = Trainer(CONFIGS / f"{name}.toml", [*SMALL, *overrides], world_size=1, show=False).run()
    return trainer, trainer.folder.path


def transitions(run: Path) -> list[tuple[int, str]]:
    return [(event["step"], event["name"]) for event in read_events(run / "events.jsonl") if event["event"] == "stage"]


def test_without_stages_there_is_one_called_default() -> None:
    trainer, run = train("data_stages_backcompat_test")
    assert trainer.finished
    assert transitions(run) == [(0, "default")]
    assert len(steps_taken(run / "events.jsonl")) == 10


def test_three_stages_change_after_exactly_five_and_ten_steps() -> None:
    trainer, run = train("data_stages_test")
    assert trainer.finished
    assert transitions(run) == [(0, "stage_1_general"), (5, "stage_2_reasoning"), (10, "stage_3_final")]
    stages = [event["stage"] for event in steps_taken(run / "events.jsonl").values()]
    assert stages == ["stage_1_general"] * 5 + ["stage_2_reasoning"] * 5 + ["stage_3_final"] * 5


def test_a_resume_at_step_7_gives_every_later_loss_to_the_bit() -> None:
    _, run = train("data_stages_test")
    whole = {step: event["loss"] for step, event in steps_taken(run / "events.jsonl").items()}
    folder = RunFolder(run)
    assert 7 in [checkpoint.step for checkpoint in folder.checkpoints()]
    folder.keep_only([7])
    (run / "events.jsonl").unlink()
    trainer, _ = train("data_stages_test")
    again = {step: event["loss"] for step, event in steps_taken(run / "events.jsonl").items()}
    assert trainer.finished
    assert again == {step: whole[step] for step in range(8, 16)}


def test_a_stage_from_step_5_has_a_default_stage_before_it() -> None:
    trainer, run = train("data_stages_ablation_test")
    assert trainer.finished
    assert transitions(run) == [(0, "default"), (5, "ablation_stage")]
    ablation = {step: event["loss"] for step, event in steps_taken(run / "events.jsonl").items()}
    # The same steps as without the stage up to step 5, and others after it: that is the ablation.
    shutil.rmtree(run)
    _, other = train("data_stages_backcompat_test")
    plain = {step: event["loss"] for step, event in steps_taken(other / "events.jsonl").items()}
    assert [ablation[step] for step in range(1, 6)] == [plain[step] for step in range(1, 6)]
    assert ablation[6] != plain[6]
