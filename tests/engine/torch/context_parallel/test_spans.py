"""Attention of some slots of rows, beside that of whole rows by an explicit mask; one process."""

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.support.batches import make_batch
from trivium.engine.torch.attention import PLAIN, Layout, Masked, document_starts
from trivium.engine.torch.context_parallel.layouts import Stretches
from trivium.engine.torch.context_parallel.slots import SlotShare
from trivium.engine.torch.context_parallel.spans import Spans
from trivium.model.spec import AttentionSpec

ROWS = ((20, 7), (27,), (3, 20, 2), (10, 2, 1, 9))
SEQ_LEN = 32


def arrays() -> list[Tensor]:
    """Queries, keys, values and what goes backward; heads share keys in pairs."""
    random = torch.Generator().manual_seed(0)
    shapes = [(len(ROWS), SEQ_LEN, heads, 8) for heads in (4, 2, 2, 4)]
    return [torch.randn(shape, generator=random) for shape in shapes]


def attended(
    layout: Layout, queries: Tensor, keys: Tensor, values: Tensor, outer: Tensor, how: AttentionSpec = PLAIN
) -> list[Tensor]:
    """What is gathered, and the gradients of all three."""
    inputs = [each.clone().requires_grad_() for each in (queries, keys, values)]
    gathered = layout.attend(inputs[0], inputs[1], inputs[2], how)
    gathered.backward(outer)  # type: ignore[no-untyped-call]
    return [gathered.detach(), *(each.grad for each in inputs if each.grad is not None)]


HOWS = (PLAIN, AttentionSpec(3), AttentionSpec(6, 0.7), AttentionSpec(11), AttentionSpec(5, None, 1.5))


@pytest.mark.parametrize("how", HOWS, ids=lambda how: f"{how.window}-{how.softcap}")
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_all_ranks_slots_gather_what_whole_rows_do(ranks: int, how: AttentionSpec) -> None:
    segments = make_batch(ROWS, seq_len=SEQ_LEN).segments
    queries, keys, values, outer = arrays()
    outer[torch.tensor(segments) < 0] = 0  # padding gathers whatever a layout gives it
    mask = Masked.of(torch.tensor(document_starts(segments)), how.window)
    whole = attended(mask, queries, keys, values, outer, how)
    room = [torch.zeros_like(each) for each in whole]
    for rank in range(ranks):
        share = SlotShare(rank, ranks, SEQ_LEN)
        slots = share.of(np.arange(SEQ_LEN, dtype=np.int64)[None], -1)[0]
        own = torch.tensor(slots[slots >= 0])
        spans = Spans.of(share.padded(segments), share)
        there = torch.tensor(slots >= 0)  # the others make parts even
        found = attended(spans, queries[:, slots], keys, values, outer[:, slots] * there[:, None, None], how)
        room[0][:, own], room[1][:, own] = (each[:, there] for each in found[:2])
        room[2] += found[2]
        room[3] += found[3]
    real = torch.tensor(segments) >= 0
    torch.testing.assert_close(room[0][real], whole[0][real], rtol=1e-5, atol=1e-6)
    for one, other in zip(room[1:], whole[1:], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("how", [PLAIN, AttentionSpec(200), AttentionSpec(50, 0.5)])
@pytest.mark.parametrize("rank", [0, 1])
def test_blocks_of_stretches_see_what_spans_see(rank: int, how: AttentionSpec) -> None:
    """Forward alone: flex attention goes backward on GPUs only."""
    segments = make_batch(((300, 700),), seq_len=1000).segments
    share = SlotShare(rank, 2, 1000)
    starts = torch.tensor(document_starts(segments))
    random = torch.Generator().manual_seed(0)
    queries, keys, values = (torch.randn(1, slots, 2, 8, generator=random) for slots in (500, 1000, 1000))
    spans, stretches = Spans.of(segments, share), Stretches.of(starts, share, how.window)
    torch.testing.assert_close(
        stretches.attend(queries, keys, values, how), spans.attend(queries, keys, values, how), rtol=1e-5, atol=1e-5
    )
