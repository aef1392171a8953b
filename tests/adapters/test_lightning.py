"""Lightning's Trainer by a plan: rows, losses, learning rates, resume, on another number of ranks."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch import Trainer

from tests.adapters.lightning_run import fit
from tests.support.loops import hash_rows, own_losses, row_hashes, three_stages, write_tiny_llama
from tests.support.two_ranks import on_two_ranks
from trivium.adapters.lightning import MicroBatches, StageCallback, StagedDataModule
from trivium.adapters.steps import Steps
from trivium.errors import ConfigError, PlanError, ResumeError

RANK = """
import runpy, sys
sys.argv = ["lightning_run", *sys.argv[1:]]
runpy.run_module("tests.adapters.lightning_run", run_name="__main__")
"""
pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),  # of Lightning, on workers and folders that exist
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@pytest.fixture(autouse=True)
def model_folder(folder: Path) -> None:
    """Weights for both loops."""
    torch.set_num_threads(1)
    write_tiny_llama(folder / "base")


def test_micro_batches_have_the_loaders_rows(folder: Path) -> None:
    plan = three_stages()
    trainer = Trainer(accelerator="cpu", logger=False, accumulate_grad_batches=2)
    batches = [
        hash_rows(each["input_ids"]) for each in MicroBatches(Steps(plan, form="huggingface", tensors=True), trainer)
    ]
    assert [one + other for one, other in zip(batches[::2], batches[1::2], strict=True)] == row_hashes(plan)


@pytest.mark.parametrize("rope", [(), ("stages.two.rope.theta=50_000",)])
def test_losses_are_those_of_our_trainer_and_a_resume_gives_the_same_bits(folder: Path, rope: tuple[str, ...]) -> None:
    ours = own_losses(*rope)
    whole = fit("kept", *rope)
    assert whole.stages == ["one", "two", "three"]
    assert list(whole.losses.values()) == pytest.approx(ours, abs=1e-5)
    (group,) = whole.trainer.optimizers[0].param_groups
    assert group["lr"] == pytest.approx(three_stages(*rope).settings_at(12).lr["rest"])
    resumed = fit("again", *rope, resume="kept/step=7.ckpt")
    assert resumed.stages == ["two", "three"]
    assert resumed.losses == {step: loss for step, loss in whole.losses.items() if step > 7}
    for one, other in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.slow
def test_two_ranks_go_on_from_the_checkpoint_of_one(folder: Path) -> None:
    whole = fit("kept")
    on_two_ranks(RANK, "kept", "kept/step=7.ckpt")
    found = json.loads(Path("kept/losses.json").read_text())
    expected = [loss for step, loss in whole.losses.items() if step > 7]
    assert list(found.values()) == pytest.approx(expected, abs=5e-7)


def test_another_past_is_refused(folder: Path) -> None:
    fit("kept", max_steps=7)
    with pytest.raises(ResumeError, match=r"cannot resume at step 7: .*stages\[0\]\.mixture"):
        fit("again", "stages.one.mixture={ web = 1.0 }", resume="kept/step=7.ckpt")


def test_a_checkpoint_from_between_micro_batches_is_refused(folder: Path) -> None:
    progress = SimpleNamespace(current=SimpleNamespace(ready=5))
    loop = SimpleNamespace(epoch_loop=SimpleNamespace(batch_progress=progress))
    trainer = SimpleNamespace(fit_loop=loop, accumulate_grad_batches=2)
    with pytest.raises(ResumeError, match="after 5 micro-batches, a step has taken 1 of its 2"):
        MicroBatches(Steps(three_stages()), trainer).load_state_dict({})  # type: ignore[arg-type]


def test_what_the_loop_cannot_do_is_refused_before_the_first_batch(folder: Path) -> None:
    with pytest.raises(PlanError, match=r"stages\[1\]\.z_loss: Lightning's Trainer computes its own loss"):
        StagedDataModule(three_stages("stages.two.z_loss=1e-4"))
    with pytest.raises(ConfigError, match="callbacks: lack StageCallback"):
        fit("kept", callbacks=[])
    with pytest.raises(PlanError, match="Write accumulate_grad_batches = 4 or less"):
        fit("kept", accumulate_grad_batches=5, callbacks=[StageCallback(three_stages())])
