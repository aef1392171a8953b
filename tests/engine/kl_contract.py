"""What every engine promises of KL to a frozen reference."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engine.tiny import DIRECTIONS, STAGE, TinyEngines, change_segment, nats_of, only_learn
from tests.support.batches import TINY, make_batch, settings_at
from trivium.engine.base import Direction, Engine, EngineSettings, KlSettings, Precision
from trivium.errors import ResumeError
from trivium.model.folder import read_spec, write_spec
from trivium.model.spec import RopeSpec
from trivium.rows.batch import IGNORED


class KlContract(TinyEngines):
    """The tests of KL, which `EngineContract` inherits."""

    def anchored(self, folder: Path, steps: int = 0, **settings: Any) -> Engine:
        """An engine some steps away from its own first weights, in a stage with KL to them."""
        engine = self.tiny(
            micro_batch_size=settings.pop("micro_batch_size", None),
            precision=settings.pop("engine_precision", "float32"),
        )
        engine.save(folder).wait()
        for step in range(steps):
            engine.step(make_batch(seed=50 + step), settings_at(step))
        engine.enter(replace(STAGE, kl=replace(KlSettings(0.5, folder), **settings)))
        return engine

    @pytest.mark.parametrize("precision", ["float32", "bfloat16"])
    @pytest.mark.parametrize("direction", DIRECTIONS)
    def test_at_the_reference_itself_kl_is_zero(
        self, direction: Direction, precision: Precision, tmp_path: Path
    ) -> None:
        batch = make_batch()
        engine = self.anchored(tmp_path, direction=direction, engine_precision=precision)
        plain = self.tiny(precision=precision).step(batch, settings_at())
        stats = engine.step(batch, settings_at())
        assert stats.loss == pytest.approx(plain.loss, rel=1e-6)
        assert stats.extra["kl"] == pytest.approx(0, abs=1e-6)
        assert stats.extra["reference_loss"] == pytest.approx(stats.loss, rel=1e-6)
        assert stats.extra["objective"] == pytest.approx(stats.loss, rel=1e-6)
        times = 1.5 if direction == "nll_gap" else 1.0
        rounding = 1e-4 if precision == "float32" else 1e-2
        assert stats.grad_norm == pytest.approx(times * plain.grad_norm, rel=rounding)

    @pytest.mark.parametrize("direction", DIRECTIONS)
    def test_away_from_the_reference_kl_is_reported_and_pulls(self, direction: Direction, tmp_path: Path) -> None:
        batch = make_batch()
        engine = self.anchored(tmp_path / "first", steps=5, direction=direction)
        engine.save(tmp_path / "now").wait()
        first, now = self.tiny(seed=2), self.tiny(seed=3)
        first.start_from(tmp_path / "first")
        now.start_from(tmp_path / "now")
        plain, stats = now.step(batch, settings_at()), engine.step(batch, settings_at(5))
        reference_loss = nats_of(first, batch) / batch.loss_tokens()
        assert stats.loss == pytest.approx(plain.loss, rel=1e-6)
        assert stats.nats_by_source == pytest.approx(plain.nats_by_source)
        assert stats.extra["reference_loss"] == pytest.approx(reference_loss, rel=1e-5)
        gap = plain.loss - reference_loss
        if direction == "nll_gap":
            assert stats.extra["kl"] == pytest.approx(gap, rel=1e-4)
            assert stats.grad_norm == pytest.approx(1.5 * plain.grad_norm, rel=1e-5)
        else:
            assert stats.extra["kl"] > 0.01
            assert stats.extra["kl"] != pytest.approx(gap, rel=1e-2)
        assert stats.extra["objective"] == pytest.approx(stats.loss + 0.5 * stats.extra["kl"], rel=1e-9)

    def test_a_heavy_penalty_brings_the_model_back_to_the_reference(self, tmp_path: Path) -> None:
        batch = make_batch()
        engine = self.anchored(tmp_path, steps=5, beta=100.0)
        kl = [engine.step(batch, settings_at(step)).extra["kl"] for step in range(5, 40)]
        assert kl[-1] < kl[0] / 10

    def test_kl_does_not_depend_on_the_micro_batch(self, tmp_path: Path) -> None:
        whole, parts = (self.anchored(tmp_path / f"{size}", steps=3, micro_batch_size=size) for size in (None, 1))
        for step in range(3, 6):
            batch = make_batch(seed=step)
            one, other = whole.step(batch, settings_at(step)), parts.step(batch, settings_at(step))
            assert dict(other.extra) == pytest.approx(dict(one.extra), rel=1e-4)
            assert other.grad_norm == pytest.approx(one.grad_norm, rel=1e-4)

    def test_a_reference_sees_documents_as_the_model_does(self, tmp_path: Path) -> None:
        engine = self.anchored(tmp_path)
        batch = only_learn(make_batch(), 1)
        figures = [engine.step(each, settings_at(lr=0.0)).extra for each in (batch, change_segment(batch, 0))]
        assert dict(figures[1]) == pytest.approx(dict(figures[0]), rel=1e-5, abs=1e-6)

    def test_a_reference_keeps_its_own_rotary_positions(self, tmp_path: Path) -> None:
        batch, other = make_batch(), RopeSpec(theta=50.0)
        first = self.tiny()
        first.save(tmp_path).wait()
        plain = first.step(batch, settings_at())
        write_spec(tmp_path, replace(read_spec(tmp_path), rope=other))  # as if it had been trained with these
        kept = self.tiny()
        kept.start_from(tmp_path)
        kept.enter(replace(STAGE, rope=other))
        expected = nats_of(kept, batch) / batch.loss_tokens()
        kept.enter(replace(STAGE, kl=KlSettings(0.5, tmp_path)))
        stats = kept.step(batch, settings_at())
        assert stats.extra["reference_loss"] == pytest.approx(expected, rel=1e-6)
        assert stats.loss == pytest.approx(plain.loss, rel=1e-6)
        assert stats.extra["kl"] > 1e-4

    def test_a_reference_of_less_precision_is_near(self, tmp_path: Path) -> None:
        batch = make_batch()
        exact = self.anchored(tmp_path / "exact", steps=3).step(batch, settings_at(3))
        rounded = self.anchored(tmp_path / "rounded", steps=3, precision="bfloat16").step(batch, settings_at(3))
        assert rounded.loss == exact.loss
        assert rounded.extra["kl"] != exact.extra["kl"]
        assert rounded.extra["kl"] == pytest.approx(exact.extra["kl"], rel=0.05)

    def test_a_hugging_face_folder_is_a_reference_too(self, tmp_path: Path) -> None:
        engine = self.tiny()
        engine.export(tmp_path)
        engine.enter(replace(STAGE, kl=KlSettings(0.5, tmp_path)))
        stats = engine.step(make_batch(), settings_at())
        assert stats.extra["kl"] == pytest.approx(0, abs=1e-6)
        assert math.isfinite(stats.grad_norm)

    def test_the_reference_is_frozen_and_is_not_saved(self, tmp_path: Path) -> None:
        batch = make_batch()
        engine = self.anchored(tmp_path / "first")
        reference = [engine.step(batch, settings_at(step)).extra["reference_loss"] for step in range(4)]
        assert reference == [reference[0]] * 4
        engine.save(tmp_path / "now").wait()
        sizes = [sum(path.stat().st_size for path in (tmp_path / name).rglob("*")) for name in ("first", "now")]
        adam = 2 * 4 * TINY.parameters
        assert sizes[1] - sizes[0] < 2 * adam

    def test_a_resume_in_a_stage_with_kl_continues_bit_for_bit(self, tmp_path: Path) -> None:
        never_stopped = self.anchored(tmp_path / "first")
        for step in range(3):
            never_stopped.step(make_batch(seed=step), settings_at(step))
        never_stopped.save(tmp_path / "middle").wait()
        resumed = self.tiny(seed=2)
        resumed.load(tmp_path / "middle")
        resumed.enter(replace(STAGE, kl=KlSettings(0.5, tmp_path / "first")))
        for step in range(3, 6):
            stats = never_stopped.step(make_batch(seed=step), settings_at(step))
            assert resumed.step(make_batch(seed=step), settings_at(step)) == stats
        assert self.hash_of(resumed, tmp_path / "resumed") == self.hash_of(never_stopped, tmp_path / "end")

    def test_validation_is_plain_cross_entropy_in_a_stage_with_kl_too(self, tmp_path: Path) -> None:
        batch = make_batch()
        engine = self.anchored(tmp_path, steps=3, beta=10.0)
        with_kl = engine.evaluate(batch)
        engine.enter(STAGE)
        assert engine.evaluate(batch) == with_kl

    def test_after_a_stage_with_kl_comes_a_plain_one(self, tmp_path: Path) -> None:
        plain, engine, batch = self.tiny(), self.anchored(tmp_path), make_batch()
        engine.enter(STAGE)
        assert engine.step(batch, settings_at()) == plain.step(batch, settings_at())

    def test_kl_with_nothing_to_learn_is_not_a_nan(self, tmp_path: Path) -> None:
        batch = make_batch()
        nothing = replace(batch, targets=np.full_like(batch.targets, IGNORED))
        stats = self.anchored(tmp_path, steps=2).step(nothing, settings_at(2))
        assert (stats.loss, stats.grad_norm) == (0.0, 0.0)
        assert dict(stats.extra) == {"kl": 0.0, "reference_loss": 0.0, "objective": 0.0}

    def test_another_model_is_refused_as_a_reference(self, tmp_path: Path) -> None:
        self.make(EngineSettings(replace(TINY, ffn=128), device="cpu")).save(tmp_path).wait()
        with pytest.raises(ResumeError, match="holds another model: ffn was 128 and is now 64"):
            self.tiny().enter(replace(STAGE, kl=KlSettings(0.5, tmp_path)))
