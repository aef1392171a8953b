"""Storages are counted from their allocation to their end, by kind; checked against sums that are done by hand."""

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from trivium.engine.torch.measure.storages import Storages

SIDE = 1024
MATRIX = SIDE * SIDE * 4


def held(storages: Storages) -> int:
    return sum(each.bytes for each in storages.each if each.died is None)


def test_a_storage_counts_once_until_its_last_tensor_is_gone() -> None:
    with FakeTensorMode(), Storages().counting() as storages:
        matrix = torch.empty(SIDE, SIDE)
        view = matrix[: SIDE // 2].T
        assert held(storages) == MATRIX
        del matrix
        assert held(storages) == MATRIX
        del view
        assert held(storages) == 0


def test_what_the_backward_pass_needs_is_held_until_it_is_over() -> None:
    with FakeTensorMode(), Storages().counting() as storages:
        left, right = (torch.empty(SIDE, SIDE, requires_grad=True) for _ in range(2))
        total = ((left @ right).exp() @ right).sum()
        assert held(storages) == 3 * MATRIX + 4  # exp keeps its result, which the second product shares
        total.backward()  # type: ignore[no-untyped-call]
        del total
        assert held(storages) == 4 * MATRIX  # two matrices and their gradients


def test_a_storage_that_is_resized_ends_and_begins_again() -> None:
    with FakeTensorMode(), Storages().counting() as storages:
        buffer = torch.empty(SIDE, SIDE)
        buffer.untyped_storage().resize_(0)
        assert held(storages) == 0
        buffer.untyped_storage().resize_(MATRIX)
        assert held(storages) == MATRIX
    assert [each.bytes for each in storages.each] == [MATRIX, MATRIX]


def test_kinds_are_what_tensors_are_marked_as() -> None:
    with FakeTensorMode(), Storages().counting() as storages:
        weight = torch.empty(SIDE, SIDE)
        with storages.all_are("mask"):
            mask = torch.empty(SIDE, SIDE)
        activation = torch.empty(SIDE, SIDE)
        storages.mark([weight], "weights")
    assert [each.kind for each in storages.each] == ["weights", "mask", "activations"]
    del mask, activation


def test_nothing_is_counted_while_counting_is_paused() -> None:
    with FakeTensorMode(), Storages().counting() as storages, storages.paused():
        matrix = torch.empty(SIDE, SIDE)
    assert not storages.each
    del matrix
