"""torchtitan's own trainer, in real processes, by the stages of a config; our Trainer is the judge."""

import shutil
from pathlib import Path

import pytest

from tests.support.events import steps_taken
from tests.support.titan_env import titan_python
from tests.support.titan_runs import STAGES, figures, hash_row, launch, losses, rows_read, validation
from tests.support.training import write_sources
from trivium.config.load import load_config
from trivium.engine.base import EngineSettings
from trivium.engine.make import make_engine
from trivium.loader.loader import Loader
from trivium.model.spec import ModelSpec
from trivium.plan.make import make_plan
from trivium.run.events import read_events
from trivium.train.trainer import Trainer

pytestmark = pytest.mark.slow
TINY = ModelSpec(
    layers=2,
    width=64,
    heads=4,
    kv_heads=4,
    head_dim=16,
    ffn=128,
    vocab=512,
    max_seq_len=1024,
    norm_eps=1e-5,
    init_std=0.1,
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Sources, a config, and weights as others publish them; the test works there."""
    titan_python()  # before our own run: where it is not there, nothing is tested
    write_sources(tmp_path)
    text = STAGES.replace('path = "', f'path = "{tmp_path}/')
    (tmp_path / "run.toml").write_text(text)
    make_engine(EngineSettings(spec=TINY, device="cpu")).export(tmp_path / "weights")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def planned_rows(first: int, end: int, rank: int, ranks: int) -> list[str]:
    """Hashes of the rows that our loader gives a rank; without a mask, positions count through the row."""
    plan = make_plan(load_config("run.toml", ["model.init=weights"])).complete()
    found: list[str] = []
    with Loader(plan, rank, ranks) as loader:
        for step in range(first, end):
            batch = loader.batch(step)
            if not plan.stage_at(step).config.document_mask:
                batch.positions[:] = range(batch.seq_len)
            found += map(hash_row, batch.tokens, batch.targets, batch.positions)
    return found


def test_a_run_is_ours_and_goes_on_anywhere_on_any_layout(folder: Path) -> None:
    weights = ["--checkpoint.initial-load-path", str(folder / "weights"), "--checkpoint.initial-load-in-hf"]
    part = folder / "part"
    launch(1, (folder / "whole", weights), (part, ["--config", "tiny_in_stages", *weights, "--stages.until", "6"]))
    for name in ("same", "two", "tensor", "pipeline"):
        shutil.copytree(part, folder / name, ignore=shutil.ignore_patterns("rows-*"))
    refused = launch(
        2,
        (folder / "two", ["--stages.until", "10"]),
        (folder / "tensor", ["--parallelism.tensor-parallel-degree", "2"]),
        (folder / "pipeline", ["--parallelism.pipeline-parallel-degree", "2"]),
        (folder / "refused", ["stages.1.kl={ beta = 0.1 }", "model.layers=3"]),
        code=2,
    )
    read_by_two = [rows_read(folder / "two", rank) for rank in range(2)]
    reads_otherwise = "stages.0.mixture={ web = 0.5, code = 0.5 }"
    printed = launch(1, (folder / "same", []), (folder / "two", []), (part, [reads_otherwise]), code=2)

    # Our own Trainer, from the same weights: the same losses and evaluations, over all three stages.
    Trainer("run.toml", ["model.init=weights", "engine.device=cpu"], show=False).run()
    ours = steps_taken(Path("runs", "run", "events.jsonl"))
    whole = figures(folder / "whole")
    assert losses(folder / "whole") == pytest.approx({step: each["loss"] for step, each in ours.items()}, abs=1e-5)
    for step, each in ours.items():
        assert whole[step]["grad_norm"] == pytest.approx(each["grad_norm"], abs=1e-5)
        assert {group: whole[step][f"lr/{group}"] for group in each["lr"]} == each["lr"]
    measured = {
        each["step"]: each for each in read_events(Path("runs/run/events.jsonl")) if each["event"] == "evaluated"
    }
    assert validation(folder / "whole").keys() == measured.keys() == {6, 12}
    for step, each in measured.items():
        expected = {"": each["loss"], **each["loss_by_source"]}
        assert validation(folder / "whole")[step] == pytest.approx(expected, abs=1e-5)

    # The rows are our loader's, on one rank and on two, from the middle of a stage on.
    assert rows_read(folder / "whole", 0) == planned_rows(0, 12, 0, 1)
    for rank in range(2):
        assert read_by_two[rank] == planned_rows(6, 10, rank, 2)
        assert rows_read(folder / "tensor", rank) == planned_rows(6, 12, 0, 1)

    # A run that goes on in the middle of a stage is the same to the last digit, and elsewhere up to rounding.
    assert losses(folder / "same") == losses(folder / "whole")
    for name in ("two", "tensor", "pipeline"):
        assert losses(folder / name) == pytest.approx(losses(folder / "whole"), abs=2e-5)
        assert validation(folder / name)[12] == pytest.approx(validation(folder / "whole")[12], abs=2e-5)

    # What it cannot do is said before the first step, by rank 0 alone.
    assert refused[0].splitlines()[-2:] == [
        (
            "run.toml: model.layers (set on the command line): is 3, and torchtitan's model has 2. "
            "Leave the shape out of [model], or write the same."
        ),
        (
            "run.toml: stages[1].kl (set on the command line): torchtitan has no frozen reference to compare "
            "the model with. Take it out, or train with `trivium train`."
        ),
    ]
    assert "stages[1].kl" not in refused[1]
    assert not (folder / "refused" / "figures.jsonl").exists()

    # A checkpoint of another plan is refused by its first difference.
    assert printed[0].splitlines()[-1] == (
        'cannot resume at step 6: stages[0].mixture.code was "0.25" and is now "0.5", and steps 0 to 5 have been '
        "taken. Put it back, or start a new run."
    )
