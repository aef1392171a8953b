"""What every engine promises of models and losses of one's own. A test class inherits these and makes an engine."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engine.tiny import STAGE
from tests.support.batches import TINY, make_batch, settings_at
from trivium.engine.base import (
    Engine,
    EngineSettings,
    KlSettings,
    LossBatch,
    OptimizerSettings,
    Precision,
    StageSettings,
    StepStats,
)
from trivium.errors import ResumeError, UsageError

SETTINGS: list[dict[str, Any]] = [
    {"optimizer": OptimizerSettings("muon", grad_clip=1.0)},
    {"precision": "bfloat16", "recompute": "selective", "micro_batch_size": 2},
]


def steps(engine: Engine) -> list[StepStats]:
    return [engine.step(make_batch(seed=step), settings_at(step)) for step in range(3)]


def written(engine: Engine) -> list[float]:
    """Logits of a generation, of every pass."""
    generation = engine.generation([np.array([1, 2, 3]), np.array([4])], 2)
    found = [generation.logits()]
    for tokens in ([5, 6], [7, 8]):
        generation.append(np.array(tokens))
        found.append(generation.logits())
    generation.select(np.array([1, 1, 0]))
    logits: list[float] = np.concatenate([*found, generation.logits()]).ravel().tolist()
    return logits


class OwnContract(ABC):
    """Inherit, and give an engine, the decoder as a module of one's own, and losses in the engine's framework."""

    decoder: Callable[..., Any]  # the built-in one, from tokens, positions and documents to hidden states
    drawn: Callable[..., Any]  # the same, with zeros as first values of its last norm
    nats: Callable[..., Any]  # each token's cross-entropy, of hidden states, lm_head and targets
    smoothed: Callable[..., Any]  # another loss

    @abstractmethod
    def make(self, settings: EngineSettings) -> Engine:
        """An engine on the CPU."""

    def cross_entropy(self, hidden: Any, lm_head: Any, batch: LossBatch) -> Any:
        """The plain loss as one of one's own; the lm_head has no row of the padded vocabulary."""
        assert lm_head.shape == (TINY.vocab, TINY.width)
        return self.nats(hidden, lm_head, batch.targets)

    def engine(self, stage: StageSettings = STAGE, **settings: Any) -> Engine:
        engine = self.make(EngineSettings(TINY, device="cpu", **settings))
        engine.enter(stage)
        return engine

    @pytest.mark.parametrize(
        ("settings", "document_mask"), [(SETTINGS[0], True), (SETTINGS[1], False)], ids=["muon", "bfloat16"]
    )
    def test_the_decoder_as_ones_own_model_gives_its_numbers(
        self, settings: dict[str, Any], document_mask: bool
    ) -> None:
        stage = StageSettings(STAGE.seq_len, document_mask=document_mask)
        plain = self.engine(stage, **settings)
        own = self.engine(stage, make_model=self.decoder, **settings)
        near = 1e-4 if "precision" not in settings else 3e-2
        for one, other in zip(steps(plain), steps(own), strict=True):
            assert other.loss == pytest.approx(one.loss, rel=near)
            assert other.grad_norm == pytest.approx(one.grad_norm, rel=10 * near)
            assert other.nats_by_source == pytest.approx(one.nats_by_source, rel=near)
        assert own.evaluate(make_batch()).nats == pytest.approx(plain.evaluate(make_batch()).nats, rel=near)
        assert written(own) == pytest.approx(written(plain), abs=1e-3 if near == 1e-4 else 0.3)

    def test_cross_entropy_of_ones_own_gives_the_same_numbers(self) -> None:
        self.compare_cross_entropy("float32")

    def compare_cross_entropy(self, precision: Precision) -> None:
        """Steps with cross-entropy as a loss of one's own, beside steps without."""
        plain = self.engine(precision=precision, micro_batch_size=3)
        own = self.engine(precision=precision, micro_batch_size=3, token_losses=self.cross_entropy)
        near = 1e-5 if precision == "float32" else 3e-2
        for one, other in zip(steps(plain), steps(own), strict=True):
            assert other.loss == pytest.approx(one.loss, rel=near)
            assert other.grad_norm == pytest.approx(one.grad_norm, rel=10 * near)
            assert other.loss_tokens_by_source == one.loss_tokens_by_source
            assert other.nats_by_source == pytest.approx(one.nats_by_source, rel=near)
            assert other.extra == {}

    def test_another_loss_changes_gradients_and_evaluation_stays_plain(self) -> None:
        plain, own = self.engine(), self.engine(token_losses=self.smoothed)
        assert own.evaluate(make_batch()) == plain.evaluate(make_batch())
        one, other = steps(plain)[0], steps(own)[0]
        assert other.loss != pytest.approx(one.loss, rel=1e-3)
        assert other.grad_norm != pytest.approx(one.grad_norm, rel=1e-2)

    def test_figures_of_a_loss_are_means_over_the_tokens_that_count(self) -> None:
        def counting(hidden: Any, lm_head: Any, batch: Any) -> Any:
            losses = self.cross_entropy(hidden, lm_head, batch)
            one = losses * 0 + 1
            return losses, {"one": one, "position": one * batch.positions, "document": one * batch.documents}

        batch = make_batch()
        counts = batch.targets >= 0
        extra = self.engine(token_losses=counting, micro_batch_size=3).step(batch, settings_at()).extra
        means = {"position": batch.positions[counts].mean(), "document": batch.segments[counts].mean()}
        assert extra == pytest.approx({"one": 1.0, **means}, rel=1e-6)

    def test_losses_and_figures_that_are_not_one_for_each_token_are_refused(self) -> None:
        wrong: list[tuple[Callable[..., Any], str]] = [
            (lambda hidden: hidden.sum(), "() as a loss"),
            (lambda hidden: (hidden[:, 0], {"mean": 3.0}), "float as mean"),
            (lambda hidden: None, "NoneType as a loss"),
        ]
        for found, shown in wrong:
            engine = self.engine(token_losses=lambda hidden, lm_head, batch: found(hidden))  # noqa: B023
            with pytest.raises(UsageError) as refusal:
                steps(engine)
            what = f"the function of Trainer.loss() returned {shown}, not one for each token."
            assert str(refusal.value) == what

    def test_a_model_may_draw_its_first_weights_itself(self) -> None:
        nats = self.engine(make_model=self.drawn).evaluate(make_batch()).nats
        assert nats == pytest.approx(np.log(TINY.vocab) * make_batch().loss_tokens(), rel=1e-5)

    def test_weights_are_read_by_the_model_that_they_are_of(self, tmp_path: Path) -> None:
        plain, own = self.engine(), self.engine(make_model=self.decoder)
        plain.save(tmp_path / "plain").wait()
        own.save(tmp_path / "own").wait()
        for engine, folder in ((plain, "own"), (own, "plain")):
            for read in (engine.load, engine.start_from):
                with pytest.raises(ResumeError, match="holds a "):
                    read(tmp_path / folder)
        own.enter(StageSettings(STAGE.seq_len, kl=KlSettings(0.5, tmp_path / "own")))
        assert own.step(make_batch(), settings_at()).extra["kl"] == pytest.approx(0, abs=1e-6)
