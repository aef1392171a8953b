"""Every layout gives what an explicit mask gives, backward too."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor
from torch._dynamo.testing import CompileCounter
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from tests.support.batches import make_batch
from tests.support.counted import Counted
from trivium.engine.torch.attention import (
    BLOCK,
    BlockMasked,
    Documents,
    Layout,
    Masked,
    WholeRows,
    block_mask,
    document_starts,
    layout_of,
)

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


def starts_of(segments: NDArray[np.int32]) -> Tensor:
    return torch.from_numpy(document_starts(segments))


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
    torch.testing.assert_close(Masked.of(starts_of(segments)).attend(*inputs), expected)


@given(rows=st.lists(st.lists(st.integers(1, 5), max_size=4).map(tuple), min_size=1, max_size=3).filter(any).map(tuple))
@settings(max_examples=40, deadline=None)
def test_documents_one_by_one_give_what_a_mask_gives(rows: tuple[tuple[int, ...], ...]) -> None:
    segments = make_batch(rows, seq_len=20).segments
    inputs, real = arrays(*segments.shape), torch.from_numpy(segments >= 0)
    expected = with_gradients(Masked.of(starts_of(segments)), inputs, real)
    for got, wanted in zip(with_gradients(Documents.of(segments), inputs, real), expected, strict=True):
        torch.testing.assert_close(got, wanted)


@pytest.mark.filterwarnings("ignore:.*flex_attention.*")  # it asks to be compiled, which a GPU does
def test_blocks_give_what_a_mask_gives() -> None:
    segments = make_batch(((100, 60, 90), (256,), (30,)), seq_len=256).segments
    inputs, real = arrays(*segments.shape), torch.from_numpy(segments >= 0)[..., None, None]
    without_gradients = [array.detach() for array in inputs]  # flex attention has none on a CPU
    layouts = BlockMasked(block_mask(starts_of(segments))), Masked.of(starts_of(segments))
    got, wanted = (layout.attend(*without_gradients) * real for layout in layouts)
    torch.testing.assert_close(got, wanted)


ROWS = st.lists(st.lists(st.integers(1, 300), max_size=6).map(tuple), min_size=1, max_size=3)


@given(rows=ROWS, extra=st.integers(1, 9), data=st.data())
@settings(max_examples=60, deadline=None)
def test_blocks_are_those_that_torch_finds_by_every_pair(
    rows: list[tuple[int, ...]], extra: int, data: st.DataObject
) -> None:
    segments = make_batch(tuple(rows), seq_len=max(sum(row) for row in rows) + extra).segments
    starts, seq_len = starts_of(segments), segments.shape[1]
    offset = data.draw(st.one_of(st.just(0), st.integers(0, seq_len - 1)), label="offset")
    num_queries = data.draw(st.one_of(st.none(), st.integers(1, seq_len - offset)), label="queries")
    ours = block_mask(starts, offset, num_queries)

    def sees(row: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        query = query + offset
        return (query >= key) & (starts[row, query] == starts[row, key])

    theirs = create_block_mask(sees, len(segments), None, num_queries or seq_len - offset, seq_len, device="cpu")
    assert ours.seq_lengths == theirs.seq_lengths
    for kind in ("kv", "full_kv", "q", "full_q"):
        assert torch.equal(getattr(ours, f"{kind}_num_blocks"), getattr(theirs, f"{kind}_num_blocks")), kind
        assert listed(ours, kind) == listed(theirs, kind), kind


def listed(blocks: BlockMask, kind: str) -> list[list[list[int]]]:
    """The blocks that are seen, row by row; what follows them in torch's lists is never read."""
    numbers, indices = getattr(blocks, f"{kind}_num_blocks"), getattr(blocks, f"{kind}_indices")
    assert indices.min() >= 0
    assert indices.max() < indices.shape[-1]
    pairs = zip(*(each[:, 0].tolist() for each in (numbers, indices)), strict=True)
    return [[order[:number] for number, order in zip(*row, strict=True)] for row in pairs]


@given(rows=ROWS, extra=st.integers(1, 9))
@settings(max_examples=10, deadline=None)
def test_blocks_have_the_form_that_torch_gives_its_own(rows: list[tuple[int, ...]], extra: int) -> None:
    """The kernels, backward too, are given tensors of the same types, shapes and strides."""
    segments = make_batch(tuple(rows), seq_len=max(sum(row) for row in rows) + extra).segments
    ours = block_mask(starts_of(segments))
    of_keys = (ours.kv_num_blocks, ours.kv_indices, ours.full_kv_num_blocks, ours.full_kv_indices)
    theirs = BlockMask.from_kv_blocks(*of_keys, BLOCK_SIZE=BLOCK, mask_mod=ours.mask_mod, seq_lengths=ours.seq_lengths)
    for name in BlockMask._TENSOR_ATTRS:
        one, other = getattr(ours, name), getattr(theirs, name)
        assert (one is None) == (other is None), name
        if one is not None:
            assert (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride()), name
    assert [getattr(ours, name) for name in BlockMask._CONTEXT_ATTRS] == [
        getattr(theirs, name) for name in BlockMask._CONTEXT_ATTRS
    ]


@pytest.mark.filterwarnings("ignore:.*flex_attention.*")  # it asks to be compiled, which a GPU does
@pytest.mark.parametrize("offset", [0, 100, 128])
def test_some_queries_of_a_row_gather_what_they_gather_among_all(offset: int) -> None:
    starts = starts_of(make_batch(((100, 60, 90), (256,), (200, 56)), seq_len=256).segments)
    queries, keys, values = (array.detach() for array in arrays(3, 256))
    some = slice(offset, offset + 120)
    got = BlockMasked(block_mask(starts, offset, 120)).attend(queries[:, some], keys, values)
    torch.testing.assert_close(got, Masked.of(starts).attend(queries, keys, values)[:, some])


def test_blocks_of_a_long_row_take_little_memory() -> None:
    segments = np.repeat(np.arange(64, dtype=np.int32), 2**17 // 64)[None]
    with Counted() as memory:
        blocks = block_mask(starts_of(segments))
    assert memory.peak < 1.01 * 4 * 4 * 2**20  # four lists of 2**10 x 2**10 blocks; all pairs of slots would be 2**34
    assert blocks.full_kv_num_blocks is not None
    assert int(blocks.full_kv_num_blocks.sum()) == 64 * sum(range(16))


def test_flex_attention_is_compiled_once_for_rows_of_one_length() -> None:
    torch.compiler.reset()
    counter = CompileCounter()
    attend = torch.compile(flex_attention, dynamic=False, backend=counter)
    for lengths in ((100, 60, 96), (256,), (1, 2, 253), (128, 128)):
        segments = make_batch((lengths,), seq_len=256).segments
        q, k, v = (array.detach().transpose(1, 2) for array in arrays(1, 256))
        attend(q, k, v, block_mask=block_mask(starts_of(segments)), enable_gqa=True)
    assert counter.frame_count == 1


def test_joined_documents_see_their_row_and_no_padding() -> None:
    segments = make_batch(((3, 5), (8,))).segments
    inputs = arrays(*segments.shape)
    layout = layout_of(segments, False, CPU)
    assert isinstance(layout, WholeRows)
    expected = by_hand(np.where(segments < 0, -1, 0).astype(np.int32), *inputs)
    torch.testing.assert_close(layout.attend(*inputs)[:, :8], expected[:, :8])


def test_rows_of_one_document_are_taken_whole() -> None:
    assert layout_of(make_batch(((16,), (16,))).segments, True, CPU) == WholeRows()
    assert layout_of(make_batch(((16,), (9,))).segments, True, CPU) == Documents((16, 9, 7), (False, False, True))


def test_a_gpu_takes_documents_with_padding_after_them_whole_and_masks_all_else() -> None:
    gpu = torch.device("cuda")
    assert layout_of(make_batch(((16,), (9,), (1,))).segments, True, gpu) == WholeRows()
    assert layout_of(make_batch(((16,), (9, 2))).segments, True, gpu) is None


def test_padding_before_a_token_is_our_own_mistake() -> None:
    with pytest.raises(AssertionError, match="padding comes last"):
        layout_of(np.array([[0, -1, 1]], np.int32), True, CPU)
