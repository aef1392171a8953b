"""The decoder by itself, without an engine around it."""

import torch

from tests.support.batches import TINY, make_batch
from trivium.engine.torch.layers import Rotation
from trivium.engine.torch.model import Decoder, DeviceBatch


def test_a_decoder_needs_no_engine_to_give_logits() -> None:
    torch.manual_seed(0)
    model = Decoder(TINY)
    table = Rotation.table(TINY.rope, TINY.head_dim, 16, torch.device("cpu"))
    batch = DeviceBatch.of(make_batch(), table, True)
    ends = torch.tensor([0, 5])
    torch.testing.assert_close(model.next_logits(batch, ends), model.logits(batch).flatten(0, 1)[ends])
