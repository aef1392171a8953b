"""What every engine promises of sources that have weights in the loss."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.engine.tiny import STAGE, TinyEngines
from tests.support.batches import make_batch, settings_at
from trivium.engine.base import KlSettings, StepStats
from trivium.engine.loss_weight import LossWeights
from trivium.rows.batch import IGNORED

HALF_CODE = LossWeights({"code": 0.5})


class LossWeightContract(TinyEngines):
    """The tests of weights, which `EngineContract` inherits."""

    def weighted_step(self, weights: LossWeights, micro_batch_size: int | None = None) -> StepStats:
        """The first step of a tiny engine."""
        engine = self.tiny(micro_batch_size=micro_batch_size)
        engine.enter(replace(STAGE, z_loss=1e-2, loss_weight=weights))
        return engine.step(make_batch(), settings_at())

    def test_weights_change_the_objective_and_not_the_loss(self) -> None:
        plain, weighted = self.weighted_step(LossWeights()), self.weighted_step(HALF_CODE)
        assert (weighted.loss, weighted.nats_by_source) == (plain.loss, plain.nats_by_source)
        assert weighted.grad_norm != pytest.approx(plain.grad_norm, rel=1e-3)
        nats, tokens = plain.nats_by_source, plain.loss_tokens_by_source
        mean = (nats["web"] + 0.5 * nats["code"]) / (tokens["web"] + 0.5 * tokens["code"])
        assert weighted.extra["weighted_loss"] == pytest.approx(mean, rel=1e-9)
        assert weighted.extra["weighted_loss"] != pytest.approx(plain.loss, rel=1e-4)
        assert weighted.extra["objective"] == pytest.approx(mean + weighted.extra["z_loss"], rel=1e-9)
        assert "weighted_loss" not in plain.extra

    def test_weights_in_proportion_are_the_same_weights(self) -> None:
        plain, same = self.weighted_step(LossWeights()), self.weighted_step(LossWeights({"web": 4.0, "code": 4.0}))
        assert same.grad_norm == pytest.approx(plain.grad_norm, rel=1e-5)
        assert same.extra["objective"] == pytest.approx(plain.extra["objective"], rel=1e-6)

    def test_micro_batches_do_not_change_weighted_steps(self) -> None:
        whole, parts = self.weighted_step(HALF_CODE), self.weighted_step(HALF_CODE, micro_batch_size=1)
        assert parts.grad_norm == pytest.approx(whole.grad_norm, rel=1e-5)
        assert parts.extra == pytest.approx(whole.extra, rel=1e-6)

    def test_a_source_of_weight_zero_teaches_nothing(self) -> None:
        weighted, masked, batch = self.tiny(), self.tiny(), make_batch()
        weighted.enter(replace(STAGE, loss_weight=LossWeights({"code": 0.0})))
        only_web = replace(batch, targets=np.where((batch.source == 0)[:, None], batch.targets, IGNORED))
        stats, expected = weighted.step(batch, settings_at()), masked.step(only_web, settings_at())
        assert stats.grad_norm == pytest.approx(expected.grad_norm, rel=1e-5)
        assert stats.extra["weighted_loss"] == pytest.approx(expected.loss, rel=1e-6)
        assert stats.loss_tokens == batch.loss_tokens()

    def test_a_batch_without_any_weight_is_not_a_nan(self) -> None:
        stats = self.weighted_step(LossWeights({"web": 0.0, "code": 0.0}))
        assert (stats.grad_norm, stats.extra["weighted_loss"], stats.extra["objective"]) == (0.0, 0.0, 0.0)
        assert stats.loss > 0

    def test_a_penalty_is_weighted_as_the_loss_is(self, tmp_path: Path) -> None:
        engine, batch = self.tiny(), make_batch()
        engine.save(tmp_path).wait()
        for step in range(3):
            engine.step(make_batch(seed=step + 1), settings_at(step))
        engine.enter(replace(STAGE, kl=KlSettings(0.5, tmp_path, "nll_gap"), loss_weight=HALF_CODE))
        extra = engine.step(batch, settings_at(3)).extra
        assert extra["kl"] == pytest.approx(extra["weighted_loss"] - extra["reference_loss"], rel=1e-3)
        assert extra["objective"] == pytest.approx(extra["weighted_loss"] + 0.5 * extra["kl"], rel=1e-9)
