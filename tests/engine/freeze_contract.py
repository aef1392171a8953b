"""What every engine promises of a stage that freezes parts of the model."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.engine.tiny import OPTIMIZERS, STAGE, TinyEngines
from tests.support.batches import TINY, make_batch, settings_at
from trivium.engine.average import AverageSettings
from trivium.engine.base import Engine, EngineSettings, OptimizerSettings
from trivium.model.parts import part_of, parts_of

FROZEN = ("embedding", "layers.0", "layers.1.attention")
State = Mapping[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]


class FreezeContract(TinyEngines):
    """The tests of freezing, which `EngineContract` inherits."""

    def state_of(self, engine: Engine) -> tuple[State, State]:
        """Weights by name, and the optimizer's arrays by their parameter's name and their own."""
        raise NotImplementedError

    @pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda settings: settings.name)
    def test_what_is_frozen_keeps_its_bits_and_the_rest_is_trained(self, optimizer: OptimizerSettings) -> None:
        engine = self.tiny(optimizer)
        for step in range(2):
            engine.step(make_batch(seed=step), settings_at(step))
        before, kept = self.state_of(engine)
        engine.enter(replace(STAGE, freeze=FROZEN))
        for step in range(2, 4):
            engine.step(make_batch(seed=step), settings_at(step))
        frozen = parts_of(FROZEN, TINY)
        for old, new in zip((before, kept), self.state_of(engine), strict=True):
            for name, array in old.items():
                is_frozen = part_of(name.partition(":")[0]) in frozen
                assert np.array_equal(array, new[name]) == is_frozen, name
        engine.enter(replace(STAGE, freeze=()))
        thawed = self.state_of(engine)[0]
        engine.step(make_batch(seed=4), settings_at(4))
        assert not any(np.array_equal(array, thawed[name]) for name, array in self.state_of(engine)[0].items())

    def test_the_norm_is_that_of_what_is_trained(self) -> None:
        """The frozen parts' gradients and the others' make the whole norm."""
        batch, rest = make_batch(), ("unembedding", "norm", "layers.1.feed_forward")
        found = []
        for freeze in ((), FROZEN, rest):
            engine = self.tiny()
            engine.enter(replace(STAGE, freeze=freeze))
            found.append(engine.step(batch, settings_at()))
        whole, one, other = (stats.grad_norm for stats in found)
        assert one**2 + other**2 == pytest.approx(whole**2, rel=1e-4)
        assert found[0].loss == found[1].loss == found[2].loss

    def test_what_is_trained_above_is_updated_as_without_freezing(self) -> None:
        updated = []
        for freeze in ((), FROZEN):
            engine = self.tiny(OptimizerSettings("adamw"))  # no clipping, which the norm decides
            engine.enter(replace(STAGE, freeze=freeze))
            engine.step(make_batch(), settings_at())
            updated.append(self.state_of(engine)[0])
        for name in ("unembedding.weight", "norm.weight", "layers.1.feed_forward.down.weight"):
            assert updated[1][name] == pytest.approx(updated[0][name], rel=1e-5, abs=1e-7)

    def test_freezing_one_tied_embedding_freezes_both(self) -> None:
        engine = self.make(EngineSettings(replace(TINY, tied_embeddings=True), seed=1, device="cpu"))
        before = self.state_of(engine)[0]["embedding.weight"]
        engine.enter(replace(STAGE, freeze=("unembedding",)))
        engine.step(make_batch(), settings_at())
        after = self.state_of(engine)[0]
        assert np.array_equal(after["embedding.weight"], before)

    def test_the_average_of_frozen_weights_is_themselves(self) -> None:
        engine = self.tiny()
        engine.enter(replace(STAGE, freeze=FROZEN, average=AverageSettings(ema=0.5), begin_average=True))
        for step in range(3):
            engine.step(make_batch(seed=step), settings_at(step))
        weights = self.state_of(engine)[0]
        with engine.averaged():
            average = self.state_of(engine)[0]
        frozen = parts_of(FROZEN, TINY)
        assert {name for name in weights if np.array_equal(weights[name], average[name])} == {
            name for name in weights if part_of(name) in frozen
        }

    def test_a_resume_in_a_frozen_stage_continues_bit_for_bit(self, tmp_path: Path) -> None:
        stage = replace(STAGE, freeze=FROZEN)
        calm, resumed = self.tiny(), self.tiny(seed=2)
        calm.enter(stage)
        for step in range(3):
            calm.step(make_batch(seed=step), settings_at(step))
        calm.save(tmp_path / "middle").wait()
        resumed.load(tmp_path / "middle")
        for engine, number in ((calm, 0), (resumed, 1)):
            if number:
                engine.enter(stage)
            engine.step(make_batch(seed=3), settings_at(3))
            engine.enter(STAGE)  # thawed: what was never trained has no state yet
            engine.step(make_batch(seed=4), settings_at(4))
        assert self.hash_of(resumed, tmp_path / "resumed") == self.hash_of(calm, tmp_path / "calm")
