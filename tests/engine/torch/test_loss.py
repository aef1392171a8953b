"""The sliced loss is the direct one, backward too."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from trivium.engine.base import Direction
from trivium.engine.torch import loss
from trivium.engine.torch.compare import Penalty, PolicySums
from trivium.engine.torch.loss import (
    Losses,
    LossTargets,
    Objective,
    ReferenceStates,
    losses_and_their_gradient,
    slice_tokens,
    sliced_loss,
)
from trivium.engine.torch.tensor_parallel.axis import Columns

TOKENS, WIDTH, VOCAB, PADDED = 23, 8, 50, 128
IGNORED = -100
DIRECTIONS: list[Direction] = ["forward", "reverse", "nll_gap"]


@pytest.fixture(autouse=True)
def _many_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss, "slice_tokens", lambda _device, _vocab: 5)


def inputs(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    random = torch.Generator().manual_seed(0)
    hidden = torch.randn(TOKENS, WIDTH, generator=random, dtype=dtype).requires_grad_()
    weight = torch.randn(PADDED, WIDTH, generator=random, dtype=dtype).requires_grad_()
    targets = torch.randint(0, VOCAB, (TOKENS,), generator=random)
    targets[3:9] = IGNORED
    return hidden, weight, targets


def loss_targets(targets: Tensor) -> LossTargets:
    at = (targets != IGNORED).nonzero().squeeze(1)
    return LossTargets(targets[at], None if len(at) == len(targets) else at)


def direct(hidden: Tensor, weight: Tensor, targets: Tensor, objective: Objective) -> Losses:
    logits = (hidden @ weight[:VOCAB].T).float()
    nats = cross_entropy(logits, targets, ignore_index=IGNORED, reduction="none")
    z = torch.where(targets == IGNORED, 0, logits.logsumexp(1).square())
    return Losses(objective.scale * (nats.sum() + objective.z_loss * z.sum()), nats, z)


@pytest.mark.parametrize("objective", [Objective(), Objective(scale=0.01, z_loss=0.1)])
@pytest.mark.parametrize("all_count", [True, False])
def test_losses_and_gradients_are_those_of_whole_logits(objective: Objective, all_count: bool) -> None:
    hidden, weight, targets = inputs(torch.float32)
    targets = targets.clamp(min=0) if all_count else targets
    got = sliced_loss(hidden, weight, loss_targets(targets), VOCAB, objective)
    wanted = direct(hidden, weight, targets, objective)
    for part in ("objective", "nats", "z"):
        torch.testing.assert_close(getattr(got, part), getattr(wanted, part))
    gradients = torch.autograd.grad(2 * got.objective, (hidden, weight))
    expected = torch.autograd.grad(2 * wanted.objective, (hidden, weight))
    torch.testing.assert_close(gradients, expected, rtol=1e-4, atol=1e-6)
    assert not gradients[1][VOCAB:].any()


@pytest.mark.parametrize("direction", [None, *DIRECTIONS])
@pytest.mark.parametrize("all_count", [True, False])
def test_weights_multiply_all_terms_of_a_token(direction: Direction | None, all_count: bool) -> None:
    """The gradient of a weighted sum is the sum of the gradients of tokens of each weight, weighted."""
    hidden, weight, targets = inputs(torch.float32)
    targets = targets.clamp(min=0) if all_count else targets
    reference = () if direction is None else (reference_states(torch.float32),)
    objective = Objective(0.01, 0.1, () if direction is None else (Penalty(0.7, direction),))
    by_state = torch.tensor([0.25, 2.0]).repeat(TOKENS)[:TOKENS]
    plain = loss_targets(targets)
    weighted = replace(plain, weight_bits=(by_state if plain.at is None else by_state[plain.at]).view(torch.int32))
    got = sliced_loss(hidden, weight, weighted, VOCAB, objective, reference)
    gradients = torch.autograd.grad(got.objective, (hidden, weight))
    total, expected = torch.zeros(()), [torch.zeros_like(hidden), torch.zeros_like(weight)]
    for value in (0.25, 2.0):
        of_value = loss_targets(targets.where(by_state == value, IGNORED))
        part = sliced_loss(hidden, weight, of_value, VOCAB, objective, reference)
        total = total + value * part.objective.detach()
        for whole, each in zip(expected, torch.autograd.grad(part.objective, (hidden, weight)), strict=True):
            whole += value * each
    torch.testing.assert_close(got.objective.detach(), total)
    torch.testing.assert_close(gradients, tuple(expected), rtol=1e-4, atol=1e-6)


def test_where_no_token_counts_all_is_zero() -> None:
    hidden, weight, targets = inputs(torch.float32)
    got = sliced_loss(hidden, weight, loss_targets(torch.full_like(targets, IGNORED)), VOCAB, Objective())
    got.objective.backward()  # type: ignore[no-untyped-call]
    assert got.objective.item() == 0
    for tensor in (hidden, weight):
        assert tensor.grad is not None
        assert not tensor.grad.any()


def test_logits_of_any_size_overflow_nothing() -> None:
    hidden, weight, targets = inputs(torch.float32)
    got = sliced_loss(hidden * 1e4, weight, loss_targets(targets), VOCAB, Objective())
    (gradient,) = torch.autograd.grad(got.objective, hidden)
    assert got.nats.isfinite().all()
    assert gradient.isfinite().all()


def test_bfloat16_states_have_float32_losses() -> None:
    hidden, weight, targets = inputs(torch.float32)
    wanted = direct(hidden, weight, targets, Objective())
    got = sliced_loss(hidden.bfloat16(), weight, loss_targets(targets), VOCAB, Objective())
    assert got.nats.dtype == torch.float32
    torch.testing.assert_close(got.nats, wanted.nats, rtol=2e-2, atol=5e-2)
    (gradient,) = torch.autograd.grad(got.objective, weight)
    (expected,) = torch.autograd.grad(wanted.objective, weight)
    assert gradient.dtype == torch.float32
    torch.testing.assert_close(gradient, expected, rtol=5e-2, atol=5e-2)


def test_without_gradients_none_are_made() -> None:
    hidden, weight, targets = inputs(torch.float32)
    with torch.no_grad():
        got = sliced_loss(hidden, weight, loss_targets(targets), VOCAB, Objective())
    assert not got.objective.requires_grad


def test_no_more_than_a_slice_of_logits_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def spy(logits: Tensor, *rest: Any) -> PolicySums:
        seen.append(tuple(logits.shape))
        return plain(logits, *rest)

    plain = loss.losses_and_their_gradient
    monkeypatch.setattr(loss, "losses_and_their_gradient", spy)
    hidden, weight, targets = inputs(torch.float32)
    sliced_loss(hidden, weight, loss_targets(targets), VOCAB, Objective())
    assert seen == [(5, PADDED)] * 3 + [(2, PADDED)]


def reference_states(dtype: torch.dtype = torch.float32, seed: int = 1) -> ReferenceStates:
    random = torch.Generator().manual_seed(seed)
    hidden, weight = (torch.randn(rows, WIDTH, generator=random).to(dtype) for rows in (TOKENS, PADDED))
    return ReferenceStates(hidden, weight)


def direct_kl(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    objective: Objective,
    references: Sequence[ReferenceStates],
) -> Losses:
    """From whole logits, by the formulas of a textbook."""
    plain = direct(hidden, weight, targets, replace(objective, z_loss=0.0))
    ours = (hidden @ weight[:VOCAB].T).float()
    total = objective.cross_entropy * plain.objective + objective.scale * objective.z_loss * plain.z.sum()
    kls, nats = [], []
    for reference, penalty in zip(references, objective.penalties, strict=True):
        theirs = (reference.hidden @ reference.unembedding[:VOCAB].T).float()
        nats.append(cross_entropy(theirs, targets, ignore_index=IGNORED, reduction="none"))
        kls.append(torch.where(targets == IGNORED, 0, textbook_kl(ours, theirs, plain.nats - nats[-1], penalty)))
        total = total + objective.scale * penalty.beta * kls[-1].sum()
    return Losses(total, plain.nats, plain.z, tuple(kls), tuple(nats))


def textbook_kl(ours: Tensor, theirs: Tensor, nll_gap: Tensor, penalty: Penalty) -> Tensor:
    """By token, from logits; with top_k of classes: each of the teacher's k most likely tokens, and all others."""
    log_p, log_q = ((logits / penalty.temperature).log_softmax(1) for logits in (ours, theirs))
    if penalty.direction == "nll_gap":
        return nll_gap
    if penalty.direction == "reverse":
        log_p, log_q = log_q, log_p
    if penalty.top_k is not None:
        order = theirs.argsort(1, descending=True)
        log_p, log_q = (classes(each.gather(1, order), penalty.top_k) for each in (log_p, log_q))
    return penalty.temperature**2 * (log_q.exp() * (log_q - log_p)).sum(1)


def classes(log_probabilities: Tensor, top_k: int) -> Tensor:
    first, rest = log_probabilities[:, :top_k], log_probabilities[:, top_k:]
    return torch.cat((first, rest.logsumexp(1, keepdim=True)), dim=1)


def assert_textbook(objective: Objective, references: Sequence[ReferenceStates], all_count: bool) -> None:
    hidden, weight, targets = inputs(torch.float32)
    targets = targets.clamp(min=0) if all_count else targets
    got = sliced_loss(hidden, weight, loss_targets(targets), VOCAB, objective, references)
    wanted = direct_kl(hidden, weight, targets, objective, references)
    for part in ("objective", "nats", "z", "reference_nats", "kl"):
        torch.testing.assert_close(getattr(got, part), getattr(wanted, part), rtol=1e-5, atol=1e-5)
    gradients = torch.autograd.grad(2 * got.objective, (hidden, weight))
    expected = torch.autograd.grad(2 * wanted.objective, (hidden, weight))
    torch.testing.assert_close(gradients, expected, rtol=1e-4, atol=1e-6)
    assert not gradients[1][VOCAB:].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("z_loss", [0.0, 0.1])
@pytest.mark.parametrize("all_count", [True, False])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_kl_and_its_gradients_are_those_of_whole_logits(
    direction: Direction, all_count: bool, z_loss: float, dtype: torch.dtype
) -> None:
    assert_textbook(Objective(0.01, z_loss, (Penalty(0.7, direction),)), [reference_states(dtype)], all_count)


@pytest.mark.parametrize("cross_entropy", [1.0, 0.3, 0.0])
@pytest.mark.parametrize("temperature", [1.0, 2.5, 0.5])
@pytest.mark.parametrize("top_k", [None, 1, 7, VOCAB - 1])
def test_a_teachers_term_and_its_gradients_are_those_of_whole_logits(
    top_k: int | None, temperature: float, cross_entropy: float
) -> None:
    penalty = Penalty(0.7, temperature=temperature, top_k=top_k)
    assert_textbook(Objective(0.01, 0.1, (penalty,), cross_entropy), [reference_states()], all_count=False)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_two_references_add_up(direction: Direction) -> None:
    penalties = (Penalty(0.3, direction), Penalty(0.6, temperature=2.0, top_k=5))
    assert_textbook(Objective(0.01, 0.0, penalties, 0.4), [reference_states(), reference_states(seed=2)], False)


def test_a_teacher_who_is_certain_overflows_nothing() -> None:
    hidden, weight, targets = inputs(torch.float32)
    for size in (1e4, -1e4):
        reference = ReferenceStates(size * hidden.detach(), weight.detach())
        objective = Objective(penalties=(Penalty(1.0, temperature=0.5, top_k=3),))
        got = sliced_loss(hidden * 1e4, weight, loss_targets(targets), VOCAB, objective, [reference])
        (gradient,) = torch.autograd.grad(got.objective, hidden)
        assert got.kl[0].isfinite().all()
        assert gradient.isfinite().all()


@pytest.mark.parametrize("frozen", ["hidden", "weight"])
def test_what_is_frozen_has_no_gradient_and_the_other_the_same(frozen: str) -> None:
    hidden, weight, targets = inputs(torch.float32)
    given = {"hidden": hidden, "weight": weight}
    whole = sliced_loss(hidden, weight, loss_targets(targets), VOCAB, Objective())
    whole.objective.backward()  # type: ignore[no-untyped-call]
    trained = {name: each.detach().requires_grad_(name != frozen) for name, each in given.items()}
    part = sliced_loss(trained["hidden"], trained["weight"], loss_targets(targets), VOCAB, Objective())
    part.objective.backward()  # type: ignore[no-untyped-call]
    assert trained.pop(frozen).grad is None
    for name, each in trained.items():
        torch.testing.assert_close(each.grad, given[name].grad, rtol=0, atol=0)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_at_the_reference_itself_kl_and_its_gradient_are_zero(direction: Direction) -> None:
    hidden, weight, targets = inputs(torch.float32)
    reference = ReferenceStates(hidden.detach(), weight.detach())
    plain = sliced_loss(hidden, weight, loss_targets(targets), VOCAB, Objective())
    gradients = torch.autograd.grad(plain.objective, (hidden, weight))
    got = sliced_loss(
        hidden, weight, loss_targets(targets), VOCAB, Objective(penalties=(Penalty(3.0, direction),)), [reference]
    )
    torch.testing.assert_close(got.kl[0], torch.zeros(TOKENS), rtol=0, atol=1e-6)
    times = 4.0 if direction == "nll_gap" else 1.0
    for own, penalised in zip(gradients, torch.autograd.grad(got.objective, (hidden, weight)), strict=True):
        torch.testing.assert_close(penalised, times * own, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_only_the_gap_of_token_losses_has_a_multiple_of_the_plain_gradient(direction: Direction) -> None:
    hidden, weight, targets = inputs(torch.float32)
    plain = sliced_loss(hidden, weight, loss_targets(targets), VOCAB, Objective())
    objective = Objective(penalties=(Penalty(0.5, direction),))
    got = sliced_loss(hidden, weight, loss_targets(targets), VOCAB, objective, [reference_states()])
    (own,) = torch.autograd.grad(plain.objective, weight)
    (penalised,) = torch.autograd.grad(got.objective, weight)
    cosine = torch.cosine_similarity(own.flatten(), penalised.flatten(), dim=0).item()
    if direction == "nll_gap":
        torch.testing.assert_close(penalised, 1.5 * own, rtol=1e-5, atol=1e-6)
    else:
        assert cosine < 0.999


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_kl_of_logits_of_any_size_overflows_nothing(direction: Direction) -> None:
    hidden, weight, targets = inputs(torch.float32)
    reference = ReferenceStates(-1e4 * hidden.detach(), weight.detach())
    objective = Objective(penalties=(Penalty(1.0, direction),))
    got = sliced_loss(hidden * 1e4, weight, loss_targets(targets), VOCAB, objective, [reference])
    (gradient,) = torch.autograd.grad(got.objective, hidden)
    assert got.kl[0].isfinite().all()
    assert gradient.isfinite().all()


def test_what_pads_the_references_vocabulary_never_counts() -> None:
    hidden, weight, targets = inputs(torch.float32)
    objective, clean, dirty = Objective(penalties=(Penalty(1.0),)), reference_states(), reference_states()
    dirty.unembedding[VOCAB:] = torch.nan
    one, other = (
        sliced_loss(hidden, weight, loss_targets(targets), VOCAB, objective, [each]) for each in (clean, dirty)
    )
    assert one.objective == other.objective
    gradients = [torch.autograd.grad(each.objective, (hidden, weight)) for each in (one, other)]
    torch.testing.assert_close(gradients[0], gradients[1], rtol=0, atol=0)


def test_no_more_than_a_slice_of_either_logits_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def spy(logits: Tensor, targets: Columns, objective: Objective, compared: Any, *rest: Any) -> PolicySums:
        seen.append((tuple(logits.shape), tuple(compared[0].reference.shape)))
        return losses_and_their_gradient(logits, targets, objective, compared, *rest)

    monkeypatch.setattr(loss, "losses_and_their_gradient", spy)
    hidden, weight, targets = inputs(torch.float32)
    objective = Objective(penalties=(Penalty(1.0),))
    sliced_loss(hidden, weight, loss_targets(targets), VOCAB, objective, [reference_states()])
    assert seen == [((5, PADDED), (5, PADDED))] * 3 + [((2, PADDED), (2, PADDED))]


@pytest.mark.parametrize(
    ("device", "vocab", "tokens"),
    [
        ("cpu", 8192, 1024),
        ("cpu", 128_256, 512),
        ("cuda", 128_256, 2048),
        ("cuda", 262_144, 2048),
        ("cuda", 128_256 // 8, 8192),
        ("mps", 50_304, 5120),
    ],
)
def test_a_slice_is_as_long_as_its_device_and_vocabulary_want(device: str, vocab: int, tokens: int) -> None:
    assert slice_tokens(device, vocab) == tokens
