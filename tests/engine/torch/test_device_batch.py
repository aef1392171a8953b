"""A micro-batch is one copy, and on the device before the one before it is used."""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support.batches import SEQ_LEN, TINY, make_batch, settings_at
from trivium.engine.base import EngineSettings, OptimizerSettings, StageSettings
from trivium.engine.torch.engine import TorchEngine
from trivium.engine.torch.layers import Rotation
from trivium.engine.torch.model import DeviceBatch, to_device
from trivium.rows.batch import Batch

SETTINGS = EngineSettings(TINY, OptimizerSettings("adamw"), seed=1, device="cpu", micro_batch_size=1)


class CopiesToMeta(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations whose result is on the meta device and whose arguments are not."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.copies = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        given = [each for each in args if isinstance(each, torch.Tensor)]
        if isinstance(made, torch.Tensor) and made.is_meta and given and not any(each.is_meta for each in given):
            self.copies += 1
        return made


def test_arrays_arrive_as_they_were() -> None:
    arrays: dict[str, NDArray[Any]] = {
        "odd": np.arange(7, dtype=np.uint8),
        "wide": np.arange(6, dtype=np.int64).reshape(2, 3),
        "none": np.empty((0, 4), np.int32),
        "broadcast": np.broadcast_to(np.arange(3, dtype=np.int32), (2, 3)),
    }
    there = to_device(arrays, torch.device("cpu"))
    for name, array in arrays.items():
        np.testing.assert_array_equal(there[name].numpy(), array)
        assert there[name].numpy().dtype == array.dtype
    arrays["odd"][:] = 0
    assert there["odd"].tolist() == list(range(7))  # the loader may use its arrays again


def test_a_micro_batch_is_one_copy_with_all_that_a_model_or_loss_asks_for() -> None:
    table = Rotation.table(TINY.rope, TINY.head_dim, TINY.max_seq_len, torch.device("meta"))
    with CopiesToMeta() as counted:
        batch = DeviceBatch.of(make_batch(), table, True, places=True)
    assert counted.copies == 1
    assert batch.positions is not None
    assert batch.places is not None


def test_a_micro_batch_is_copied_before_the_one_before_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, copied = TorchEngine(SETTINGS), Counter[str]()
    on_device = engine._on_device

    def counted(batch: Batch, table: Rotation) -> DeviceBatch:
        copied["parts"] += 1
        return on_device(batch, table)

    monkeypatch.setattr(engine, "_on_device", counted)
    assert [copied["parts"] for _ in engine._micro_batches(make_batch())] == [2, 3, 4, 4]


def test_a_stage_has_its_own_rows_in_a_pass() -> None:
    engine, batch = TorchEngine(SETTINGS), make_batch()
    stages = [StageSettings(SEQ_LEN, micro_batch_size=3), StageSettings(SEQ_LEN)]
    passes = []
    for stage in stages:
        engine.enter(stage)
        passes.append([len(rows.tokens) for rows, _ in engine._micro_batches(batch)])
    assert passes == [[3, 1], [1, 1, 1, 1]]


def test_a_step_gives_back_the_flags_that_were_raised() -> None:
    engine = TorchEngine(replace(SETTINGS, micro_batch_size=None))
    assert engine.step(make_batch(), settings_at(0)).raised is None
    raised = engine.step(make_batch(), replace(settings_at(1), flags=lambda: (False, True))).raised
    assert raised == (False, True)
