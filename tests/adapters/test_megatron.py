"""Megatron's dataset of a plan: samples in the order in which its sampler consumes them, on any number of ranks."""

import warnings
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from tests.support.loops import hash_rows, row_hashes, three_stages
from trivium.errors import PlanError
from trivium.loader.loader import Loader

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Megatron compiles a function with torch.jit when it is imported
    from megatron.core.datasets.gpt_dataset import GPTDatasetConfig

    from trivium.adapters.megatron import StagedGPTDataset, datasets_provider

SAME = ("stages.two.seq_len=16", "stages.two.batch_size=8", "stages.three.batch_size=8")
JOINED = tuple(f"stages.{stage}.document_mask=false" for stage in ("one", "two"))
MASKED = ("stages.three.document_mask=true",)

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # of Megatron, on the pad token


def make_config(**options: Any) -> GPTDatasetConfig:
    """Megatron's own config of its dataset."""
    tokenizer = SimpleNamespace(vocab_size=512, eod=1, pad=511, unique_identifiers={})
    given = {"random_seed": 1, "sequence_length": 16, "split": "1,0,0", "tokenizer": tokenizer}
    flags = dict.fromkeys(("reset_position_ids", "reset_attention_mask", "eod_mask_loss"), False)
    return GPTDatasetConfig(**(given | flags | options))


def make_dataset(*overrides: str, **options: Any) -> StagedGPTDataset:
    provider = datasets_provider(three_stages(*SAME, *overrides), global_batch_size=8, config=make_config(**options))
    train, valid, test = provider((104, 10, 0))
    assert train is not None
    assert (valid, test) == (None, None)
    return train


def sequential(consumed: int, total: int, micro: int, rank: int, ranks: int) -> Iterator[list[int]]:
    """Micro-batches as Megatron's MegatronPretrainingSampler gives them to a data-parallel rank."""
    chunk = micro * ranks
    for first in range(consumed, total - chunk + 1, chunk):
        yield list(range(first + rank * micro, first + (rank + 1) * micro))


def test_every_step_has_the_loaders_rows_on_one_rank_and_after_a_resume_on_two(folder: Path) -> None:
    dataset = make_dataset(*MASKED)
    expected = row_hashes(three_stages(*SAME, *MASKED))
    assert len(dataset) == 13 * 8
    one: Any = DataLoader(dataset, batch_sampler=list(sequential(0, 104, 2, 0, 1)))
    parts = [hash_rows(part["tokens"]) for part in one]
    assert [[*chain(*parts[first : first + 4])] for first in range(0, 52, 4)] == expected
    consumed = 7 * 8  # in the middle of stage two
    found: dict[int, list[str]] = {step: [] for step in range(7, 13)}
    for rank in range(2):
        batches = list(sequential(consumed, 104, 2, rank, 2))
        for number, part in enumerate(DataLoader(dataset, batch_sampler=batches)):
            found[7 + number // 2] += hash_rows(part["tokens"])
    assert {step: sorted(rows) for step, rows in found.items()} == {step: sorted(expected[step]) for step in found}


def test_a_sample_is_in_the_form_of_gptdataset(folder: Path) -> None:
    dataset = make_dataset(*MASKED)
    batch = Loader(three_stages(*SAME, *MASKED)).batch(0)
    row = int(np.flatnonzero(batch.segments.max(axis=1) > 0)[0])  # with two documents
    sample = dataset[row]
    assert set(sample) == {"tokens", "labels", "loss_mask", "position_ids", "attention_mask"}
    assert (sample["loss_mask"].numpy() == (batch.targets[row] != -100)).all()
    assert sample["attention_mask"].shape == (1, 16, 16)
    same = batch.segments[row][:, None] == batch.segments[row][None, :]
    assert (sample["attention_mask"][0].numpy() == ~(same & np.tri(16, dtype=bool))).all()
    assert not dataset[None]["loss_mask"].any()
    joined = make_dataset(*JOINED, create_attention_mask=False)[row]
    assert torch.equal(joined["position_ids"], torch.arange(16))
    assert "attention_mask" not in joined
    with pytest.raises(IndexError, match="sample 104 does not exist: the run has 104 rows"):
        dataset[104]


def test_ranks_that_read_nothing_get_no_dataset(folder: Path) -> None:
    options: dict[str, Any] = {"global_batch_size": 8, "config": make_config()}
    provider = datasets_provider(three_stages(*SAME, *MASKED), is_built_on_rank=lambda: False, **options)
    assert provider((104, 0, 0)) == (None, None, None)
    assert provider.is_distributed is True  # type: ignore[attr-defined]
    with pytest.raises(PlanError, match=r"asks for 105 samples, and the plan has 104\. Write --train-iters 13"):
        provider((105, 0, 0))


def test_all_that_megatron_cannot_do_is_refused_at_once(folder: Path) -> None:
    config = make_config(create_attention_mask=False)
    with pytest.raises(PlanError) as caught:
        datasets_provider(three_stages(*MASKED), global_batch_size=8, config=config)
    assert [problem.where for problem in caught.value.problems] == [
        "stages[0].document_mask",
        "stages[1].batch_size",
        "stages[1].seq_len",
        "stages[1].document_mask",
        "stages[2].batch_size",
        "stages[2].document_mask",
    ]
    assert str(caught.value.problems[1]) == (
        "stages[1].batch_size: is 4, and Megatron's global batch size is 8 in every step. Write 8."
    )
