"""Which slots each rank has, and whether a document has slots of two."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.support.batches import make_batch
from trivium.engine.torch.context_parallel.slots import SlotShare
from trivium.rows.batch import IGNORED, PADDING

RANKS, SLOTS = st.integers(2, 5), st.integers(1, 70)
LENGTHS = st.lists(st.integers(1, 20), min_size=1, max_size=8)


def owners(ranks: int, seq_len: int) -> list[int]:
    """The rank of every slot."""
    found = [-1] * seq_len
    for rank in range(ranks):
        for slot in SlotShare(rank, ranks, seq_len).of(np.arange(seq_len)[None], -1)[0].tolist():
            if slot >= 0:
                assert found[slot] == -1, "no slot is two ranks'"
                found[slot] = rank
    return found


def test_a_rank_has_a_stretch_from_either_end() -> None:
    assert owners(3, 12) == [0, 0, 1, 1, 2, 2, 2, 2, 1, 1, 0, 0]
    assert owners(2, 6) == [0, 0, 1, 1, 1, 1]  # and the last stretch is padding


@given(RANKS, SLOTS)
def test_every_slot_is_one_ranks_and_all_have_as_many(ranks: int, seq_len: int) -> None:
    assert -1 not in owners(ranks, seq_len)
    share = SlotShare(0, ranks, seq_len)
    assert share.padded_len >= seq_len > share.padded_len - 2 * ranks


@given(RANKS, LENGTHS)
def test_what_is_sent_depends_on_documents_with_slots_of_two_ranks(ranks: int, lengths: list[int]) -> None:
    seq_len = sum(lengths) + 3
    batch = make_batch((tuple(lengths),), seq_len=seq_len)
    rank_of, documents = owners(ranks, seq_len), batch.segments[0].tolist()
    found = {(document, rank) for document, rank in zip(documents, rank_of, strict=True) if document != PADDING}
    crosses = len(found) > len({document for document, _ in found})
    assert all(SlotShare(rank, ranks, seq_len).crosses(batch.segments) == crosses for rank in range(ranks))


def test_slots_that_only_make_parts_even_count_for_nothing() -> None:
    part = SlotShare(0, 2, 6).of_batch(make_batch(((6,),), seq_len=6))
    assert part.targets[0, 2:].tolist() == [IGNORED] * 2
    assert part.segments[0].tolist() == [0, 0, PADDING, PADDING]
    assert part.positions[0].tolist() == [0, 1, 0, 0]


def test_joined_documents_are_one_that_counts_through_the_row() -> None:
    batch = make_batch(((2, 3),), seq_len=6).joined()
    assert batch.segments[0].tolist() == [0, 0, 0, 0, 0, PADDING]
    assert batch.positions[0].tolist() == [0, 1, 2, 3, 4, 5]
