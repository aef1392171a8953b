"""What every engine promises about optimizers that change from stage to stage, and about updates that it skips."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.engine.tiny import OPTIMIZERS, STAGE, TinyEngines
from tests.support.batches import make_batch, settings_at
from trivium.engine.base import Engine, OptimizerSettings, StageSettings

ADAMW, MUON, ADEMAMIX = OPTIMIZERS
OTHERS = [MUON, ADEMAMIX]


def under(optimizer: OptimizerSettings) -> StageSettings:
    return replace(STAGE, optimizer=optimizer)


def take(engine: Engine, first: int, end: int) -> list[float]:
    return [engine.step(make_batch(seed=step), settings_at(step)).loss for step in range(first, end)]


class OptimizerContract(TinyEngines):
    """Inherit, and give `make`."""

    def test_a_stage_may_average_and_decay_otherwise_and_keeps_the_state(self, tmp_path: Path) -> None:
        other = replace(ADAMW, betas=(0.5, 0.9), eps=0.1, no_decay=())
        changed, as_ever, fresh = self.tiny(), self.tiny(), self.tiny()
        for engine in (changed, as_ever, fresh):
            take(engine, 0, 2)
        kept = self.hash_of(changed, tmp_path / "before")
        changed.enter(under(other))
        assert self.hash_of(changed, tmp_path / "after") == kept
        fresh.enter(replace(under(other), reset_optimizer=True))
        assert len({take(engine, 2, 5)[-1] for engine in (changed, as_ever, fresh)}) == 3

    def test_a_stage_that_says_nothing_has_the_engines_optimizer_again(self) -> None:
        changed, as_ever = self.tiny(), self.tiny()
        changed.enter(under(replace(ADAMW, betas=(0.5, 0.9))))
        changed.enter(STAGE)
        assert take(changed, 0, 3) == take(as_ever, 0, 3)

    @pytest.mark.parametrize("grad_clip", [0.2, None])
    def test_clipping_changes_at_the_first_step_of_a_stage(self, grad_clip: float | None, tmp_path: Path) -> None:
        always, later = self.tiny(replace(ADAMW, grad_clip=grad_clip)), self.tiny()
        later.enter(under(replace(ADAMW, grad_clip=grad_clip)))
        assert take(always, 0, 3) == take(later, 0, 3)
        assert self.hash_of(always, tmp_path / "always") == self.hash_of(later, tmp_path / "later")

    @pytest.mark.parametrize("optimizer", OTHERS, ids=lambda settings: settings.name)
    def test_another_optimizer_starts_fresh_from_the_weights(
        self, optimizer: OptimizerSettings, tmp_path: Path
    ) -> None:
        changed, fresh = self.tiny(), self.tiny(optimizer, seed=2)
        take(changed, 0, 2)
        changed.save(tmp_path / "saved").wait()
        fresh.start_from(tmp_path / "saved")
        changed.enter(under(optimizer))
        assert take(changed, 2, 5) == take(fresh, 2, 5)

    @pytest.mark.parametrize("optimizer", OTHERS, ids=lambda settings: settings.name)
    def test_a_resume_is_exact_where_another_optimizer_begins_and_after(
        self, optimizer: OptimizerSettings, tmp_path: Path
    ) -> None:
        never_stopped = self.tiny()
        take(never_stopped, 0, 2)
        never_stopped.save(tmp_path / "boundary").wait()
        never_stopped.enter(under(optimizer))
        take(never_stopped, 2, 4)
        never_stopped.save(tmp_path / "middle").wait()
        take(never_stopped, 4, 6)
        end = self.hash_of(never_stopped, tmp_path / "end")
        at_boundary, in_middle = self.tiny(seed=2), self.tiny(seed=3)
        at_boundary.load(tmp_path / "boundary", ADAMW)
        in_middle.load(tmp_path / "middle", optimizer)
        for engine, step in ((at_boundary, 2), (in_middle, 4)):
            engine.enter(under(optimizer))
            take(engine, step, 6)
            assert self.hash_of(engine, tmp_path / f"from {step}") == end

    def test_ademamix_moves_by_both_averages(self, tmp_path: Path) -> None:
        """With alpha = 0 it is AdamW; the slow average adds to it."""
        plain = replace(ADAMW, grad_clip=None)
        adamw, without, with_slow = self.tiny(plain), self.tiny(ADEMAMIX), self.tiny(ADEMAMIX)
        for step in range(4):
            batch, now = make_batch(seed=step), settings_at(step)
            expected = adamw.step(batch, now).loss
            assert without.step(batch, replace(now, alpha=0.0)).loss == pytest.approx(expected, rel=1e-5)
            other = with_slow.step(batch, replace(now, alpha=8.0)).loss
        assert not np.isclose(other, expected, rtol=1e-3)

    def test_a_gradient_over_its_limit_makes_no_update(self, tmp_path: Path) -> None:
        engine = self.tiny()
        take(engine, 0, 1)
        before = self.hash_of(engine, tmp_path / "before")
        norm = engine.step(make_batch(seed=1), replace(settings_at(1), norm_limit=1e-3)).grad_norm
        skipped = engine.step(make_batch(seed=1), replace(settings_at(1), norm_limit=norm * 0.99))
        assert skipped.skipped == f"the gradient's norm is {norm:.4g}, over {norm * 0.99:.4g}"
        assert self.hash_of(engine, tmp_path / "after") == before
        assert engine.step(make_batch(seed=1), replace(settings_at(1), norm_limit=norm * 1.01)).skipped is None
