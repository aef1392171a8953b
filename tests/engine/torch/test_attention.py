"""Every layout gives what an explicit mask gives, backward too."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from tests.support.batches import make_batch
from trivium.engine.torch.attention import BlockMasked, Documents, Layout, Masked, WholeRows, layout_of

CPU = torch.device("cpu")
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 8


def by_hand(segments: NDArray[np.int32], queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """The definition: for every slot, softmax over the slots of its document up to itself."""
    out = torch.zeros_like(queries)
    for row, slot in np.ndindex(segments.shape):
        seen = [other for other in range(slot + 1) if segments[row, other] == segments[row, slot]]
        for head in range(HEADS):
            shared = head // (HEADS // KV_HEADS)
            scores = keys[row, seen, shared] @ queries[row, slot, head] / HEAD_DIM**0.5
            out[row, slot, head] = scores.softmax(0) @ values[row, seen, shared]
    return out


def arrays(num_rows: int, seq_len: int) -> list[Tensor]:
    random = torch.Generator().manual_seed(0)
    heads = (HEADS, KV_HEADS, KV_HEADS)
    return [torch.randn(num_rows, seq_len, number, HEAD_DIM, generator=random, requires_grad=True) for number in heads]


def with_gradients(layout: Layout, inputs: list[Tensor], where: Tensor) -> list[Tensor]:
    """What the layout gives at real tokens, and the gradients from there."""
    gathered = layout.attend(*inputs) * where[..., None, None]
    return [gathered, *torch.autograd.grad(gathered.square().sum(), inputs)]


def test_a_mask_gives_what_the_definition_says() -> None:
    segments = make_batch().segments
    inputs = arrays(*segments.shape)
    expected = by_hand(segments, *inputs)
    torch.testing.assert_close(Masked.of(segments, CPU).attend(*inputs), expected)


@given(rows=st.lists(st.lists(st.integers(1, 5), max_size=4).map(tuple), min_size=1, max_size=3).filter(any).map(tuple))
@settings(max_examples=40, deadline=None)
def test_documents_one_by_one_give_what_a_mask_gives(rows: tuple[tuple[int, ...], ...]) -> None:
    segments = make_batch(rows, seq_len=20).segments
    inputs, real = arrays(*segments.shape), torch.from_numpy(segments >= 0)
    expected = with_gradients(Masked.of(segments, CPU), inputs, real)
    for got, wanted in zip(with_gradients(Documents.of(segments), inputs, real), expected, strict=True):
        torch.testing.assert_close(got, wanted)


@pytest.mark.filterwarnings("ignore:.*flex_attention.*")  # it asks to be compiled, which a GPU does
def test_blocks_give_what_a_mask_gives() -> None:
    segments = make_batch(((100, 60, 90), (256,), (30,)), seq_len=256).segments
    inputs, real = arrays(*segments.shape), torch.from_numpy(segments >= 0)[..., None, None]
    without_gradients = [array.detach() for array in inputs]  # flex attention has none on a CPU
    got, wanted = (kind.of(segments, CPU).attend(*without_gradients) * real for kind in (BlockMasked, Masked))
    torch.testing.assert_close(got, wanted)


def test_joined_documents_see_their_row_and_no_padding() -> None:
    segments = make_batch(((3, 5), (8,))).segments
    inputs = arrays(*segments.shape)
    layout = layout_of(segments, False, CPU)
    assert layout == WholeRows()
    expected = by_hand(np.where(segments < 0, -1, 0).astype(np.int32), *inputs)
    torch.testing.assert_close(layout.attend(*inputs)[:, :8], expected[:, :8])


def test_rows_of_one_document_are_taken_whole() -> None:
    assert layout_of(make_batch(((16,), (16,))).segments, True, CPU) == WholeRows()
    assert layout_of(make_batch(((16,), (9,))).segments, True, CPU) == Documents((16, 9, 7), (False, False, True))


def test_padding_before_a_token_is_our_own_mistake() -> None:
    with pytest.raises(AssertionError, match="padding comes last"):
        layout_of(np.array([[0, -1, 1]], np.int32), True, CPU)
