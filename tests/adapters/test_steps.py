"""Steps of a plan in torch's DataLoader, torchdata's StatefulDataLoader and plain loops."""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from tests.support.loops import hash_rows, row_hashes, three_stages
from trivium.adapters.forms import FORMS
from trivium.adapters.steps import Steps, parts
from trivium.errors import PlanError, ResumeError, UsageError
from trivium.loader.loader import Loader
from trivium.rows.batch import IGNORED, Batch


def test_steps_by_number_and_by_iteration_are_the_loaders(folder: Path) -> None:
    plan = three_stages()
    steps = Steps(plan)
    assert len(steps) == 13
    assert [hash_rows(each["tokens"]) for each in steps] == row_hashes(plan)
    assert hash_rows(steps[-1]["tokens"]) == row_hashes(plan)[12]
    with pytest.raises(IndexError, match="there is no step 13: the run has 13"):
        steps[13]


def test_ranks_share_a_steps_rows(folder: Path) -> None:
    plan = three_stages()
    assert row_hashes(plan, 2) == row_hashes(plan)
    shards = [Steps(plan, rank, 2)[7]["tokens"] for rank in range(2)]
    assert [each for shard in shards for each in hash_rows(shard)] == row_hashes(plan)[7]


def test_a_state_goes_through_json_to_another_number_of_ranks(folder: Path) -> None:
    plan = three_stages()
    steps = Steps(plan)
    for number, _ in enumerate(steps):
        if number == 6:
            break
    text = json.dumps(steps.state_dict())
    halves = []
    for rank in range(2):
        half = Steps(plan, rank, 2)
        half.load_state_dict(json.loads(text))
        halves.append([hash_rows(each["tokens"]) for each in half])
    assert [first + second for first, second in zip(*halves, strict=True)] == row_hashes(plan)[7:]
    with pytest.raises(ResumeError, match=r"stages\[0\]\.mixture"):
        Steps(three_stages("stages.one.mixture={ web = 1.0 }")).load_state_dict(json.loads(text))


def test_what_a_stage_says_about_attention_and_loss_is_in_the_arrays(folder: Path) -> None:
    plan = three_stages()
    steps, loader = Steps(plan), Loader(plan)
    masked, joined = steps[2], steps[10]
    assert (masked["positions"] == loader.batch(2).positions).all()
    assert (joined["positions"] == np.arange(16)).all()
    assert set(np.unique(joined["segments"])) <= {-1, 0}
    code = joined["source"] == loader.sources.index("code")
    assert code.any()
    assert (joined["targets"][code] == IGNORED).all()
    assert (joined["targets"][~code] == loader.batch(10).targets[~code]).all()


@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_torchs_data_loader_reads_steps_in_worker_processes(folder: Path, context: str) -> None:
    plan = three_stages()
    steps = Steps(plan, form="huggingface", tensors=True)
    if context == "spawn":
        steps = pickle.loads(pickle.dumps(steps))
    loader: Any = DataLoader(steps, batch_size=None, num_workers=1, multiprocessing_context=context)  # type: ignore[arg-type]
    assert [hash_rows(each["input_ids"]) for each in loader] == row_hashes(plan)


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # torchdata calls it
def test_torchdatas_loader_resumes_exactly_in_the_middle_of_a_stage(folder: Path) -> None:
    plan = three_stages()
    loader = StatefulDataLoader(Steps(plan), batch_size=None, num_workers=2)
    batches = iter(loader)
    for _ in range(7):
        next(batches)
    state = loader.state_dict()
    again = StatefulDataLoader(Steps(plan), batch_size=None, num_workers=2)
    again.load_state_dict(state)
    assert [hash_rows(each["tokens"]) for each in again] == row_hashes(plan)[7:]


def test_forms_have_the_names_and_masks_of_their_loops(folder: Path) -> None:
    batch = Loader(three_stages()).batch(1)
    counts = batch.targets != IGNORED
    hf = FORMS["huggingface"](batch)
    assert (hf["shift_labels"] == batch.targets).all()
    assert hf["input_ids"].dtype == np.int64
    jax = FORMS["maxtext"](batch)
    assert ((jax["targets_segmentation"] != 0) == counts).all()
    assert ((jax["inputs_segmentation"] == 0) == (batch.segments == -1)).all()
    megatron = FORMS["megatron"](batch)
    assert (megatron["loss_mask"] == counts).all()
    assert (megatron["labels"][counts] == batch.targets[counts]).all()
    olmo = FORMS["olmo_core"](batch)
    assert (olmo["doc_lens"].sum(axis=1) == 16).all()
    ends = [set(np.cumsum(lengths)) for lengths in olmo["doc_lens"]]
    assert ends == [{*np.flatnonzero(np.diff(row)) + 1, 16} for row in batch.segments]
    assert list(FORMS["plain"](batch)) == ["tokens", "targets", "segments", "positions", "source"]


def test_a_form_may_be_a_function_or_an_error_that_names_all(folder: Path) -> None:
    plan = three_stages()
    steps = Steps(plan, form=lambda batch: {"x": batch.tokens}, tensors=True)
    assert isinstance(steps[0]["x"], torch.Tensor)
    with pytest.raises(UsageError, match=r'the form "hf" is not known\. Write one of plain, huggingface'):
        Steps(plan, form="hf")


def test_micro_batches_have_nearly_equal_rows() -> None:
    rows = np.zeros((10, 4), np.int32)
    batch = Batch(rows, rows, rows, rows, np.arange(10, dtype=np.int32), ("web",))
    assert [part.num_rows for part in parts(batch, 4)] == [3, 2, 3, 2]
    assert np.concatenate([part.source for part in parts(batch, 4)]).tolist() == list(range(10))
    with pytest.raises(PlanError, match="a step has 10 rows on this rank, which 11 micro-batches cannot share"):
        parts(batch, 11)


def test_some_rows_of_a_step_are_those_of_the_whole(folder: Path) -> None:
    steps = Steps(three_stages())
    whole, some = steps.batch(10), steps.rows(10, 3, 5)
    for name in ("tokens", "targets", "segments", "positions", "source"):
        assert (getattr(some, name) == getattr(whole, name)[3:5]).all()
    with pytest.raises(PlanError, match="step 10 has rows 0 to 11 here, and 12 to 12 were asked for"):
        steps.rows(10, 12, 13)
