"""A slice's logits under two models -> the penalty for leaving one of them, and its gradient.

A penalty is over the whole vocabulary, in float32, with p the policy's probabilities and q the reference's:

    forward    KL(q || p) = sum q (log q - log p)      gradient by logit  p - q
    reverse    KL(p || q) = sum p (log p - log q)      gradient by logit  p (log p - log q - KL)
    nll_gap    log q - log p of the target alone       gradient by logit  p - one_hot

The last one's gradient is the cross-entropy's own: beside it, it multiplies the gradient by 1 + beta and holds
the policy to nothing. Forward KL may divide both models' logits by a temperature T: it is then T^2 KL, with the
gradient T (p - q). With `top_k` it is over the reference's k most likely tokens and one class of all others, whose q is
shared out as the policy shares its own: nothing is asked of how.

A slice holds the reference's logits and their difference to the policy's; a temperature and `top_k` take as much more
each. All memory is given, and used again for the next slice.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trivium.engine.base import Direction
from trivium.engine.torch.tensor_parallel.axis import TensorAxis

LEAST_REST = 1e-30  # of the probability of all tokens that are not among the k: its logarithm is taken


@dataclass(frozen=True, slots=True)
class Penalty:
    """What leaving a reference costs; the temperature and `top_k` are forward KL's."""

    beta: float
    direction: Direction = "forward"
    temperature: float = 1.0
    top_k: int | None = None


class Comparison:
    """A slice of tokens under the policy and one reference; arrays have this rank's part of the vocabulary.

    `begin` takes both models' logits, `sums` what ranks add up, `settle` the sums of all of them, and `pull` adds the
    gradient. What is between them may turn the policy's logits into exponentials in place.
    """

    def __init__(self, penalty: Penalty, reference: Tensor, rooms: Sequence[Tensor]) -> None:
        """`reference` is its logits (tokens, columns), and is used up; `rooms` are as large, as many as `num_rooms`."""
        self.penalty, self.reference = penalty, reference
        left = list(rooms)
        self.gap = left.pop()
        self.soft = None if penalty.temperature == 1 else left.pop()  # the policy's exponentials at the temperature
        self.outside = None if penalty.top_k is None else left.pop()  # 1 where a token is not among the k, else 0
        self.weight: Tensor  # (tokens, 1) of q in the gradient

    @staticmethod
    def num_rooms(penalty: Penalty) -> int:
        return 1 + (penalty.temperature != 1) + (penalty.top_k is not None)

    def begin(self, logits: Tensor, largest: Tensor, own_largest: Tensor, axis: TensorAxis) -> None:
        """Take what is to be taken of the logits of both; the reference's become exponentials."""
        temperature, reference = self.penalty.temperature, self.reference
        self.largest, self.own_largest, self.plain_sums = largest, own_largest, None
        if self.outside is not None and self.penalty.top_k is not None:
            torch.lt(reference, _kth_largest(reference, self.penalty.top_k, axis), out=self.outside)
        if self.soft is not None:
            self.plain_sums = torch.sub(reference, own_largest, out=self.gap).exp_().sum(dim=1, keepdim=True)
            torch.sub(logits, largest, out=self.soft).div_(temperature).exp_()
        if self.penalty.direction != "nll_gap":
            torch.sub(reference, logits, out=self.gap)
            if temperature != 1:
                self.gap.div_(temperature)
            if self.outside is not None:
                self.gap.addcmul_(self.gap, self.outside, value=-1)
        reference.sub_(own_largest)
        if temperature != 1:
            reference.div_(temperature)
        reference.exp_()

    def sums(self, exponents: Tensor) -> list[Tensor]:
        """By token, (tokens, 1): the reference's exponentials, the gap under one model, and what else counts."""
        policy = exponents if self.soft is None else self.soft
        found = [self.reference.sum(dim=1, keepdim=True)]
        if self.penalty.direction == "nll_gap":
            return found
        found.append(_product(self.reference if self.penalty.direction == "forward" else policy, self.gap))
        if self.soft is not None and self.plain_sums is not None:
            found += [self.soft.sum(dim=1, keepdim=True), self.plain_sums]
        if self.outside is not None:
            found += [_product(self.reference, self.outside), _product(policy, self.outside)]
        return found

    def settle(
        self,
        sums: Sequence[Tensor],
        of_targets: Tensor,
        exponents: Tensor,
        policy: "PolicySums",
        scale: float | Tensor,
    ) -> tuple[float | Tensor, float | Tensor]:
        """Find KL and nats; give what p is multiplied by in the gradient, and the targets' part of it.

        The rest of the gradient is `pull`'s. `exponents` are those of p.
        """
        temperature, direction = self.penalty.temperature, self.penalty.direction
        left = list(sums)
        own_sums, total_gap = left.pop(0), left.pop(0) if direction != "nll_gap" else None
        soft_sums, plain_sums = (left.pop(0), left.pop(0)) if self.soft is not None else (policy.sums, own_sums)
        log_sums = policy.log_sums if self.soft is None else self.largest / temperature + soft_sums.log()
        own_log_sums = self.own_largest / temperature + own_sums.log()
        self.nats = self.own_largest + plain_sums.log() - of_targets
        weight = scale * self.penalty.beta
        if total_gap is None:
            self.kl = policy.nats - self.nats
            return weight, weight
        if direction == "reverse":
            # log p - log q = (own_log_sum - log_sum) - gap, so that log p - log q - KL = mean gap - gap.
            mean_gap = total_gap / policy.sums
            self.kl = own_log_sums - log_sums - mean_gap
            self.gap.neg_().add_(mean_gap).mul_(exponents).mul_(weight / policy.sums)
            return 0.0, 0.0
        weight = weight * temperature
        if self.outside is None:
            self.kl = total_gap / own_sums + log_sums - own_log_sums
            self.weight = weight / own_sums
        else:
            rest, policy_rest = left[0] / own_sums, (left[1] / soft_sums).clamp(min=LEAST_REST)
            of_rest = rest * (rest.clamp(min=LEAST_REST).log() - policy_rest.log())
            self.kl = total_gap / own_sums + (1 - rest) * (log_sums - own_log_sums) + of_rest
            self.reference.div_(own_sums).addcmul_(self.reference, self.outside, value=-1)
            shared = exponents if self.soft is None else self.soft
            self.reference.add_(self.outside.mul_(shared).mul_(rest / policy_rest / soft_sums))
            self.weight = weight * torch.ones_like(rest)
        if self.soft is None:
            return weight, 0.0
        self.kl = self.kl * temperature**2
        self.soft.mul_(weight / soft_sums)
        return 0.0, 0.0

    def pull(self, gradient: Tensor) -> None:
        """Add what `settle` left out."""
        if self.penalty.direction == "reverse":
            gradient.add_(self.gap)
        elif self.penalty.direction == "forward":
            if self.soft is not None:
                gradient.add_(self.soft)
            gradient.addcmul_(self.reference, -self.weight)


@dataclass(frozen=True, slots=True)
class PolicySums:
    """Of a slice, (tokens, 1) each."""

    sums: Tensor  # of exponentials that are 1 at most
    log_sums: Tensor
    nats: Tensor


def _kth_largest(logits: Tensor, k: int, axis: TensorAxis) -> Tensor:
    """The k-th largest of each token's logits (tokens, 1), of which this rank has a part of the columns."""
    own = logits.topk(min(k, logits.shape[1]), dim=1).values
    return axis.join(own, 1).topk(k, dim=1).values[:, -1:]


def _product(exponents: Tensor, values: Tensor) -> Tensor:
    """Sums of products by token, without an array of products."""
    return torch.bmm(exponents[:, None], values[:, :, None]).squeeze(2)
