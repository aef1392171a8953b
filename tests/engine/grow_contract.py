"""What every engine promises of a vocabulary that grows."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.engine.freeze_contract import FreezeContract, State
from tests.engine.tiny import OPTIMIZERS, STAGE, nats_of
from tests.support.batches import TINY, VOCAB, make_batch, settings_at
from trivium.engine.average import AverageSettings
from trivium.engine.base import EngineSettings, KlSettings, OptimizerSettings
from trivium.errors import ResumeError
from trivium.model.folder import read_spec

GROWN = [VOCAB + 5, VOCAB + 200]  # within the padding, and beyond it


class GrowContract(FreezeContract):
    """The tests of growth, which `EngineContract` inherits."""

    def rows_of(self, vocab: int) -> int:
        """Rows of an embedding inside the engine."""
        return -(-vocab // 128) * 128

    @pytest.mark.parametrize(
        ("vocab", "optimizer"), [(GROWN[0], OPTIMIZERS[0]), *((GROWN[1], each) for each in OPTIMIZERS)]
    )
    def test_new_rows_are_the_mean_and_all_else_stays(self, vocab: int, optimizer: OptimizerSettings) -> None:
        engine = self.tiny(optimizer)
        engine.enter(replace(STAGE, average=AverageSettings(last=2), begin_average=True))
        for step in range(2):
            engine.step(make_batch(seed=step), settings_at(step))
            engine.add_to_average()
        before, kept = self.state_of(engine)
        with engine.averaged():
            average = self.state_of(engine)[0]["embedding.weight"]
        engine.enter(replace(STAGE, vocab=vocab, average=AverageSettings(last=2)))
        with engine.averaged():  # of two copies, each of which has grown
            now = self.state_of(engine)[0]["embedding.weight"]
        assert np.array_equal(now[:VOCAB], average[:VOCAB])
        mean = np.broadcast_to(average[:VOCAB].mean(axis=0), (vocab - VOCAB, TINY.width))
        assert now[VOCAB:vocab] == pytest.approx(mean, abs=1e-6)
        weights, state = self.state_of(engine)
        assert_grown(before, weights, vocab, zeros=False, rows=self.rows_of(vocab))
        assert_grown(kept, state, vocab, zeros=True, rows=self.rows_of(vocab))
        batch = make_batch(seed=3)
        new = replace(batch, tokens=np.where(batch.tokens == 1, vocab - 1, batch.tokens))
        new = replace(new, targets=np.where(batch.targets == 2, vocab - 1, new.targets))
        assert np.isfinite(engine.step(new, settings_at(3)).grad_norm)
        trained = self.state_of(engine)[0]
        assert not np.array_equal(trained["unembedding.weight"][vocab - 1], weights["unembedding.weight"][vocab - 1])
        assert not trained["unembedding.weight"][vocab:].any()

    @pytest.mark.parametrize("vocab", GROWN)
    def test_a_resume_before_at_and_after_the_growth_continues_bit_for_bit(self, vocab: int, tmp_path: Path) -> None:
        grown = replace(STAGE, vocab=vocab)
        calm = self.tiny()
        for step in range(4):
            if step == 2:
                calm.enter(grown)
            calm.step(make_batch(seed=step), settings_at(step))
            calm.save(tmp_path / f"{step + 1}").wait()
        assert read_spec(tmp_path / "2").vocab == VOCAB
        assert read_spec(tmp_path / "3").vocab == vocab
        end = self.hash_of(calm, tmp_path / "end")
        for saved in (1, 2, 3):
            resumed = self.tiny(seed=2)
            resumed.load(tmp_path / f"{saved}")
            resumed.enter(STAGE if saved < 2 else grown)
            for step in range(saved, 4):
                if step == 2:
                    resumed.enter(grown)
                resumed.step(make_batch(seed=step), settings_at(step))
            assert self.hash_of(resumed, tmp_path / f"resumed-{saved}") == end

    @pytest.mark.parametrize("form", ["saved", "exported"])
    @pytest.mark.parametrize("vocab", GROWN)
    def test_weights_of_a_smaller_vocabulary_are_started_from(self, vocab: int, form: str, tmp_path: Path) -> None:
        small = self.tiny()
        if form == "saved":
            small.save(tmp_path).wait()
        else:
            small.export(tmp_path)
        before = self.state_of(small)[0]
        large = self.make(EngineSettings(replace(TINY, vocab=vocab), seed=5, device="cpu"))
        large.start_from(tmp_path)
        assert_grown(before, self.state_of(large)[0], vocab, zeros=False, rows=self.rows_of(vocab))
        large.export(tmp_path / "grown")
        assert read_spec(tmp_path / "grown").vocab == vocab

    def test_weights_of_a_larger_vocabulary_are_refused(self, tmp_path: Path) -> None:
        self.tiny().save(tmp_path).wait()
        small = self.make(EngineSettings(replace(TINY, vocab=VOCAB - 1), device="cpu"))
        with pytest.raises(ResumeError, match=f"vocab was {VOCAB} and is now {VOCAB - 1}"):
            small.start_from(tmp_path)

    def test_a_reference_of_before_is_grown_alike(self, tmp_path: Path) -> None:
        engine = self.tiny()
        engine.save(tmp_path).wait()
        before = nats_of(engine, make_batch())
        engine.enter(replace(STAGE, vocab=GROWN[1], kl=KlSettings(0.5, tmp_path)))
        stats = engine.step(make_batch(), settings_at())
        assert stats.extra["kl"] == pytest.approx(0, abs=1e-6)
        assert stats.loss * stats.loss_tokens > before  # new tokens have a part of the probability


def assert_grown(old: State, new: State, vocab: int, *, zeros: bool, rows: int) -> None:
    """Rows of known tokens keep their bits, new ones are their mean or zeros, and the padding is zeros."""
    assert old.keys() == new.keys()
    for name, array in old.items():
        if name.partition(":")[0] not in ("embedding.weight", "unembedding.weight") or array.ndim < 2:
            assert np.array_equal(array, new[name]), name
            continue
        assert np.array_equal(array[:VOCAB], new[name][:VOCAB]), name
        mean = array[:VOCAB].mean(axis=0, dtype=np.float64).astype(np.float32)
        expected = np.zeros_like(mean) if zeros else mean
        assert (new[name][VOCAB:vocab] == expected).all(), name
        assert len(new[name]) == rows
        assert not new[name][vocab:].any(), name
