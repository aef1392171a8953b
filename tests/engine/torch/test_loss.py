"""The sliced loss is the direct one, backward too."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from trivium.engine.torch import loss
from trivium.engine.torch.loss import Learnt, Losses, Objective, sliced_loss

TOKENS, WIDTH, VOCAB, PADDED = 23, 8, 50, 128
IGNORED = -100


@pytest.fixture(autouse=True)
def _many_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss, "MIN_SLICE_TOKENS", 4)
    monkeypatch.setattr(loss, "SLICE_LOGITS", 5 * PADDED)


def inputs(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    random = torch.Generator().manual_seed(0)
    hidden = torch.randn(TOKENS, WIDTH, generator=random, dtype=dtype).requires_grad_()
    weight = torch.randn(PADDED, WIDTH, generator=random, dtype=dtype).requires_grad_()
    targets = torch.randint(0, VOCAB, (TOKENS,), generator=random)
    targets[3:9] = IGNORED
    return hidden, weight, targets


def learnt(targets: Tensor) -> Learnt:
    at = (targets != IGNORED).nonzero().squeeze(1)
    return Learnt(targets[at], None if len(at) == len(targets) else at)


def direct(hidden: Tensor, weight: Tensor, targets: Tensor, objective: Objective) -> Losses:
    logits = (hidden @ weight[:VOCAB].T).float()
    nats = cross_entropy(logits, targets, ignore_index=IGNORED, reduction="none")
    z = torch.where(targets == IGNORED, 0, logits.logsumexp(1).square())
    return Losses(objective.scale * (nats.sum() + objective.z_loss * z.sum()), nats, z)


@pytest.mark.parametrize("objective", [Objective(), Objective(scale=0.01, z_loss=0.1)])
@pytest.mark.parametrize("all_learnt", [True, False])
def test_losses_and_gradients_are_those_of_whole_logits(objective: Objective, all_learnt: bool) -> None:
    hidden, weight, targets = inputs(torch.float32)
    targets = targets.clamp(min=0) if all_learnt else targets
    got = sliced_loss(hidden, weight, learnt(targets), VOCAB, objective)
    wanted = direct(hidden, weight, targets, objective)
    for part in ("objective", "nats", "z"):
        torch.testing.assert_close(getattr(got, part), getattr(wanted, part))
    gradients = torch.autograd.grad(2 * got.objective, (hidden, weight))
    expected = torch.autograd.grad(2 * wanted.objective, (hidden, weight))
    torch.testing.assert_close(gradients, expected, rtol=1e-4, atol=1e-6)
    assert not gradients[1][VOCAB:].any()


def test_nothing_learnt_is_zero_and_no_nan() -> None:
    hidden, weight, targets = inputs(torch.float32)
    got = sliced_loss(hidden, weight, learnt(torch.full_like(targets, IGNORED)), VOCAB, Objective())
    got.objective.backward()  # type: ignore[no-untyped-call]
    assert got.objective.item() == 0
    for tensor in (hidden, weight):
        assert tensor.grad is not None
        assert not tensor.grad.any()


def test_logits_of_any_size_overflow_nothing() -> None:
    hidden, weight, targets = inputs(torch.float32)
    got = sliced_loss(hidden * 1e4, weight, learnt(targets), VOCAB, Objective())
    (gradient,) = torch.autograd.grad(got.objective, hidden)
    assert got.nats.isfinite().all()
    assert gradient.isfinite().all()


def test_bfloat16_states_have_float32_losses() -> None:
    hidden, weight, targets = inputs(torch.float32)
    wanted = direct(hidden, weight, targets, Objective())
    got = sliced_loss(hidden.bfloat16(), weight, learnt(targets), VOCAB, Objective())
    assert got.nats.dtype == torch.float32
    torch.testing.assert_close(got.nats, wanted.nats, rtol=2e-2, atol=5e-2)
    (gradient,) = torch.autograd.grad(got.objective, weight)
    (expected,) = torch.autograd.grad(wanted.objective, weight)
    assert gradient.dtype == torch.float32
    torch.testing.assert_close(gradient, expected, rtol=5e-2, atol=5e-2)


def test_without_gradients_none_are_made() -> None:
    hidden, weight, targets = inputs(torch.float32)
    with torch.no_grad():
        got = sliced_loss(hidden, weight, learnt(targets), VOCAB, Objective())
    assert not got.objective.requires_grad


def test_no_more_than_a_slice_of_logits_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def spy(logits: Tensor, targets: Tensor, objective: Objective) -> tuple[Tensor, Tensor]:
        seen.append(tuple(logits.shape))
        return plain(logits, targets, objective)

    plain = loss._cross_entropy_and_its_gradient
    monkeypatch.setattr(loss, "_cross_entropy_and_its_gradient", spy)
    hidden, weight, targets = inputs(torch.float32)
    sliced_loss(hidden, weight, learnt(targets), VOCAB, Objective())
    assert seen == [(5, PADDED)] * 3 + [(2, PADDED)]
