"""The Hugging Face Trainer by a plan: rows, losses, learning rates, resume, on another number of ranks."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainingArguments

from tests.adapters.hf_run import logged, make_trainer
from tests.support.loops import hash_rows, own_losses, row_hashes, three_stages, write_tiny_llama
from tests.support.two_ranks import on_two_ranks
from trivium.adapters.huggingface import StagedTrainer
from trivium.errors import ConfigError, PlanError, ResumeError

RANK = """
import runpy, sys
sys.argv = ["hf_run", *sys.argv[1:]]
runpy.run_module("tests.adapters.hf_run", run_name="__main__")
"""


@pytest.fixture(autouse=True)
def model_folder(folder: Path) -> None:
    """Weights for both loops."""
    torch.set_num_threads(1)
    write_tiny_llama(folder / "base")


def test_micro_batches_have_the_loaders_rows_and_vary_with_the_stage(folder: Path) -> None:
    trainer = make_trainer("hf")
    batches = [hash_rows(part["input_ids"]) for part in trainer.get_train_dataloader()]
    plan = three_stages()
    assert [first + second for first, second in zip(batches[::2], batches[1::2], strict=True)] == row_hashes(plan)
    assert [len(part) for part in batches[::2]] == [4] * 5 + [2] * 4 + [6] * 4


@pytest.mark.parametrize("rope", [(), ("stages.two.rope.theta=50_000",)])
def test_losses_are_those_of_our_trainer_and_a_resume_gives_the_same_bits(folder: Path, rope: tuple[str, ...]) -> None:
    ours = own_losses(*rope)
    whole = make_trainer("hf", *rope)
    whole.train()
    assert list(logged(whole).values()) == pytest.approx(ours, abs=1e-5)
    rates = [entry["learning_rate"] for entry in whole.state.log_history if "learning_rate" in entry]
    assert rates == pytest.approx([three_stages(*rope).settings_at(step).lr["rest"] for step in range(13)])
    resumed = make_trainer("hf", *rope)
    resumed.train(resume_from_checkpoint="hf/checkpoint-7")
    assert logged(resumed) == logged(whole)
    models: list[Any] = [whole.model, resumed.model]
    for one, other in zip(*(model.parameters() for model in models), strict=True):
        assert torch.equal(one, other)


@pytest.mark.slow
def test_two_ranks_go_on_from_the_checkpoint_of_one(folder: Path) -> None:
    whole = make_trainer("hf")
    whole.train()
    on_two_ranks(RANK, "hf", "hf/checkpoint-7")
    found = json.loads(Path("hf/losses.json").read_text())
    assert list(found.values()) == pytest.approx(list(logged(whole).values()), abs=1e-5)


def test_another_past_and_a_foreign_checkpoint_are_refused(folder: Path) -> None:
    make_trainer("hf", max_steps=7).train()
    with pytest.raises(ResumeError, match=r"cannot resume at step 7: .*stages\[0\]\.mixture"):
        make_trainer("hf", "stages.one.mixture={ web = 1.0 }").train(resume_from_checkpoint="hf/checkpoint-7")
    state = Path("hf/checkpoint-7/trainer_state.json")
    table = json.loads(state.read_text())
    del table["stateful_callbacks"]["trivium"]
    state.write_text(json.dumps(table))
    with pytest.raises(ResumeError, match="was not written by a StagedTrainer"):
        make_trainer("hf").train(resume_from_checkpoint="hf/checkpoint-7")


def test_what_the_loop_cannot_do_is_refused_before_the_first_batch(folder: Path) -> None:
    with pytest.raises(PlanError) as caught:
        make_trainer("hf", "stages.two.z_loss=1e-4", "stages.three.kl.beta=0.1")
    instead = "Take it out, or train with `trivium train`."
    assert str(caught.value).splitlines() == [
        f"stages[1].z_loss: The Hugging Face Trainer computes its own loss. {instead}",
        f"stages[2].kl: The Hugging Face Trainer has no frozen reference to compare the model with. {instead}",
    ]
    with pytest.raises(PlanError) as caught:
        make_trainer("hf", gradient_accumulation_steps=8)
    assert str(caught.value) == (
        "stages[1].batch_size: is 4 rows, which 8 micro-batches on 1 ranks cannot share. "
        "Write gradient_accumulation_steps = 4 or less."
    )
    args = TrainingArguments(output_dir="hf", use_cpu=True, report_to=[], auto_find_batch_size=True)
    with pytest.raises(ConfigError, match="auto_find_batch_size: is True, and the plan decides"):
        StagedTrainer(three_stages(), args=args)
