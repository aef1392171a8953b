"""Doors for models and losses of the user's own: the default's numbers where they are the default, others where not."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear

from tests.engine.contract import STAGE
from tests.support.batches import TINY, make_batch, settings_at
from trivium.engine.base import EngineSettings, Precision, StageSettings, StepStats
from trivium.engine.torch.engine import TorchEngine
from trivium.engine.torch.model import Decoder, DeviceBatch
from trivium.errors import UsageError


class Renamed(Decoder):
    """The decoder under another name."""


class Louder(Decoder):
    """A decoder whose hidden states are doubled."""

    def hidden(self, batch: DeviceBatch) -> Tensor:
        return 2 * super().hidden(batch)


def own_cross_entropy(hidden: Tensor, lm_head: Tensor, targets: Tensor) -> Tensor:
    assert lm_head.shape == (TINY.vocab, TINY.width)
    return cross_entropy(linear(hidden, lm_head).float(), targets, reduction="none")


def smoothed(hidden: Tensor, lm_head: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(linear(hidden, lm_head).float(), targets, reduction="none", label_smoothing=0.5)


def engine(**settings: Any) -> TorchEngine:
    made = TorchEngine(EngineSettings(TINY, device="cpu", **settings))
    made.enter(STAGE)
    return made


def steps(made: TorchEngine) -> list[StepStats]:
    return [made.step(make_batch(seed=step), settings_at(step)) for step in range(3)]


def written(made: TorchEngine) -> list[float]:
    """Logits of a generation, of every pass."""
    generation = made.generation([np.array([1, 2, 3]), np.array([4])], 2)
    found = [generation.logits()]
    for tokens in ([5, 6], [7, 8]):
        generation.append(np.array(tokens))
        found.append(generation.logits())
    return np.concatenate(found).ravel().tolist()


@pytest.mark.parametrize(
    "settings", [{}, {"precision": "bfloat16", "activation_checkpointing": True, "micro_batch_size": 2}]
)
def test_a_subclassed_decoder_gives_the_same_numbers(settings: dict[str, Any]) -> None:
    plain, own = engine(**settings), engine(make_model=Renamed, **settings)
    assert type(own.model) is Renamed
    assert steps(own) == steps(plain)
    assert own.evaluate(make_batch()) == plain.evaluate(make_batch())
    near = 1e-4 if "precision" not in settings else 0.2
    assert written(own) == pytest.approx(written(plain), abs=near)


def test_another_model_trains_evaluates_and_generates_as_it_is_written() -> None:
    plain, louder = engine(), engine(make_model=Louder)
    assert written(louder) == pytest.approx([2 * logit for logit in written(plain)], rel=1e-4, abs=1e-4)
    assert louder.evaluate(make_batch()).nats != pytest.approx(plain.evaluate(make_batch()).nats, rel=1e-3)
    assert steps(louder)[0].grad_norm != pytest.approx(steps(plain)[0].grad_norm, rel=1e-3)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_cross_entropy_of_ones_own_gives_the_same_numbers(precision: Precision) -> None:
    plain, own = engine(precision=precision), engine(precision=precision, token_losses=own_cross_entropy)
    near = 1e-5 if precision == "float32" else 3e-2
    for one, other in zip(steps(plain), steps(own), strict=True):
        assert other.loss == pytest.approx(one.loss, rel=near)
        assert other.grad_norm == pytest.approx(one.grad_norm, rel=10 * near)
        assert other.loss_tokens_by_source == one.loss_tokens_by_source
        assert other.nats_by_source == pytest.approx(one.nats_by_source, rel=near)


def test_another_loss_changes_gradients_and_evaluation_stays_plain() -> None:
    plain, own = engine(), engine(token_losses=smoothed)
    assert own.evaluate(make_batch()) == plain.evaluate(make_batch())
    one, other = steps(plain)[0], steps(own)[0]
    assert other.loss != pytest.approx(one.loss, rel=1e-3)
    assert other.grad_norm != pytest.approx(one.grad_norm, rel=1e-2)


def test_losses_that_are_not_one_for_each_token_are_refused() -> None:
    with pytest.raises(UsageError) as refusal:
        steps(engine(token_losses=lambda hidden, lm_head, targets: hidden.sum()))
    tokens = make_batch(seed=0).loss_tokens()
    assert str(refusal.value) == f"token_losses: gave (), not a loss for each of {tokens} tokens."


def test_a_model_that_lacks_what_the_engine_uses_is_refused() -> None:
    with pytest.raises(UsageError) as refusal:
        engine(make_model=lambda spec: nn.Linear(3, 3))
    assert str(refusal.value) == (
        "make_model: made a Linear, which lacks spec, precision, activation_checkpointing, layers, lm_head, hidden, "
        "next_logits. Subclass the torch engine's Decoder."
    )


def test_a_stage_with_further_terms_is_refused_beside_ones_own_losses() -> None:
    with pytest.raises(UsageError) as refusal:
        engine(token_losses=smoothed).enter(StageSettings(16, z_loss=1e-3))
    assert str(refusal.value) == (
        "token_losses: is the whole objective, but the stage has z_loss or kl. Leave these out."
    )


def test_a_decoder_needs_no_engine_to_give_logits() -> None:
    torch.manual_seed(0)
    model, made = Decoder(TINY), engine()
    batch = DeviceBatch.of(make_batch(), made.rotation, True)
    ends = torch.tensor([0, 5])
    torch.testing.assert_close(model.next_logits(batch, ends), model.logits(batch).flatten(0, 1)[ends])
