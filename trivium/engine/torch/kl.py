"""Two models' logits of the same tokens -> the divergence of one from the other, and its gradient.

Over the whole vocabulary, in float32, with p the policy's probabilities and q the reference's:

    forward    KL(q || p) = sum q (log q - log p)      gradient by logit  p - q
    reverse    KL(p || q) = sum p (log p - log q)      gradient by logit  p (log p - log q - KL)
    nll_gap    log q - log p of the target alone       gradient by logit  p - one_hot

The last one's gradient is the cross-entropy's own: beside it, it multiplies the gradient by 1 + beta and holds
the policy to nothing.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from trivium.engine.base import Direction


@dataclass(frozen=True, slots=True)
class Penalty:
    """What leaving the reference costs."""

    beta: float
    direction: Direction = "forward"


@dataclass(frozen=True, slots=True)
class Compared:
    """A slice of tokens under both models, (tokens,) each."""

    nats: Tensor
    log_sums: Tensor
    reference_nats: Tensor
    kl: Tensor


def kl_and_its_gradient(
    logits: Tensor,
    reference: Tensor,
    targets: Tensor,
    penalty: Penalty,
    scale: float,
    z_loss: float,
    room: Tensor | None = None,
) -> Compared:
    """Leaves the gradient of scale * (nats + z_loss * log_sum^2 + beta * kl) in `logits`.

    `reference` is used up, and so is `room`, which has its shape; absent, it is made.
    """
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
