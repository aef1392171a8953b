"""Hidden states and targets -> cross-entropy by token, and KL to a reference's hidden states, in slices.

The gradients of the hidden states and of the unembedding are computed with the losses, slice by slice, so that a
slice's logits are never needed again: whatever the batch, no more than SLICE_LOGITS of them (or 256 tokens') are
held, and the same number of each reference's.

Logits may be scaled and capped (`LogitForm`): the gradient by what they are made of follows from the one by logit.

The penalty's three directions, its temperature and `top_k` are those at the head of the torch engine's `compare`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from trivium.engine.base import Direction, FrozenStates, LossBatch, TokenLosses
from trivium.engine.jax.attention import capped, times_slope
from trivium.engine.jax.sharding import BY_TOKENS, WHOLE, by_device, gathered, summed
from trivium.engine.own import losses_and_figures
from trivium.model.spec import ModelSpec

SLICE_LOGITS = 2**22  # 512 tokens of a vocabulary of 8192: 0.95 of the torch engine's time, 2**23 of them 1.12
MIN_SLICE_TOKENS = 256  # each slice passes once over the unembedding's gradient: thinner ones are bound by memory
LEAST_REST = 1e-30  # of the probability of all tokens that are not among the k: its logarithm is taken
UNUSED = -1e30  # the logit of what only pads the vocabulary; finite, since two models' logits are subtracted

Number = Array | np.float32


@dataclass(frozen=True, slots=True)
class LogitForm:
    """How products of hidden states with the unembedding become logits."""

    vocab: int  # the columns in use; those beyond them pad the vocabulary
    scale: float = 1.0
    softcap: float | None = None

    @classmethod
    def of(cls, spec: ModelSpec) -> "LogitForm":
        """A model's."""
        return cls(spec.vocab, spec.logit_scale, spec.logit_softcap)

    def logits(self, products: Array) -> Array:
        """Of products, float32: scaled, then capped."""
        return capped(products if self.scale == 1 else products * self.scale, self.softcap)

    def gradient(self, by_logit: Array, logits: Array) -> Array:
        """A gradient by logit -> by product."""
        by_scaled = times_slope(by_logit, logits, self.softcap)
        return by_scaled if self.scale == 1 else by_scaled * self.scale


class Penalty(NamedTuple):
    """What leaving a reference costs, apart from its weight: decides the code of a step."""

    direction: Direction = "forward"
    temperature: float = 1.0  # this and top_k: of forward KL
    top_k: int | None = None
    scale: float = 1.0  # this and softcap: of the reference's logits
    softcap: float | None = None

    def form_of(self, vocab: int) -> LogitForm:
        """How the reference makes its logits."""
        return LogitForm(vocab, self.scale, self.softcap)


class Weights(NamedTuple):
    """What the terms of an objective are multiplied by: arguments of a compiled step."""

    scale: Number = np.float32(1)  # of their sum: one over the loss tokens of the whole batch; of a slice, (tokens, 1)
    z_loss: Number = np.float32(0)
    betas: tuple[Number, ...] = ()  # of the penalties
    cross_entropy: Number = np.float32(1)


class Compared(NamedTuple):
    """A slice of tokens under the policy and a reference, (tokens, 1) each, and the KL's gradient by logit."""

    nats: Array  # of the reference
    kl: Array
    gradient: Array  # (tokens, vocabulary)


def compared(logits: Array, reference: Array, at_target: Array, policy_nats: Array, penalty: Penalty) -> Compared:
    """The KL of a slice and the reference's nats; `at_target` is True at each token's target."""
    plain_log_sums = exponentials(reference)[2]
    nats = plain_log_sums - _sum(jnp.where(at_target, reference, 0))
    temperature = penalty.temperature
    policy, own = logits / temperature, reference / temperature
    exponents, sums, log_sums = exponentials(policy)
    own_exponents, own_sums, own_log_sums = exponentials(own)
    p, q, gap = exponents / sums, own_exponents / own_sums, own - policy
    if penalty.direction == "nll_gap":
        return Compared(nats, policy_nats - nats, p - at_target)
    if penalty.direction == "reverse":
        # log p - log q = (own_log_sum - log_sum) - gap, so that log p - log q - KL = mean gap - gap.
        mean_gap = _sum(p * gap)
        return Compared(nats, own_log_sums - log_sums - mean_gap, p * (mean_gap - gap))
    if penalty.top_k is None:
        kl = _sum(own_exponents * gap) / own_sums + log_sums - own_log_sums
    else:
        outside = reference < lax.top_k(reference, penalty.top_k)[0][:, -1:]
        rest, policy_rest = (_sum(jnp.where(outside, each, 0)) for each in (q, p))
        policy_rest = jnp.maximum(policy_rest, LEAST_REST)
        kl = _sum(jnp.where(outside, 0, q * gap)) + (1 - rest) * (log_sums - own_log_sums)
        kl = kl + rest * (jnp.log(jnp.maximum(rest, LEAST_REST)) - jnp.log(policy_rest))
        q = jnp.where(outside, p * (rest / policy_rest), q)
    return Compared(nats, temperature**2 * kl, temperature * (p - q))


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


class LossTargets(NamedTuple):
    """What each hidden state is to predict, (tokens,); where `loss_mask` is False nothing is."""

    tokens: Array
    loss_mask: Array
    weights: Array | None = None  # what all terms of a token are multiplied by; None: 1

    def total(self, by_token: Array) -> Array:
        """The weighted sum of a term, which is 0 where nothing is predicted."""
        return by_token.sum() if self.weights is None else (by_token * self.weights).sum()


class ReferenceStates(NamedTuple):
    """What a frozen model makes of the same tokens; none of it has a gradient."""

    hidden: Array  # (tokens, width)
    unembedding: Array  # (padded vocabulary, width)


class Losses(NamedTuple):
    """The objective, and its parts by token in nats (0 where a token does not count)."""

    objective: Array  # ()
    nats: Array  # (tokens,) plain cross-entropy
    z: Array  # (tokens,) squared log of the softmax's sum
    kl: tuple[Array, ...] = ()  # (tokens,) each reference's penalty, before its weight
    reference_nats: tuple[Array, ...] = ()  # (tokens,) each reference's plain cross-entropy
    figures: Mapping[str, Array] | None = None  # (tokens,) of a loss of the user's own, beside it


def own_losses(
    function: TokenLosses,
    hidden: Array,
    lm_head: Array,
    targets: LossTargets,
    places: Sequence[Array],
    form: LogitForm,
    weights: Weights,
    references: tuple[ReferenceStates, ...],
) -> Losses:
    """What the user's function makes of all tokens, of which those that count are summed.

    `places` are tokens, positions and documents (tokens,). The scale of logits is in the hidden states that the
    function is given.
    """
    assert form.softcap is None, "refused: the function makes its own logits"

    def used(states: Array, matrix: Array) -> tuple[Array, Array]:
        scaled = states if form.scale == 1 else states * form.scale
        return scaled, gathered(matrix)[: form.vocab].astype(states.dtype)

    frozen = None
    for reference, beta in zip(references, weights.betas, strict=True):  # one at most: `refuse_misfits`
        frozen = FrozenStates(*used(*reference), beta)
    tokens, positions, documents = places
    batch = LossBatch(targets.tokens, tokens, positions, documents, frozen)
    found, figures = losses_and_figures(function(*used(hidden, lm_head), batch), len(hidden), function)
    by_token = {
        name: jnp.where(targets.loss_mask, each.astype(jnp.float32), 0) for name, each in {"": found, **figures}.items()
    }
    losses = by_token.pop("")
    return Losses(weights.scale * losses.sum(), losses, jnp.zeros_like(losses), figures=by_token)


class _Slice(NamedTuple):
    """Tokens that are taken together, and the gradient of their hidden states once it is known."""

    hidden: Array
    targets: LossTargets
    references: tuple[Array, ...]  # hidden states


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def sliced_loss(
    form: LogitForm,
    penalties: tuple[Penalty, ...],
    hidden: Array,
    unembedding: Array,
    targets: LossTargets,
    weights: Weights,
    references: tuple[ReferenceStates, ...],
) -> Losses:
    """Losses of hidden states (tokens, width) under an unembedding (padded vocabulary, width)."""
    losses, _ = _forward(form, penalties, hidden, unembedding, targets, weights, references)
    return losses


def _forward(form: LogitForm, penalties: tuple[Penalty, ...], *inputs: Any) -> tuple[Losses, tuple[Array, Array]]:
    """Losses and gradients of every device's own tokens, summed over all; the inputs are those of `sliced_loss`."""

    def own(*inputs: Any) -> tuple[Losses, tuple[Array, Array]]:
        losses, hidden_gradient, weight_gradient = _own_losses_and_gradients(form, penalties, *inputs)
        return losses._replace(objective=summed(losses.objective)), (hidden_gradient, summed(weight_gradient))

    by_token = (BY_TOKENS,) * len(penalties)
    frozen = tuple(ReferenceStates(BY_TOKENS, WHOLE) for _ in penalties)
    places = (BY_TOKENS, WHOLE, BY_TOKENS, WHOLE, frozen)
    outputs = (Losses(WHOLE, BY_TOKENS, BY_TOKENS, by_token, by_token), (BY_TOKENS, WHOLE))
    found: tuple[Losses, tuple[Array, Array]] = by_device(own, places, outputs)(*inputs)
    return found


def _backward(
    _form: LogitForm, _penalties: tuple[Penalty, ...], gradients: tuple[Array, Array], outer: Losses
) -> tuple[Array | None, ...]:
    hidden_gradient, weight_gradient = (gradient * outer.objective.astype(gradient.dtype) for gradient in gradients)
    return hidden_gradient, weight_gradient, None, None, None


sliced_loss.defvjp(_forward, _backward)


def _own_losses_and_gradients(
    form: LogitForm,
    penalties: tuple[Penalty, ...],
    hidden: Array,
    unembedding: Array,
    targets: LossTargets,
    weights: Weights,
    references: tuple[ReferenceStates, ...],
) -> tuple[Losses, Array, Array]:
    """All slices one after the other; what is not used of the result is not computed."""
    tokens = len(hidden)
    matrix = unembedding.astype(hidden.dtype)
    slices = math.ceil(tokens / max(MIN_SLICE_TOKENS, SLICE_LOGITS // len(matrix)))
    all_of_it = _Slice(hidden, targets, tuple(each.hidden for each in references))
    matrices = tuple(each.unembedding for each in references)

    def one(weight_gradient: Array, part: _Slice) -> tuple[Array, tuple[Array, ...]]:
        by_token, gradient = _slice_losses(form, penalties, part, matrix, matrices, weights)
        gradient = gradient.astype(hidden.dtype)
        product = jnp.einsum("tv,tw->vw", gradient, part.hidden, preferred_element_type=unembedding.dtype)
        return weight_gradient + product, (gradient @ matrix, *by_token)

    if slices == 1:
        weight_gradient, parts = one(jnp.zeros((), unembedding.dtype), all_of_it)
    else:
        cut = jax.tree.map(partial(_cut, slices=slices), all_of_it)
        weight_gradient, parts = lax.scan(one, jnp.zeros_like(unembedding), cut)
        parts = tuple(part.reshape(-1, *part.shape[2:])[:tokens] for part in parts)
    hidden_gradient, nats, z, *others = parts
    kl, reference_nats = tuple(others[::2]), tuple(others[1::2])
    terms = weights.cross_entropy * targets.total(nats) + weights.z_loss * targets.total(z)
    for beta, each in zip(weights.betas, kl, strict=True):
        terms = terms + beta * targets.total(each)
    return Losses(weights.scale * terms, nats, z, kl, reference_nats), hidden_gradient, weight_gradient


def _cut(array: Array, slices: int) -> Array:
    """Into slices of one size; what is added at the end does not count."""
    size = math.ceil(len(array) / slices)
    padding = [(0, slices * size - len(array)), *((0, 0) for _ in array.shape[1:])]
    return jnp.pad(array, padding).reshape(slices, size, *array.shape[1:])


def _slice_losses(
    form: LogitForm,
    penalties: tuple[Penalty, ...],
    part: _Slice,
    matrix: Array,
    matrices: tuple[Array, ...],
    weights: Weights,
) -> tuple[tuple[Array, ...], Array]:
    """Nats, squared log-sums, each reference's KL and nats by token, and the objective's gradient by product."""
    targets, loss_mask, by_token_weights = part.targets
    logits = _logits(part.hidden, matrix, form)
    exponents, sums, log_sums = exponentials(logits)
    at_target = one_hot(targets, logits.shape[1])
    nats = log_sums - _sum(jnp.where(at_target, logits, 0))
    # d/dlogits of (log_sum - target + z_loss * log_sum^2) is softmax * (1 + 2 * z_loss * log_sum) - one_hot.
    scale = weights.scale if by_token_weights is None else weights.scale * by_token_weights[:, None]
    of_softmax = scale * (weights.cross_entropy + 2 * weights.z_loss * log_sums) / sums
    gradient = exponents * of_softmax - jnp.where(at_target, scale * weights.cross_entropy, 0)
    by_token = [nats, log_sums**2]
    for penalty, beta, states, reference_matrix in zip(
        penalties, weights.betas, part.references, matrices, strict=True
    ):
        reference = _logits(states, reference_matrix, penalty.form_of(form.vocab))
        found = compared(logits, reference, at_target, nats, penalty)
        gradient = gradient + scale * beta * found.gradient
        by_token += [found.kl, found.nats]
    counted = tuple(jnp.where(loss_mask, values[:, 0], 0) for values in by_token)
    return counted, jnp.where(loss_mask[:, None], form.gradient(gradient, logits), 0)


def _logits(hidden: Array, matrix: Array, form: LogitForm) -> Array:
    """Float32, of the padded vocabulary, whose end has no share in any softmax."""
    logits = form.logits(jnp.einsum("tw,vw->tv", hidden, matrix, preferred_element_type=jnp.float32))
    return logits if len(matrix) == form.vocab else jnp.where(jnp.arange(len(matrix)) < form.vocab, logits, UNUSED)
