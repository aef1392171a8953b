"""Hidden states and targets -> cross-entropy by token, and KL to a reference's hidden states, in slices.

A slice's logits exist once, in float32, and are turned in place into their own gradient while they are still
in the cache; the gradients of the hidden states and of the unembedding are finished when the forward pass is.
Whatever the batch, no more than SLICE_LOGITS of them (or 512 tokens') are held. Against `cross_entropy` on
whole logits at 4096 tokens and a vocabulary of 8192: 0.6 of the time, and 32 MB where that holds 400.
Tokens that do not count in the loss cost nothing. With a reference a slice holds its logits too, and
once their difference. All slices use the same memory: to touch fresh pages for each costs a tenth of the loss.

The penalty is over the whole vocabulary, in float32, with p the policy's probabilities and q the reference's:

    forward    KL(q || p) = sum q (log q - log p)      gradient by logit  p - q
    reverse    KL(p || q) = sum p (log p - log q)      gradient by logit  p (log p - log q - KL)
    nll_gap    log q - log p of the target alone       gradient by logit  p - one_hot

The last one's gradient is the cross-entropy's own: beside it, it multiplies the gradient by 1 + beta and holds
the policy to nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trivium.engine.base import Direction, FrozenStates, LossBatch, TokenLosses, losses_and_figures
from trivium.errors import UsageError

SLICE_LOGITS = 2**23
MIN_SLICE_TOKENS = 512  # each slice passes once over the unembedding's gradient: thinner ones are bound by memory


@dataclass(frozen=True, slots=True)
class Penalty:
    """What leaving the reference costs."""

    beta: float
    direction: Direction = "forward"


@dataclass(frozen=True, slots=True)
class Objective:
    """What is minimised: `scale` times the sum of the terms over the tokens that count.

    They are the cross-entropy, z_loss * log(sum exp)^2, and the penalty where a reference is given.
    """

    scale: float = 1.0  # one over the loss tokens of the whole batch
    z_loss: float = 0.0
    penalty: Penalty | None = None
    token_losses: TokenLosses | None = None  # the user's own, alone, in place of all terms


@dataclass(frozen=True, slots=True)
class Compared:
    """A slice of tokens under both models, (tokens,) each."""

    nats: Tensor
    log_sums: Tensor
    reference_nats: Tensor
    kl: Tensor


def kl_and_its_gradient(
    logits: Tensor, reference: Tensor, targets: Tensor, objective: Objective, room: Tensor
) -> Compared:
    """Leaves the gradient of scale * (nats + z_loss * log_sum^2 + beta * kl) in `logits`.

    `reference` is used up, and so is `room`, which has its shape.
    """
    scale, z_loss, penalty = objective.scale, objective.z_loss, objective.penalty
    assert penalty is not None, "a reference is for a penalty"
    of_targets, reference_of_targets = logits.gather(1, targets), reference.gather(1, targets)
    gap = None if penalty.direction == "nll_gap" else torch.sub(reference, logits, out=room)
    sums, log_sums = exponentials(logits)
    reference_sums, reference_log_sums = exponentials(reference)
    nats, reference_nats = log_sums - of_targets, reference_log_sums - reference_of_targets
    beta, one_hot = penalty.beta, scale
    of_softmax = scale * (1 + 2 * z_loss * log_sums)  # what p is multiplied by in the gradient
    if gap is None:
        kl = nats - reference_nats
        one_hot = scale * (1 + beta)
        logits.mul_((of_softmax + scale * beta) / sums)
    elif penalty.direction == "forward":
        kl = _mean(reference, gap, reference_sums) + log_sums - reference_log_sums
        logits.mul_((of_softmax + scale * beta) / sums)
        logits.addcmul_(reference, -scale * beta / reference_sums)
    else:
        # log p - log q = (reference_log_sum - log_sum) - gap, so that log p - log q - KL = mean gap - gap.
        mean_gap = _mean(logits, gap, sums)
        kl = reference_log_sums - log_sums - mean_gap
        logits.div_(sums).mul_(gap.mul_(-scale * beta).add_(of_softmax + scale * beta * mean_gap))
    logits.scatter_(1, targets, logits.gather(1, targets) - one_hot)
    return Compared(*(part.squeeze(1) for part in (nats, log_sums, reference_nats, kl)))


def exponentials(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Turns logits in place into exponentials that are 1 at most; their sums, and the log-sums of the logits."""
    largest = logits.amax(dim=1, keepdim=True)
    sums = logits.sub_(largest).exp_().sum(dim=1, keepdim=True)
    return sums, largest + sums.log()


def _mean(exponents: Tensor, values: Tensor, sums: Tensor) -> Tensor:
    """Of values under the probabilities exponents / sums, by token: a product without an array of products."""
    return torch.bmm(exponents[:, None], values[:, :, None]).squeeze(2) / sums


@dataclass(frozen=True, slots=True)
class ReferenceStates:
    """What a frozen model makes of the same tokens; None of it has a gradient."""

    hidden: Tensor  # (tokens, width)
    unembedding: Tensor  # (padded vocabulary, width)


class Losses(NamedTuple):  # a tuple, so that FSDP finds the tensors in it
    """The objective, to go backward from, and its parts by token in nats (0 where a token does not count)."""

    objective: Tensor  # ()
    nats: Tensor  # (tokens,) plain cross-entropy
    z: Tensor  # (tokens,) squared log of the softmax's sum
    reference_nats: Tensor | None = None  # (tokens,) the reference's plain cross-entropy
    kl: Tensor | None = None  # (tokens,) the penalty, before its weight
    figures: Mapping[str, Tensor] | None = None  # (loss tokens,) of a loss of the user's own, beside it


@dataclass(frozen=True, slots=True)
class LossTargets:
    """Tokens to predict, and the indices of the hidden states that predict them; None means all states, in order."""

    tokens: Tensor  # (loss tokens,)
    at: Tensor | None  # (loss tokens,)


def own_losses(
    hidden: Tensor,
    lm_head: Tensor,
    loss_targets: LossTargets,
    places: Sequence[Tensor],
    vocab: int,
    objective: Objective,
    reference: ReferenceStates | None = None,
) -> Losses:
    """What the user's function makes of the tokens that count; `places` are tokens, positions and documents (B, T)."""
    assert objective.token_losses is not None, "there is a function"
    at = slice(None) if loss_targets.at is None else loss_targets.at
    frozen = None
    if reference is not None and objective.penalty is not None:
        matrix = reference.unembedding.to(reference.hidden.dtype)[:vocab]
        frozen = FrozenStates(reference.hidden[at], matrix, objective.penalty.beta)
    tokens, positions, documents = (each.flatten()[at] for each in places)
    batch = LossBatch(loss_targets.tokens, tokens, positions, documents, frozen)
    found = objective.token_losses(hidden[at], lm_head.to(hidden.dtype)[:vocab], batch)
    losses, figures = losses_and_figures(found, len(loss_targets.tokens))
    if torch.is_grad_enabled() and not losses.requires_grad:
        what = "the function of Trainer.loss() returned losses without a gradient"
        raise UsageError(f"{what}. Compute them from hidden and lm_head, without detach() and torch.no_grad().")
    nats = hidden.new_zeros(len(hidden), dtype=torch.float32)
    nats[at] = losses.detach().float()
    by_token = {name: figure.detach().float() for name, figure in figures.items()}
    return Losses(objective.scale * losses.float().sum(), nats, torch.zeros_like(nats), figures=by_token)


def sliced_loss(
    hidden: Tensor,
    unembedding: Tensor,
    loss_targets: LossTargets,
    vocab: int,
    objective: Objective,
    reference: ReferenceStates | None = None,
) -> Losses:
    """Losses of hidden states (tokens, width) under an unembedding (padded vocabulary, width)."""
    assert (objective.penalty is None) == (reference is None), "a penalty is measured to a reference"
    wants_gradient = torch.is_grad_enabled() and (hidden.requires_grad or unembedding.requires_grad)
    parts = _SlicedLoss.apply(  # type: ignore[no-untyped-call]
        hidden, unembedding, loss_targets, vocab, objective, reference, wants_gradient
    )
    return Losses(*parts)


class _SlicedLoss(torch.autograd.Function):
    """Computes gradients in the forward pass; the backward pass hands them over, scaled, once."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        unembedding: Tensor,
        loss_targets: LossTargets,
        vocab: int,
        objective: Objective,
        reference: ReferenceStates | None,
        wants_gradient: bool,
    ) -> tuple[Tensor, ...]:
        weight = unembedding.to(hidden.dtype)
        nats = hidden.new_zeros(len(hidden), dtype=torch.float32)
        z = torch.zeros_like(nats)
        hidden_gradient = torch.zeros_like(hidden) if wants_gradient else None
        weight_gradient = torch.zeros_like(unembedding) if wants_gradient else None
        size = max(MIN_SLICE_TOKENS, SLICE_LOGITS // len(weight))
        room = nats.new_empty(min(size, len(loss_targets.tokens)), len(weight))
        anchor = None
        if reference is not None:
            own = nats.new_empty(len(room), len(reference.unembedding))
            anchor = _Anchor(reference, torch.zeros_like(nats), torch.zeros_like(nats), own, torch.empty_like(own))
        for start in range(0, len(loss_targets.tokens), size):
            targets = loss_targets.tokens[start : start + size, None]
            at = loss_targets.at
            here = slice(start, start + len(targets)) if at is None else at[start : start + size]
            states = hidden[here]
            logits = _logits(states, weight, room)
            if anchor is None:
                logits[:, vocab:] = -torch.inf
                nats[here], log_sum = _cross_entropy_and_its_gradient(logits, targets, objective)
            else:
                nats[here], log_sum = anchor.penalise(logits, targets, here, vocab, objective)
            z[here] = log_sum.square()
            if hidden_gradient is not None and weight_gradient is not None:
                gradient = logits.to(hidden.dtype)
                hidden_gradient[here] = gradient @ weight
                _add_product(weight_gradient, gradient.T, states)
        ctx.gradients = (hidden_gradient, weight_gradient)
        total = nats.sum() + objective.z_loss * z.sum()
        parts = [nats, z]
        if anchor is not None and objective.penalty is not None:
            total = total + objective.penalty.beta * anchor.kl.sum()
            parts += [anchor.nats, anchor.kl]
        ctx.mark_non_differentiable(*parts)
        return objective.scale * total, *parts

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        hidden_gradient, weight_gradient = (gradient.mul_(outer[0]) for gradient in ctx.gradients)
        del ctx.gradients  # they are the caller's now, and were changed in place: a second pass must fail
        return hidden_gradient, weight_gradient, None, None, None, None, None


@dataclass(frozen=True, slots=True)
class _Anchor:
    """A reference's states, and what is measured to them slice by slice."""

    states: ReferenceStates
    nats: Tensor  # (tokens,)
    kl: Tensor  # (tokens,)
    room: Tensor  # for a slice's logits
    gap: Tensor  # and for what they differ by

    def penalise(
        self, logits: Tensor, targets: Tensor, here: slice | Tensor, vocab: int, objective: Objective
    ) -> tuple[Tensor, Tensor]:
        """Losses and log-sums of a slice; leaves the objective's gradient where the logits were."""
        reference = _logits(self.states.hidden[here], self.states.unembedding, self.room)
        gap = self.gap[: len(logits), :vocab]
        found = kl_and_its_gradient(logits[:, :vocab], reference[:, :vocab], targets, objective, gap)
        logits[:, vocab:] = 0
        self.nats[here], self.kl[here] = found.reference_nats, found.kl
        return found.nats, found.log_sums


def _logits(states: Tensor, weight: Tensor, room: Tensor) -> Tensor:
    """In float32, in memory that is there already."""
    here = room[: len(states)]
    return torch.mm(states, weight.T, out=here) if states.dtype == here.dtype else here.copy_(states @ weight.T)


def _cross_entropy_and_its_gradient(logits: Tensor, targets: Tensor, objective: Objective) -> tuple[Tensor, Tensor]:
    """Losses and log-sums of a slice; leaves the objective's gradient where the logits were."""
    of_targets = logits.gather(1, targets)
    sums, log_sums = exponentials(logits)
    # d/dlogits of (log_sum - target + z_loss * log_sum^2) is softmax * (1 + 2 * z_loss * log_sum) - one_hot.
    logits.mul_(objective.scale * (1 + 2 * objective.z_loss * log_sums) / sums)
    logits.scatter_(1, targets, logits.gather(1, targets) - objective.scale)
    return (log_sums - of_targets).squeeze(1), log_sums.squeeze(1)


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """total += left @ right, without a second array where the types allow."""
    if total.dtype == left.dtype:
        total.addmm_(left, right)
    else:
        total += left @ right
