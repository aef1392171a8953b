"""What every engine promises of a stage that is distilled from a teacher."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engine.tiny import STAGE, TinyEngines, nats_of
from tests.support.batches import TINY, make_batch, settings_at
from trivium.engine.base import Engine, EngineSettings, KlSettings, StageSettings
from trivium.model.spec import RopeSpec
from trivium.rows.batch import Batch

# Other layers, width, heads, norms and positions; the same tokens.
TEACHER = replace(
    TINY, layers=3, width=48, heads=3, kv_heads=3, head_dim=16, ffn=96, qk_norm=True, rope=RopeSpec(500.0)
)


class DistillContract(TinyEngines):
    """The tests of distillation, which `EngineContract` inherits."""

    def teacher(self, folder: Path, steps: int = 8) -> Engine:
        """A larger model, some steps old, saved."""
        engine = self.make(EngineSettings(TEACHER, seed=9, device="cpu", precision="float32"))
        for step in range(steps):
            engine.step(make_batch(seed=step), settings_at(step))
        engine.save(folder).wait()
        return engine

    def distilled(self, folder: Path, **settings: Any) -> StageSettings:
        return replace(STAGE, distill=replace(KlSettings(0.6, folder, spec=TEACHER), **settings))

    def test_a_teacher_of_another_shape_is_followed_and_reported(self, tmp_path: Path) -> None:
        batch, teacher, plain = make_batch(), self.teacher(tmp_path), self.tiny().step(make_batch(), settings_at())
        engine = self.tiny()
        engine.enter(self.distilled(tmp_path))
        stats = engine.step(batch, settings_at())
        assert stats.loss == plain.loss
        assert stats.extra["teacher_loss"] == pytest.approx(nats_of(teacher, batch) / batch.loss_tokens(), rel=1e-5)
        objective = 0.4 * stats.loss + 0.6 * stats.extra["distill"]
        assert stats.extra["objective"] == pytest.approx(objective, rel=1e-9)
        assert stats.grad_norm != pytest.approx(plain.grad_norm, rel=1e-3)

    @pytest.mark.parametrize("how", [{}, {"temperature": 2.0, "top_k": 4}], ids=str)
    def test_with_the_teacher_alone_a_student_comes_to_it(self, how: dict[str, Any], tmp_path: Path) -> None:
        batch = make_batch()
        self.teacher(tmp_path)
        engine = self.tiny()
        engine.enter(self.distilled(tmp_path, beta=1.0, **how))
        kl = [engine.step(batch, settings_at(step)).extra["distill"] for step in range(40)]
        assert kl[-1] < kl[0] / 10
        assert kl[-1] >= 0

    def test_a_distilled_student_is_nearer_to_its_teacher_than_one_of_the_text_alone(self, tmp_path: Path) -> None:
        """On rows that neither was trained on, after as many steps on the same rows."""
        self.teacher(tmp_path, steps=30)
        unseen, found = make_batch(seed=99), []
        for stage in (self.distilled(tmp_path, beta=0.9), STAGE):
            engine = self.tiny()
            engine.enter(stage)
            for step in range(30):
                engine.step(make_batch(seed=step), settings_at(step))
            engine.enter(self.distilled(tmp_path))
            found.append(engine.step(unseen, settings_at(lr=0.0)).extra["distill"])
        assert found[0] < 0.8 * found[1]

    def test_kl_and_a_teacher_may_be_in_one_stage(self, tmp_path: Path) -> None:
        batch = make_batch()
        self.teacher(tmp_path / "teacher")
        engine = self.tiny()
        engine.save(tmp_path / "first").wait()
        for step in range(3):
            engine.step(make_batch(seed=step), settings_at(step))
        kl = KlSettings(0.5, tmp_path / "first", "reverse")
        engine.enter(replace(self.distilled(tmp_path / "teacher"), kl=kl))
        extra = engine.step(batch, settings_at(3, lr=0.0)).extra
        for stage, key in ((replace(STAGE, kl=kl), "kl"), (self.distilled(tmp_path / "teacher"), "distill")):
            engine.enter(stage)
            alone = engine.step(batch, settings_at(3, lr=0.0))
            assert extra[key] == pytest.approx(alone.extra[key], rel=1e-5)
        objective = 0.4 * alone.loss + 0.5 * extra["kl"] + 0.6 * extra["distill"]
        assert extra["objective"] == pytest.approx(objective, rel=1e-6)

    def test_a_teacher_in_the_hugging_face_form_is_the_same(self, tmp_path: Path) -> None:
        batch, teacher = make_batch(), self.teacher(tmp_path / "saved")
        teacher.export(tmp_path / "exported")
        found = []
        for folder in (tmp_path / "saved", tmp_path / "exported"):
            engine = self.tiny()
            engine.enter(self.distilled(folder))
            found.append(engine.step(batch, settings_at()).extra)
        assert found[0] == found[1]

    def test_a_resume_in_a_distilled_stage_continues_bit_for_bit(self, tmp_path: Path) -> None:
        self.teacher(tmp_path / "teacher")
        stage = self.distilled(tmp_path / "teacher", temperature=2.0, top_k=7)
        calm, resumed = self.tiny(), self.tiny(seed=2)
        calm.enter(stage)
        for step in range(3):
            calm.step(make_batch(seed=step), settings_at(step))
        calm.save(tmp_path / "middle").wait()
        resumed.load(tmp_path / "middle")
        resumed.enter(stage)
        for step in range(3, 5):
            batch = make_batch(seed=step)
            assert resumed.step(batch, settings_at(step)) == calm.step(batch, settings_at(step))

    def test_a_token_without_a_target_costs_nothing(self, tmp_path: Path) -> None:
        self.teacher(tmp_path)
        engine = self.tiny()
        engine.enter(self.distilled(tmp_path, top_k=3))
        batch: Batch = make_batch()
        nothing = replace(batch, targets=np.full_like(batch.targets, -100))
        stats = engine.step(nothing, settings_at())
        assert (stats.grad_norm, dict(stats.extra)) == (0.0, {"distill": 0.0, "teacher_loss": 0.0, "objective": 0.0})
