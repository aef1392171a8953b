"""Hidden states and targets -> cross-entropy by token, and KL to a reference's hidden states, in slices.

A slice's logits exist once, in float32, and are turned in place into their own gradient while they are still
in the cache; the gradients of the hidden states and of the unembedding are finished when the forward pass is.
Whatever the batch, no more of them than `slice_tokens` says are held. Against `cross_entropy` on
whole logits at 4096 tokens and a vocabulary of 8192: 0.6 of the time, and 32 MB where that holds 400.
Tokens that do not count in the loss cost nothing. With a reference a slice holds its logits too, and
once their difference. All slices use the same memory: to touch fresh pages for each costs a tenth of the loss.

Ranks of the tensor axis have parts of the vocabulary. Each computes the logits of its own, and a slice takes two calls
between them: the largest logits, then all sums. The gradient of hidden states is each rank's summand.

The penalty is over the whole vocabulary, in float32, with p the policy's probabilities and q the reference's:

    forward    KL(q || p) = sum q (log q - log p)      gradient by logit  p - q
    reverse    KL(p || q) = sum p (log p - log q)      gradient by logit  p (log p - log q - KL)
    nll_gap    log q - log p of the target alone       gradient by logit  p - one_hot

The last one's gradient is the cross-entropy's own: beside it, it multiplies the gradient by 1 + beta and holds
the policy to nothing.

Logits may be scaled and capped (`LogitForm`): a cap costs one more slice of logits, which has the slopes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trivium.engine.base import Direction, FrozenStates, LossBatch, TokenLosses, losses_and_figures
from trivium.engine.torch.tensor_parallel.axis import ALONE, Columns, TensorAxis
from trivium.errors import UsageError

PADDING_LOGIT = -1e30  # finite, so that two of them do not differ by NaN


def slice_tokens(device: str, vocab: int) -> int:
    """Tokens in a slice, on a kind of device, of logits with this many columns.

    On a CPU a slice stays in the cache, but each one passes once over the unembedding's gradient: thinner ones than 512
    tokens are bound by memory. A GPU needs thousands of tokens to be busy: 1 GB of logits, in 2,048 to 8,192 tokens.
    """
    if device == "cpu":
        return max(512, 2**23 // vocab)
    return min(max(2048, 2**28 // vocab // 256 * 256), 8192)


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

    # One over the loss tokens of the whole batch, on many ranks over its slots; of a slice with weights, (tokens, 1).
    scale: float | Tensor = 1.0
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
    logits: Tensor, reference: Tensor, targets: Columns, objective: Objective, room: Tensor, axis: TensorAxis = ALONE
) -> Compared:
    """Leaves the gradient of scale * (nats + z_loss * log_sum^2 + beta * kl) in `logits`.

    `reference` is used up, and so is `room`, which has its shape. All three have this rank's part of the vocabulary.
    """
    scale, z_loss, penalty = objective.scale, objective.z_loss, objective.penalty
    assert penalty is not None, "a reference is for a penalty"
    of_targets, reference_of_targets = _at(targets, logits), _at(targets, reference)
    gap = None if penalty.direction == "nll_gap" else torch.sub(reference, logits, out=room)
    largest, reference_largest = axis.maximum(*(each.amax(dim=1, keepdim=True) for each in (logits, reference)))
    sums, reference_sums = exponentials(logits, largest), exponentials(reference, reference_largest)
    under = reference if penalty.direction == "forward" else logits
    total_gap = torch.zeros_like(sums) if gap is None else _product(under, gap)
    sums, reference_sums, of_targets, reference_of_targets, total_gap = axis.sums(
        sums, reference_sums, of_targets, reference_of_targets, total_gap
    )
    log_sums, reference_log_sums = largest + sums.log(), reference_largest + reference_sums.log()
    nats, reference_nats = log_sums - of_targets, reference_log_sums - reference_of_targets
    beta, one_hot = penalty.beta, scale
    of_softmax = scale * (1 + 2 * z_loss * log_sums)  # what p is multiplied by in the gradient
    if gap is None:
        kl = nats - reference_nats
        one_hot = scale * (1 + beta)
        logits.mul_((of_softmax + scale * beta) / sums)
    elif penalty.direction == "forward":
        kl = total_gap / reference_sums + log_sums - reference_log_sums
        logits.mul_((of_softmax + scale * beta) / sums)
        logits.addcmul_(reference, -scale * beta / reference_sums)
    else:
        # log p - log q = (reference_log_sum - log_sum) - gap, so that log p - log q - KL = mean gap - gap.
        mean_gap = total_gap / sums
        kl = reference_log_sums - log_sums - mean_gap
        logits.div_(sums).mul_(gap.mul_(-scale * beta).add_(of_softmax + scale * beta * mean_gap))
    _subtract(targets, logits, one_hot)
    return Compared(*(part.squeeze(1) for part in (nats, log_sums, reference_nats, kl)))


def exponentials(logits: Tensor, largest: Tensor) -> Tensor:
    """Turns logits in place into exponentials that are 1 at most; their sums."""
    return logits.sub_(largest).exp_().sum(dim=1, keepdim=True)


def _product(exponents: Tensor, values: Tensor) -> Tensor:
    """Sums of products by token, without an array of products."""
    return torch.bmm(exponents[:, None], values[:, :, None]).squeeze(2)


def _at(targets: Columns, logits: Tensor) -> Tensor:
    """The targets' logits, 0 where the target is in the part of another rank."""
    return targets.own(logits.gather(1, targets.at))


def _subtract(targets: Columns, logits: Tensor, value: float | Tensor) -> None:
    """Subtract a number, or one for each token, at the targets."""
    lower = logits.gather(1, targets.at)
    logits.scatter_(1, targets.at, lower - targets.own(torch.ones_like(lower) * value))


@dataclass(frozen=True, slots=True)
class ReferenceStates:
    """What a frozen model makes of the same tokens; None of it has a gradient."""

    hidden: Tensor  # (tokens, width)
    unembedding: Tensor  # (padded vocabulary, width), or this rank's rows of it


@dataclass(frozen=True, slots=True)
class LogitForm:
    """What logits are, of products l of hidden states and unembedding: scale * l, capped to c tanh(scale * l / c)."""

    scale: float = 1.0
    softcap: float | None = None

    def apply(self, products: Tensor) -> Tensor:
        """Logits, in place."""
        if self.scale != 1:
            products.mul_(self.scale)
        if self.softcap is not None:
            products.div_(self.softcap).tanh_().mul_(self.softcap)
        return products

    def slopes(self, logits: Tensor, known: int) -> Tensor | None:
        """By how much capped logits grow with the products, which columns that pad the vocabulary do not."""
        if self.softcap is None:
            return None
        slopes = (logits / self.softcap).square_().neg_().add_(1).mul_(self.scale)
        slopes[:, known:] = 0
        return slopes

    def gradient(self, of_logits: Tensor, slopes: Tensor | None) -> Tensor:
        """Of the products, in place."""
        if slopes is not None:
            return of_logits.mul_(slopes)
        return of_logits if self.scale == 1 else of_logits.mul_(self.scale)


PLAIN_LOGITS = LogitForm()


class Losses(NamedTuple):  # a tuple, so that FSDP finds the tensors in it
    """The objective, to go backward from, and its parts by token in nats (0 where a token does not count)."""

    objective: Tensor  # ()
    nats: Tensor  # (tokens,) plain cross-entropy
    z: Tensor  # (tokens,) squared log of the softmax's sum
    reference_nats: Tensor | None = None  # (tokens,) the reference's plain cross-entropy
    kl: Tensor | None = None  # (tokens,) the penalty, before its weight
    figures: Mapping[str, Tensor] | None = None  # (loss tokens,) of a loss of the user's own, beside it
    balance: Tensor | None = None  # () the experts' balancing loss, times the loss tokens' weight


@dataclass(frozen=True, slots=True)
class LossTargets:
    """Tokens to predict, and the indices of the hidden states that predict them; None means all states, in order."""

    tokens: Tensor  # (loss tokens,)
    at: Tensor | None  # (loss tokens,)
    # What all terms of a token are multiplied by; None: 1. Float32 as int32, for FSDP rounds what floats and goes into
    # a model to the precision of its layers.
    weight_bits: Tensor | None = None  # (loss tokens,)

    @property
    def weights(self) -> Tensor | None:
        """The same as float32."""
        return None if self.weight_bits is None else self.weight_bits.view(torch.float32)

    def of_slice(self, objective: Objective, start: int, stop: int) -> Objective:
        """The objective of some of the tokens, with their weights."""
        weights = self.weights
        return objective if weights is None else replace(objective, scale=objective.scale * weights[start:stop, None])

    def total(self, by_state: Tensor) -> Tensor:
        """The weighted sum of a term of all hidden states, which is 0 where nothing is predicted."""
        weights = self.weights
        if weights is None:
            return by_state.sum()
        return torch.dot(by_state if self.at is None else by_state[self.at], weights)


def summed(losses: Losses, targets: LossTargets) -> dict[str, Tensor]:
    """Over a micro-batch's tokens, by their weights, still on the device."""
    balance = {} if losses.balance is None else {"balance_loss": losses.balance}
    if losses.figures is not None:
        return {name: figure.sum() for name, figure in losses.figures.items()} | balance
    parts = {"z": losses.z, "kl": losses.kl, "reference_nats": losses.reference_nats}
    return {name: targets.total(part) for name, part in parts.items() if part is not None} | balance


def own_losses(
    hidden: Tensor,
    lm_head: Tensor,
    loss_targets: LossTargets,
    places: Sequence[Tensor],
    vocab: int,
    objective: Objective,
    reference: ReferenceStates | None = None,
    axis: TensorAxis = ALONE,
    form: LogitForm = PLAIN_LOGITS,
) -> Losses:
    """What the user's function makes of the tokens that count; `places` are tokens, positions and documents (B, T).

    Ranks that share the lm_head all compute the whole of it, and gradients are summed over them. The scale of logits is
    in the hidden states that the function is given.
    """
    assert objective.token_losses is not None, "there is a function"
    assert form.softcap is None, "refused: the function makes its own logits"
    at = slice(None) if loss_targets.at is None else loss_targets.at
    frozen = None
    if reference is not None and objective.penalty is not None:
        matrix = axis.join(reference.unembedding.to(reference.hidden.dtype), 0)[:vocab]
        frozen = FrozenStates(_scaled(reference.hidden[at], form), matrix, objective.penalty.beta)
    tokens, positions, documents = (each.flatten()[at] for each in places)
    batch = LossBatch(loss_targets.tokens, tokens, positions, documents, frozen)
    found = objective.token_losses(_scaled(hidden[at], form), axis.join(lm_head.to(hidden.dtype), 0)[:vocab], batch)
    losses, figures = losses_and_figures(found, len(loss_targets.tokens))
    if torch.is_grad_enabled() and not losses.requires_grad:
        what = "the function of Trainer.loss() returned losses without a gradient"
        raise UsageError(f"{what}. Compute them from hidden and lm_head, without detach() and torch.no_grad().")
    nats = hidden.new_zeros(len(hidden), dtype=torch.float32)
    nats[at] = losses.detach().float()
    by_token = {name: figure.detach().float() for name, figure in figures.items()}
    return Losses(objective.scale / axis.size * losses.float().sum(), nats, torch.zeros_like(nats), figures=by_token)


def _scaled(hidden: Tensor, form: LogitForm) -> Tensor:
    return hidden if form.scale == 1 else hidden * form.scale


def sliced_loss(
    hidden: Tensor,
    unembedding: Tensor,
    loss_targets: LossTargets,
    vocab: int,
    objective: Objective,
    reference: ReferenceStates | None = None,
    axis: TensorAxis = ALONE,
    form: LogitForm = PLAIN_LOGITS,
) -> Losses:
    """Losses of hidden states (tokens, width) under this rank's rows of an unembedding (padded vocabulary, width)."""
    assert (objective.penalty is None) == (reference is None), "a penalty is measured to a reference"
    wants_gradient = torch.is_grad_enabled() and (hidden.requires_grad or unembedding.requires_grad)
    parts = _SlicedLoss.apply(  # type: ignore[no-untyped-call]
        hidden, unembedding, loss_targets, vocab, objective, reference, axis, form, wants_gradient
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
        axis: TensorAxis,
        form: LogitForm,
        wants_gradient: bool,
    ) -> tuple[Tensor, ...]:
        weight = unembedding.to(hidden.dtype)
        nats = hidden.new_zeros(len(hidden), dtype=torch.float32)
        z = torch.zeros_like(nats)
        hidden_gradient = torch.zeros_like(hidden) if wants_gradient else None
        weight_gradient = torch.zeros_like(unembedding, dtype=torch.float32) if wants_gradient else None
        size = slice_tokens(hidden.device.type, len(weight))
        known = max(0, vocab - axis.rank * len(weight))  # columns of this rank that are not padding
        room = nats.new_empty(min(size, len(loss_targets.tokens)), len(weight))
        anchor = None
        if reference is not None:
            own = nats.new_empty(len(room), len(reference.unembedding))
            anchor = _Anchor(
                reference, torch.zeros_like(nats), torch.zeros_like(nats), own, torch.empty_like(own), form
            )
        for start in range(0, len(loss_targets.tokens), size):
            tokens, at = loss_targets.tokens[start : start + size, None], loss_targets.at
            targets = Columns.of(tokens, axis, len(weight))
            here = slice(start, start + len(tokens)) if at is None else at[start : start + size]
            states = hidden[here]
            logits = _logits(states, weight, room, known, form)
            slopes = form.slopes(logits, known) if wants_gradient else None
            weighted = loss_targets.of_slice(objective, start, start + size)
            if anchor is None:
                nats[here], log_sum = _cross_entropy_and_its_gradient(logits, targets, weighted, axis)
            else:
                nats[here], log_sum = anchor.penalise(logits, targets, here, known, weighted, axis)
            z[here] = log_sum.square()
            if hidden_gradient is not None and weight_gradient is not None:
                gradient = form.gradient(logits, slopes).to(hidden.dtype)
                hidden_gradient[here] = gradient @ weight
                _add_product(weight_gradient, gradient.T, states)
        ctx.gradients = (hidden_gradient, weight_gradient)
        ctx.weight_dtype = unembedding.dtype
        total = loss_targets.total(nats) + objective.z_loss * loss_targets.total(z)
        parts = [nats, z]
        if anchor is not None and objective.penalty is not None:
            total = total + objective.penalty.beta * loss_targets.total(anchor.kl)
            parts += [anchor.nats, anchor.kl]
        ctx.mark_non_differentiable(*parts)
        return objective.scale * total, *parts

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        hidden_gradient, weight_gradient = (gradient.mul_(outer[0]) for gradient in ctx.gradients)
        del ctx.gradients  # they are the caller's now, and were changed in place: a second pass must fail
        return hidden_gradient, weight_gradient.to(ctx.weight_dtype), *[None] * 7


@dataclass(frozen=True, slots=True)
class _Anchor:
    """A reference's states, and what is measured to them slice by slice."""

    states: ReferenceStates
    nats: Tensor  # (tokens,)
    kl: Tensor  # (tokens,)
    room: Tensor  # for a slice's logits
    gap: Tensor  # and for what they differ by
    form: LogitForm

    def penalise(
        self,
        logits: Tensor,
        targets: Columns,
        here: slice | Tensor,
        known: int,
        objective: Objective,
        axis: TensorAxis,
    ) -> tuple[Tensor, Tensor]:
        """Losses and log-sums of a slice; leaves the objective's gradient where the logits were."""
        reference = _logits(self.states.hidden[here], self.states.unembedding, self.room, known, self.form)
        found = kl_and_its_gradient(logits, reference, targets, objective, self.gap[: len(logits)], axis)
        self.nats[here], self.kl[here] = found.reference_nats, found.kl
        return found.nats, found.log_sums


def _logits(states: Tensor, weight: Tensor, room: Tensor, known: int, form: LogitForm) -> Tensor:
    """In float32, in memory that is there already; columns that pad the vocabulary have no probability."""
    here = room[: len(states)]
    if states.dtype == here.dtype:
        torch.mm(states, weight.T, out=here)
    else:
        here.copy_(states @ weight.T)
    form.apply(here)
    here[:, known:] = PADDING_LOGIT
    return here


def _cross_entropy_and_its_gradient(
    logits: Tensor, targets: Columns, objective: Objective, axis: TensorAxis
) -> tuple[Tensor, Tensor]:
    """Losses and log-sums of a slice; leaves the objective's gradient where the logits were."""
    of_targets = _at(targets, logits)
    (largest,) = axis.maximum(logits.amax(dim=1, keepdim=True))
    sums, of_targets = axis.sums(exponentials(logits, largest), of_targets)
    log_sums = largest + sums.log()
    # d/dlogits of (log_sum - target + z_loss * log_sum^2) is softmax * (1 + 2 * z_loss * log_sum) - one_hot.
    logits.mul_(objective.scale * (1 + 2 * objective.z_loss * log_sums) / sums)
    _subtract(targets, logits, objective.scale)
    return (log_sums - of_targets).squeeze(1), log_sums.squeeze(1)


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """total += left @ right, without a second array where the types allow."""
    if total.dtype == left.dtype:
        total.addmm_(left, right)
    else:
        total += left @ right
