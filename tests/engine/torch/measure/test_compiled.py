"""The limit of torch's compiler is told once a stage, whatever torch logs."""

import pytest
import torch
from torch._dynamo import config

from tests.engine.tiny import STAGE
from tests.support.batches import ROWS, TINY, make_batch, settings_at
from trivium.engine.base import EngineSettings
from trivium.engine.torch.engine import TorchEngine


@pytest.mark.filterwarnings("ignore")  # torch's compiler warns of torch's own ways
def test_a_used_up_limit_is_told_once_a_stage() -> None:
    torch.compiler.reset()
    engine = TorchEngine(EngineSettings(TINY, device="cpu", compile=True))
    for layer in engine.model.layers:
        layer.compile(dynamic=False, backend="eager")  # the limit counts graphs, whoever turns them into code
    with config.patch(recompile_limit=1):
        notices = [engine.step(make_batch(ROWS[:rows]), settings_at()).notice for rows in (2, 1, 3)]
        engine.enter(STAGE)
        notices += [engine.step(make_batch(ROWS[:rows]), settings_at()).notice for rows in (2, 1)]
    assert [notice is not None for notice in notices] == [False, True, False, False, True]
    assert str(notices[1]).startswith(
        "torch's limit of 1 compiled shapes is used up: rows of other shapes run uncompiled"
    )
