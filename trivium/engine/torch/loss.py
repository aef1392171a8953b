"""Hidden states and targets -> cross-entropy by token, and KL to a reference's hidden states, in slices.

A slice's logits exist once, in float32, and are turned in place into their own gradient while they are still
in the cache; the gradients of the hidden states and of the unembedding are finished when the forward pass is.
Whatever the batch, no more of them than `slice_tokens` says are held. Against `cross_entropy` on
whole logits at 4096 tokens and a vocabulary of 8192: 0.6 of the time, and 32 MB where that holds 400.
Tokens that do not count in the loss cost nothing. With a reference a slice holds its logits too, and
once their difference. All slices use the same memory: to touch fresh pages for each costs a tenth of the loss.

Ranks of the tensor axis have parts of the vocabulary. Each computes the logits of its own, and a slice takes two calls
between them: the largest logits, then all sums. The gradient of hidden states is each rank's summand.

The penalties of references, their temperature and `top_k` are those at the head of `compare`. Logits may be scaled and
capped (`LogitForm`): a cap costs one more slice of logits, which has the slopes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from trivium.engine.base import FrozenStates, LossBatch, TokenLosses
from trivium.engine.own import loss_name, losses_and_figures
from trivium.engine.torch.compare import Comparison, Penalty, PolicySums
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
class Objective:
    """What is minimised: `scale` times the sum of the terms over the tokens that count.

    They are the cross-entropy times its weight, z_loss * log(sum exp)^2, and each reference's penalty.
    """

    # One over the loss tokens of the whole batch, on many ranks over its slots; of a slice with weights, (tokens, 1).
    scale: float | Tensor = 1.0
    z_loss: float = 0.0
    penalties: tuple[Penalty, ...] = ()  # of the references, in their order
    cross_entropy: float = 1.0
    token_losses: TokenLosses | None = None  # the user's own, alone, in place of all terms


def losses_and_their_gradient(
    logits: Tensor,
    targets: Columns,
    objective: Objective,
    compared: Sequence[Comparison] = (),
    axis: TensorAxis = ALONE,
) -> PolicySums:
    """Cross-entropy of a slice, and what it is compared with; leaves the objective's gradient in `logits`."""
    scale = objective.scale
    of_targets = [_at(targets, each) for each in (logits, *(each.reference for each in compared))]
    all_logits = (logits, *(each.reference for each in compared))
    largest, *others = axis.maximum(*(each.amax(dim=1, keepdim=True) for each in all_logits))
    for each, own_largest in zip(compared, others, strict=True):
        each.begin(logits, largest, own_largest, axis)
    parts = [[exponentials(logits, largest)], of_targets, *(each.sums(logits) for each in compared)]
    summed = iter(axis.sums(*(value for part in parts for value in part)))
    (sums,), (of_target, *others), *of_compared = ([next(summed) for _ in part] for part in parts)
    log_sums = largest + sums.log()
    policy = PolicySums(sums, log_sums, log_sums - of_target)
    # d/dlogits of (log_sum - target + z_loss * log_sum^2) is softmax * (1 + 2 * z_loss * log_sum) - one_hot.
    of_softmax = scale * (objective.cross_entropy + 2 * objective.z_loss * log_sums)
    one_hot = scale * objective.cross_entropy
    for each, values, own in zip(compared, of_compared, others, strict=True):
        more_softmax, more_one_hot = each.settle(values, own, logits, policy, scale)
        of_softmax, one_hot = of_softmax + more_softmax, one_hot + more_one_hot
    logits.mul_(of_softmax / sums)
    for each in compared:
        each.pull(logits)
    _subtract(targets, logits, one_hot)
    return policy


def exponentials(logits: Tensor, largest: Tensor) -> Tensor:
    """Turns logits in place into exponentials that are 1 at most; their sums."""
    return logits.sub_(largest).exp_().sum(dim=1, keepdim=True)


def _at(targets: Columns, logits: Tensor) -> Tensor:
    """The targets' logits, 0 where the target is in the part of another rank."""
    return targets.own(logits.gather(1, targets.at))


def _subtract(targets: Columns, logits: Tensor, value: float | Tensor) -> None:
    """Subtract a number, or one for each token, at the targets."""
    lower = logits.gather(1, targets.at)
    logits.scatter_(1, targets.at, lower - targets.own(torch.ones_like(lower) * value))


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


@dataclass(frozen=True, slots=True)
class ReferenceStates:
    """What a frozen model makes of the same tokens; None of it has a gradient."""

    hidden: Tensor  # (tokens, width)
    unembedding: Tensor  # (padded vocabulary, width), or this rank's rows of it
    form: LogitForm = PLAIN_LOGITS

    def with_rows(self, rows: int, axis: TensorAxis) -> "ReferenceStates":
        """With this many rows of the unembedding on each rank: another model may pad its vocabulary otherwise.

        Where ranks share a vocabulary that is padded otherwise, they gather the reference's.
        """
        if len(self.unembedding) == rows:
            return self
        own = axis.join(self.unembedding, 0)[axis.rank * rows : (axis.rank + 1) * rows]
        return replace(self, unembedding=pad(own, (0, 0, 0, rows - len(own))))


class Losses(NamedTuple):  # a tuple, so that FSDP finds the tensors in it
    """The objective, to go backward from, and its parts by token in nats (0 where a token does not count)."""

    objective: Tensor  # ()
    nats: Tensor  # (tokens,) plain cross-entropy
    z: Tensor  # (tokens,) squared log of the softmax's sum
    kl: tuple[Tensor, ...] = ()  # (tokens,) each reference's penalty, before its weight
    reference_nats: tuple[Tensor, ...] = ()  # (tokens,) each reference's plain cross-entropy
    figures: Mapping[str, Tensor] | None = None  # (loss tokens,) of a loss of the user's own, beside it
    balance: Tensor | None = None  # () the experts' balancing loss, times the loss tokens' weight

    def sums(self, targets: "LossTargets", references: Sequence[str]) -> dict[str, Tensor]:
        """Over tokens, by their weights, still on the device; of each reference by its term's name."""
        balance = {} if self.balance is None else {"balance_loss": self.balance}
        if self.figures is not None:
            return {name: figure.sum() for name, figure in self.figures.items()} | balance
        parts = {"z": self.z, **dict(zip(references, self.kl, strict=True))}
        parts |= {f"{name}_nats": nats for name, nats in zip(references, self.reference_nats, strict=True)}
        return {name: targets.total(part) for name, part in parts.items()} | balance


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


def own_losses(
    hidden: Tensor,
    lm_head: Tensor,
    loss_targets: LossTargets,
    places: Sequence[Tensor],
    vocab: int,
    objective: Objective,
    references: Sequence[ReferenceStates] = (),
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
    for reference, penalty in zip(references, objective.penalties, strict=True):  # one at most: `refuse_misfits`
        matrix = axis.join(reference.unembedding.to(reference.hidden.dtype), 0)[:vocab]
        frozen = FrozenStates(_scaled(reference.hidden[at], reference.form), matrix, penalty.beta)
    tokens, positions, documents = (each.flatten()[at] for each in places)
    batch = LossBatch(loss_targets.tokens, tokens, positions, documents, frozen)
    found = objective.token_losses(_scaled(hidden[at], form), axis.join(lm_head.to(hidden.dtype), 0)[:vocab], batch)
    losses, figures = losses_and_figures(found, len(loss_targets.tokens), objective.token_losses)
    if torch.is_grad_enabled() and not losses.requires_grad:
        what = f"the function of {loss_name(objective.token_losses)} returned losses without a gradient"
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
    references: Sequence[ReferenceStates] = (),
    axis: TensorAxis = ALONE,
    form: LogitForm = PLAIN_LOGITS,
) -> Losses:
    """Losses of hidden states (tokens, width) under this rank's rows of an unembedding (padded vocabulary, width)."""
    assert len(objective.penalties) == len(references), "a penalty is measured to a reference"
    wanted = (torch.is_grad_enabled() and hidden.requires_grad, torch.is_grad_enabled() and unembedding.requires_grad)
    total, nats, z, *compared = _SlicedLoss.apply(  # type: ignore[no-untyped-call]
        hidden, unembedding, loss_targets, vocab, objective, tuple(references), axis, form, wanted
    )
    return Losses(total, nats, z, tuple(compared[::2]), tuple(compared[1::2]))


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
        references: tuple[ReferenceStates, ...],
        axis: TensorAxis,
        form: LogitForm,
        wanted: tuple[bool, bool],
    ) -> tuple[Tensor, ...]:
        weight = unembedding.to(hidden.dtype)
        nats = hidden.new_zeros(len(hidden), dtype=torch.float32)
        z = torch.zeros_like(nats)
        hidden_gradient = torch.zeros_like(hidden) if wanted[0] else None
        weight_gradient = torch.zeros_like(unembedding, dtype=torch.float32) if wanted[1] else None
        size = slice_tokens(hidden.device.type, len(weight))
        known = max(0, vocab - axis.rank * len(weight))  # columns of this rank that are not padding
        room = nats.new_empty(min(size, len(loss_targets.tokens)), len(weight))
        anchors = [
            _Anchor.of(reference.with_rows(len(weight), axis), penalty, nats, room)
            for reference, penalty in zip(references, objective.penalties, strict=True)
        ]
        for start in range(0, len(loss_targets.tokens), size):
            tokens, at = loss_targets.tokens[start : start + size, None], loss_targets.at
            targets = Columns.of(tokens, axis, len(weight))
            here = slice(start, start + len(tokens)) if at is None else at[start : start + size]
            states = hidden[here]
            logits = _logits(states, weight, room, known, form)
            slopes = form.slopes(logits, known) if any(wanted) else None
            weighted = loss_targets.of_slice(objective, start, start + size)
            compared = [anchor.compared(here, len(states), known) for anchor in anchors]
            policy = losses_and_their_gradient(logits, targets, weighted, compared, axis)
            nats[here], z[here] = policy.nats.squeeze(1), policy.log_sums.squeeze(1).square()
            for anchor, each in zip(anchors, compared, strict=True):
                anchor.nats[here], anchor.kl[here] = each.nats.squeeze(1), each.kl.squeeze(1)
            if hidden_gradient is not None or weight_gradient is not None:
                gradient = form.gradient(logits, slopes).to(hidden.dtype)
                if hidden_gradient is not None:
                    hidden_gradient[here] = gradient @ weight
                if weight_gradient is not None:
                    _add_product(weight_gradient, gradient.T, states)
        ctx.gradients = (hidden_gradient, weight_gradient)
        ctx.weight_dtype = unembedding.dtype
        total = objective.cross_entropy * loss_targets.total(nats) + objective.z_loss * loss_targets.total(z)
        for anchor in anchors:
            total = total + anchor.penalty.beta * loss_targets.total(anchor.kl)
        parts = [nats, z, *(part for anchor in anchors for part in (anchor.kl, anchor.nats))]
        ctx.mark_non_differentiable(*parts)
        return objective.scale * total, *parts

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        hidden_gradient, weight_gradient = (each if each is None else each.mul_(outer[0]) for each in ctx.gradients)
        del ctx.gradients  # they are the caller's now, and were changed in place: a second pass must fail
        of_weight = None if weight_gradient is None else weight_gradient.to(ctx.weight_dtype)
        return hidden_gradient, of_weight, *[None] * 7


@dataclass(frozen=True, slots=True)
class _Anchor:
    """A reference's states, and what is measured to them slice by slice."""

    states: ReferenceStates
    penalty: Penalty
    nats: Tensor  # (tokens,)
    kl: Tensor  # (tokens,)
    room: Tensor  # for a slice's logits
    rooms: tuple[Tensor, ...]  # for what is made of them

    @classmethod
    def of(cls, states: ReferenceStates, penalty: Penalty, by_token: Tensor, room: Tensor) -> "_Anchor":
        """With memory like these."""
        rooms = tuple(torch.empty_like(room) for _ in range(1 + Comparison.num_rooms(penalty)))
        return cls(states, penalty, torch.zeros_like(by_token), torch.zeros_like(by_token), rooms[0], rooms[1:])

    def compared(self, here: slice | Tensor, tokens: int, known: int) -> Comparison:
        """A slice under the reference."""
        logits = _logits(self.states.hidden[here], self.states.unembedding, self.room, known, self.states.form)
        return Comparison(self.penalty, logits, [room[:tokens] for room in self.rooms])


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


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """total += left @ right, without a second array where the types allow."""
    if total.dtype == left.dtype:
        total.addmm_(left, right)
    else:
        total += left @ right
