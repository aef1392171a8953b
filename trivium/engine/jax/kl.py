"""Two models' logits of the same tokens -> the divergence of one from the other, and its gradient.

Over the whole vocabulary, in float32, with p the policy's probabilities and q the reference's:

    forward    KL(q || p) = sum q (log q - log p)      gradient by logit  p - q
    reverse    KL(p || q) = sum p (log p - log q)      gradient by logit  p (log p - log q - KL)
    nll_gap    log q - log p of the target alone       gradient by logit  p - one_hot

The last one's gradient is the cross-entropy's own: beside it, it multiplies the gradient by 1 + beta and holds
the policy to nothing.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from trivium.engine.base import Direction

Number = Array | np.float32


class Weights(NamedTuple):
    """What the terms of an objective are multiplied by: arguments of a compiled step."""

    scale: Number = np.float32(1)  # of their sum: one over the loss tokens of the whole batch
    z_loss: Number = np.float32(0)
    beta: Number = np.float32(0)


class Compared(NamedTuple):
    """A slice of tokens under both models, (tokens,) each, and the objective's gradient by logit."""

    nats: Array
    log_sums: Array
    reference_nats: Array
    kl: Array
    gradient: Array  # (tokens, vocabulary)


def kl_and_its_gradient(
    logits: Array, reference: Array, targets: Array, direction: Direction, weights: Weights
) -> Compared:
    """StageTerms of a slice, and the gradient of scale * (nats + z_loss * log_sum^2 + beta * kl)."""
    at_target = one_hot(targets, logits.shape[1])
    exponents, sums, log_sums = exponentials(logits)
    reference_exponents, reference_sums, reference_log_sums = exponentials(reference)
    nats = log_sums - _sum(jnp.where(at_target, logits, 0))
    reference_nats = reference_log_sums - _sum(jnp.where(at_target, reference, 0))
    beta, of_target = weights.beta, jnp.asarray(1.0)
    of_softmax = 1 + 2 * weights.z_loss * log_sums  # what p is multiplied by in the gradient
    gradient = exponents / sums
    if direction == "nll_gap":
        kl = nats - reference_nats
        of_target = 1 + jnp.asarray(beta)
        gradient = gradient * (of_softmax + beta)
    elif direction == "forward":
        kl = _sum(reference_exponents * (reference - logits)) / reference_sums + log_sums - reference_log_sums
        gradient = gradient * (of_softmax + beta) - beta / reference_sums * reference_exponents
    else:
        # log p - log q = (reference_log_sum - log_sum) - gap, so that log p - log q - KL = mean gap - gap.
        gap = reference - logits
        mean_gap = _sum(exponents * gap) / sums
        kl = reference_log_sums - log_sums - mean_gap
        gradient = gradient * (of_softmax + beta * (mean_gap - gap))
    gradient = weights.scale * jnp.where(at_target, gradient - of_target, gradient)
    return Compared(nats[:, 0], log_sums[:, 0], reference_nats[:, 0], kl[:, 0], gradient)


def exponentials(logits: Array) -> tuple[Array, Array, Array]:
    """Exponentials that are 1 at most, their sums, and the log-sums of the logits; the last two (tokens, 1)."""
    largest = logits.max(axis=1, keepdims=True)
    exponents = jnp.exp(logits - largest)
    sums = _sum(exponents)
    return exponents, sums, largest + jnp.log(sums)


def one_hot(targets: Array, vocab: int) -> Array:
    """(tokens, vocabulary), True at each target."""
    return targets[:, None] == jnp.arange(vocab)


def _sum(values: Array) -> Array:
    return values.sum(axis=1, keepdims=True)
