"""Every layout gives what an explicit mask gives, backward too."""

from typing import Any

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
from trivium.engine.torch import span_attention
from trivium.engine.torch.attention import (
    BLOCK,
    PLAIN,
    BlockMasked,
    ByWindow,
    Documents,
    Layout,
    Masked,
    WholeRows,
    block_mask,
    document_starts,
    layout_of,
    masked,
    within,
)
from trivium.engine.torch.span_attention import flash
from trivium.model.spec import AttentionSpec

CPU = torch.device("cpu")
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 8


def by_hand(
    segments: NDArray[np.int32], queries: Tensor, keys: Tensor, values: Tensor, how: AttentionSpec = PLAIN
) -> Tensor:
    """The definition: for every slot, softmax over the slots of its document, from its window's first to itself."""
    out = torch.zeros_like(queries)
    for row, slot in np.ndindex(segments.shape):
        first = 0 if how.window is None else max(0, slot - how.window + 1)
        seen = [other for other in range(first, slot + 1) if segments[row, other] == segments[row, slot]]
        for head in range(HEADS):
            shared = head // (HEADS // KV_HEADS)
            scores = keys[row, seen, shared] @ queries[row, slot, head] * (how.scale or HEAD_DIM**-0.5)
            if how.softcap is not None:
                scores = how.softcap * torch.tanh(scores / how.softcap)
            out[row, slot, head] = scores.softmax(0) @ values[row, seen, shared]
    return out


def starts_of(segments: NDArray[np.int32]) -> Tensor:
    return torch.from_numpy(document_starts(segments))


Arrays = tuple[Tensor, Tensor, Tensor]


def arrays(num_rows: int, seq_len: int) -> Arrays:
    random = torch.Generator().manual_seed(0)

    def some(heads: int) -> Tensor:
        return torch.randn(num_rows, seq_len, heads, HEAD_DIM, generator=random, requires_grad=True)

    return some(HEADS), some(KV_HEADS), some(KV_HEADS)


def with_gradients(layout: Layout, inputs: Arrays, where: Tensor, how: AttentionSpec = PLAIN) -> list[Tensor]:
    """What the layout gives at real tokens, and the gradients from there."""
    gathered = layout.attend(*inputs, how) * where[..., None, None]
    return [gathered, *torch.autograd.grad(gathered.square().sum(), inputs)]


def test_a_mask_gives_what_the_definition_says() -> None:
    segments = make_batch().segments
    inputs = arrays(*segments.shape)
    expected = by_hand(segments, *inputs)
    torch.testing.assert_close(Masked.of(starts_of(segments)).attend(*inputs), expected)


HOW = st.builds(
    AttentionSpec,
    window=st.one_of(st.none(), st.integers(1, 22)),
    scale=st.sampled_from([None, 0.2]),
    softcap=st.sampled_from([None, None, 1.5]),
)


@pytest.mark.parametrize("how", [AttentionSpec(3), AttentionSpec(scale=0.7), AttentionSpec(4, 0.5, 2.0)])
def test_a_mask_gives_what_the_definition_says_of_windows_scales_and_caps(how: AttentionSpec) -> None:
    segments = make_batch().segments
    inputs = arrays(*segments.shape)
    found = Masked.of(starts_of(segments), how.window).attend(*inputs, how)
    torch.testing.assert_close(found, by_hand(segments, *inputs, how))


@given(
    rows=st.lists(st.lists(st.integers(1, 9), max_size=4).map(tuple), min_size=1, max_size=3).filter(any).map(tuple),
    how=HOW,
    document_mask=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_windows_scales_and_caps_by_spans_are_those_of_a_mask(
    rows: tuple[tuple[int, ...], ...], how: AttentionSpec, document_mask: bool
) -> None:
    """Documents apart and joined, with padding, forward and backward."""
    segments = make_batch(rows, seq_len=max(sum(row) for row in rows) + len(rows) % 2).segments
    if not document_mask:
        segments = np.where(segments < 0, segments, 0).astype(np.int32)
    inputs, real = arrays(*segments.shape), torch.from_numpy(segments >= 0)
    layout = layout_of(segments, document_mask, CPU, (how,))
    assert layout is not None
    expected = with_gradients(Masked.of(starts_of(segments), how.window), inputs, real, how)
    for got, wanted in zip(with_gradients(layout, inputs, real, how), expected, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=3e-5)


def test_a_window_has_as_many_scores_as_its_slots_times_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of causal calls half the square is computed."""
    scores: list[float] = []

    def counted(q: Tensor, k: Tensor, v: Tensor, dropout: float, causal: bool, scale: float | None) -> Any:
        scores.append(q.shape[2] * k.shape[2] * (0.5 if causal else 1.0))
        return flash(q, k, v, dropout, causal, scale=scale)

    monkeypatch.setattr(span_attention, "flash", counted)
    queries, keys, values = (array.detach() for array in arrays(1, 1024))
    WholeRows().attend(queries, keys, values, AttentionSpec(32))
    assert sum(scores) < 1024 * 32
    assert max(scores) < 32 * 32


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
    queries, keys, values = (array.detach() for array in inputs)  # flex attention has no gradients on a CPU
    layouts = BlockMasked(block_mask(starts_of(segments))), Masked.of(starts_of(segments))
    got, wanted = (layout.attend(queries, keys, values) * real for layout in layouts)
    torch.testing.assert_close(got, wanted)


@pytest.mark.filterwarnings("ignore:.*flex_attention.*")  # it asks to be compiled, which a GPU does
@pytest.mark.parametrize("how", [AttentionSpec(100), AttentionSpec(7, 0.5), AttentionSpec(None, 0.3, 2.0)])
def test_blocks_give_what_a_mask_gives_of_windows_scales_and_caps(how: AttentionSpec) -> None:
    segments = make_batch(((100, 60, 90), (256,), (30,)), seq_len=256).segments
    queries, keys, values = (array.detach() for array in arrays(*segments.shape))
    starts, real = starts_of(segments), torch.from_numpy(segments >= 0)[..., None, None]
    layouts = BlockMasked(block_mask(within(starts, how.window)), how.window), Masked.of(starts, how.window)
    got, wanted = (layout.attend(queries, keys, values, how) * real for layout in layouts)
    torch.testing.assert_close(got, wanted)


ROWS = st.lists(st.lists(st.integers(1, 300), max_size=6).map(tuple), min_size=1, max_size=3)


@given(rows=ROWS, extra=st.integers(1, 9), data=st.data())
@settings(max_examples=60, deadline=None)
def test_blocks_are_those_that_torch_finds_by_every_pair(
    rows: list[tuple[int, ...]], extra: int, data: st.DataObject
) -> None:
    segments = make_batch(tuple(rows), seq_len=max(sum(row) for row in rows) + extra).segments
    window = data.draw(st.one_of(st.none(), st.integers(1, 400)), label="window")
    starts, seq_len = within(starts_of(segments), window), segments.shape[1]
    offset = data.draw(st.one_of(st.just(0), st.integers(0, seq_len - 1)), label="offset")
    num_queries = data.draw(st.one_of(st.none(), st.integers(1, seq_len - offset)), label="queries")
    ours = block_mask(starts, offset, num_queries)

    def sees(row: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        query = query + offset
        return (query >= key) & (key >= starts[row, query])

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


@pytest.mark.parametrize("kind", [AttentionSpec(8), AttentionSpec(softcap=3.0)])
def test_a_gpu_masks_whole_rows_where_a_layer_has_a_window_or_a_cap(kind: AttentionSpec) -> None:
    segments = make_batch(((16,), (16,))).segments
    assert layout_of(segments, True, torch.device("cuda"), (PLAIN, kind)) is None
    assert layout_of(segments, False, torch.device("cuda"), (PLAIN, kind)) is None
    assert layout_of(segments, True, torch.device("cuda"), (PLAIN, AttentionSpec(16))) == WholeRows()


def test_a_mask_is_made_once_for_each_window_and_serves_no_other() -> None:
    starts = starts_of(make_batch(((16,), (9, 2))).segments)
    layout = masked(starts, (PLAIN, AttentionSpec(4), AttentionSpec(4, 0.5)))
    assert isinstance(layout, ByWindow)
    assert set(layout.each) == {None, 4}
    queries, keys, values = (array.detach() for array in arrays(2, 16))
    torch.testing.assert_close(
        layout.attend(queries, keys, values, AttentionSpec(4)),
        Masked.of(starts, 4).attend(queries, keys, values, AttentionSpec(4)),
    )
    with pytest.raises(AssertionError, match="a mask has one window"):
        Masked.of(starts, 4).attend(queries, keys, values)


def test_padding_before_a_token_is_our_own_mistake() -> None:
    with pytest.raises(AssertionError, match="padding comes last"):
        layout_of(np.array([[0, -1, 1]], np.int32), True, CPU)
