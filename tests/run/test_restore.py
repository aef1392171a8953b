"""Weights that are not as they were written are neither exported, asked nor started from."""

from pathlib import Path

import pytest

from tests.support.training import train
from trivium.ask.export import export_checkpoint
from trivium.ask.open import open_model
from trivium.config.load import load
from trivium.errors import PlanError, ResumeError
from trivium.plan.make import make_plan
from trivium.report.read import RunFiles
from trivium.run.folder import RunFolder
from trivium.train.references import References

RUN = Path("runs/run")
ADVICE = "Put it back, or give another checkpoint."


def start_from_run() -> None:
    train("run.name=next", "model={ init = 'runs/run' }")


def test_a_damaged_checkpoint_is_refused_wherever_its_weights_are_opened(folder: Path) -> None:
    train()
    last = RunFolder(RUN).checkpoints()[-1]
    weights = next(last.engine.glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-1] + b"?")
    for use in (lambda: export_checkpoint(RUN, Path("out")), lambda: open_model(RUN), start_from_run):
        with pytest.raises(ResumeError) as error:
            use()
        assert str(error.value) == f"{weights}: its content has changed since it was written. {ADVICE}"
    assert not Path("out").exists()
    shape = last.engine / "engine.json"
    shape.write_text(shape.read_text()[:40])
    with pytest.raises(PlanError) as refused:
        start_from_run()
    what = "is corrupt: truncated, or changed since it was written. Put it back."
    assert str(refused.value) == f"run.toml: model.init (set on the command line): {shape}: {what}"
    state = last.path / "state.json"
    state.write_text("")
    with pytest.raises(ResumeError) as error:
        start_from_run()
    assert str(error.value) == f"{state}: is corrupt: truncated, or changed since it was written. {ADVICE}"
    assert [each["step"] for each in RunFiles(RUN).checkpoints] == [6, 11, 15, 18]


def test_a_reference_of_the_other_engine_is_refused_before_training(folder: Path) -> None:
    train()
    engine = RunFolder(RUN).checkpoints()[-1].engine
    other = ["engine.name=jax", "stages.1.kl={ beta = 0.1, reference = { path = 'runs/run' } }"]
    plan = make_plan(load(Path("run.toml"), other).config).complete()
    with pytest.raises(PlanError) as error:
        References(plan, RunFolder(Path("runs/next"))).check(0)
    assert str(error.value) == (
        f"stages[1].kl.reference: {engine} was saved by the torch engine, and this run's is another. "
        f"Export it first (trivium export {engine.parent} OUT), and give that folder."
    )
