"""What every engine promises. A test class for an engine inherits these tests and makes one in `make`."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.engine.average_contract import AverageContract
from tests.engine.distill_contract import DistillContract
from tests.engine.grow_contract import GrowContract
from tests.engine.kl_contract import KlContract
from tests.engine.layers_contract import LayersContract
from tests.engine.optimizer_contract import OptimizerContract
from tests.engine.tiny import OPTIMIZERS, STAGE, change_segment, nats_of, only_learn
from tests.engine.weight_contract import LossWeightContract
from tests.support.batches import ROWS, SEQ_LEN, TINY, VOCAB, make_batch, settings_at
from tests.support.generated import log_probabilities, normalised
from trivium.engine.base import (
    EngineSettings,
    OptimizerSettings,
    Precision,
    Recompute,
    StageSettings,
)
from trivium.engine.figures import figures_by_position
from trivium.errors import ResumeError, UsageError
from trivium.model.folder import read_spec
from trivium.model.spec import RopeSpec
from trivium.rows.batch import IGNORED, PADDING

GENERATED = [
    STAGE,
    StageSettings(40, RopeSpec(scaling="yarn", factor=4.0, original_seq_len=SEQ_LEN)),
    StageSettings(40, RopeSpec(dropped=(1,))),
]


class EngineContract(
    KlContract, DistillContract, GrowContract, OptimizerContract, LossWeightContract, AverageContract, LayersContract
):
    """Inherit, and give `make`."""

    @pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda settings: settings.name)
    def test_a_batch_is_learnt_by_heart(self, optimizer: OptimizerSettings) -> None:
        engine, batch = self.tiny(optimizer), make_batch()
        losses = [engine.step(batch, settings_at(step)).loss for step in range(30)]
        assert losses[-1] < losses[0] / 2

    def test_figures_by_source_add_up(self) -> None:
        batch = make_batch()
        stats = self.tiny().step(batch, settings_at())
        assert stats.loss_tokens == batch.loss_tokens() == sum(stats.loss_tokens_by_source.values())
        assert set(stats.nats_by_source) == {"web", "code"}
        assert sum(stats.nats_by_source.values()) == pytest.approx(stats.loss * stats.loss_tokens, rel=1e-12)

    def test_step_and_evaluation_report_the_same_loss(self) -> None:
        engine, batch = self.tiny(), make_batch()
        before = engine.evaluate(batch)
        stats = engine.step(batch, settings_at())
        assert stats.loss == pytest.approx(before.nats / before.tokens, rel=1e-6)
        assert {name: part.nats for name, part in before.by_source.items()} == pytest.approx(stats.nats_by_source)

    @pytest.mark.parametrize("micro_batch_size", [None, 1, 3])
    def test_a_step_has_the_mean_loss_of_every_row(self, micro_batch_size: int | None) -> None:
        batch = make_batch()
        batch.targets[1] = IGNORED
        engine = self.tiny(micro_batch_size=micro_batch_size)
        nats, tokens = engine.nats(batch).sum(axis=1), batch.loss_tokens_by_row()
        found = engine.step(batch, settings_at()).loss_by_row
        assert found is not None
        assert found == pytest.approx(nats / np.maximum(1, tokens), rel=1e-5)
        assert found[1] == 0
        assert len(set(found.tolist())) == len(found)

    def test_losses_are_summed_by_the_position_in_a_document(self) -> None:
        batch = make_batch(rows=((140, 20), (70, 90)), seq_len=160)
        engine = self.tiny()
        engine.enter(StageSettings(160))
        found = engine.evaluate(batch)
        assert found.by_position[:, 1].tolist()[:3] == [64 + 19 + 64 + 64, 64 + 5 + 25, 11]
        assert found.by_position.sum(axis=0) == pytest.approx([found.nats, found.tokens], rel=1e-5)
        assert found.by_position == pytest.approx(figures_by_position(batch, engine.nats(batch)), rel=1e-5)

    @pytest.mark.parametrize("micro_batch_size", [1, 3])
    def test_micro_batches_change_nothing(self, micro_batch_size: int) -> None:
        whole, parts = self.tiny(), self.tiny(micro_batch_size=micro_batch_size)
        for step in range(3):
            batch = make_batch(seed=step)
            one, other = whole.step(batch, settings_at(step)), parts.step(batch, settings_at(step))
            assert one.loss == pytest.approx(other.loss, rel=1e-6)
            assert one.grad_norm == pytest.approx(other.grad_norm, rel=1e-5)

    @pytest.mark.parametrize("recompute", ["selective", "full"])
    def test_recomputed_activations_change_nothing(self, recompute: Recompute) -> None:
        kept, recomputed = self.tiny(), self.tiny(recompute=recompute)
        for step in range(3):
            batch = make_batch(seed=step)
            loss = kept.step(batch, settings_at(step)).loss
            assert recomputed.step(batch, settings_at(step)).loss == pytest.approx(loss, rel=1e-6)

    def test_a_stage_may_recompute_and_take_smaller_passes_than_the_engine(self) -> None:
        plain, changing = self.tiny(), self.tiny(micro_batch_size=3)
        stages = [STAGE, replace(STAGE, recompute="selective", micro_batch_size=1), replace(STAGE, recompute="full")]
        for step, stage in enumerate(stages):
            changing.enter(stage)
            batch = make_batch(seed=step)
            loss = plain.step(batch, settings_at(step)).loss
            assert changing.step(batch, settings_at(step)).loss == pytest.approx(loss, rel=1e-6)

    def test_a_batch_with_nothing_to_learn_is_not_a_nan(self) -> None:
        engine, batch = self.tiny(), make_batch()
        nothing = replace(batch, targets=np.full_like(batch.targets, IGNORED))
        stats = engine.step(nothing, settings_at())
        assert (stats.loss, stats.loss_tokens, stats.grad_norm) == (0.0, 0, 0.0)
        assert engine.evaluate(nothing).tokens == 0
        assert math.isfinite(nats_of(engine, batch))

    def test_a_micro_batch_with_nothing_to_learn_is_not_a_nan(self) -> None:
        batch = make_batch(((16,), (1, 1, 1)))
        whole, parts = self.tiny(), self.tiny(micro_batch_size=1)
        loss = whole.step(batch, settings_at()).loss
        assert parts.step(batch, settings_at()).loss == pytest.approx(loss, rel=1e-6)

    def test_masked_documents_do_not_see_each_other(self) -> None:
        engine = self.tiny()
        batch = only_learn(make_batch(), 1)
        assert nats_of(engine, change_segment(batch, 0)) == pytest.approx(nats_of(engine, batch), rel=1e-6)

    def test_a_masked_document_reads_as_if_it_were_alone(self) -> None:
        engine, batch = self.tiny(), make_batch(((5, 9),))
        first, second = (
            replace(
                make_batch(((length,),)),
                tokens=_moved(batch.tokens, start, length, 0),
                targets=_moved(batch.targets, start, length, IGNORED),
            )
            for start, length in ((0, 5), (5, 9))
        )
        assert nats_of(engine, batch) == pytest.approx(nats_of(engine, first) + nats_of(engine, second), rel=1e-6)

    def test_joined_documents_are_one(self) -> None:
        engine = self.tiny()
        engine.enter(replace(STAGE, document_mask=False))
        batch = only_learn(make_batch(), 1)
        assert nats_of(engine, change_segment(batch, 0)) != pytest.approx(nats_of(engine, batch), rel=1e-3)
        one_document = replace(
            batch,
            segments=np.where(batch.segments == PADDING, PADDING, 0),
            positions=np.broadcast_to(np.arange(SEQ_LEN, dtype=np.int32), batch.positions.shape),
        )
        joined = nats_of(engine, batch)
        engine.enter(STAGE)
        assert nats_of(engine, one_document) == pytest.approx(joined, rel=1e-6)

    @pytest.mark.parametrize("stage", [STAGE, replace(STAGE, document_mask=False)], ids=["masked", "joined"])
    def test_padding_is_not_seen(self, stage: StageSettings) -> None:
        engine, batch = self.tiny(), make_batch()
        engine.enter(stage)
        assert nats_of(engine, change_segment(batch, PADDING)) == nats_of(engine, batch)

    def test_arrays_may_be_read_only(self) -> None:
        batch = make_batch()
        for array in (batch.tokens, batch.targets, batch.segments, batch.positions, batch.source):
            array.setflags(write=False)
        assert math.isfinite(self.tiny(micro_batch_size=2).step(batch, settings_at()).loss)

    def test_rows_may_be_of_any_length(self) -> None:
        engine = self.tiny()
        long, short = make_batch(((30, 10),), seq_len=40), make_batch(((5, 3),), seq_len=8)
        for batch in (long, short):
            assert math.isfinite(nats_of(engine, batch))
        engine.enter(StageSettings(40))
        assert math.isfinite(engine.step(long, settings_at()).loss)

    def test_a_stage_brings_its_rotary_positions(self) -> None:
        engine, batch = self.tiny(), make_batch()
        plain = nats_of(engine, batch)
        others = [RopeSpec(theta=50.0), RopeSpec(scaling="linear", factor=4.0, original_seq_len=SEQ_LEN)]
        for rope in (*others, RopeSpec(scaling="yarn", factor=4.0, original_seq_len=SEQ_LEN)):
            engine.enter(replace(STAGE, rope=rope))
            assert nats_of(engine, batch) != pytest.approx(plain, rel=1e-5)
        engine.enter(STAGE)
        assert nats_of(engine, batch) == plain

    def test_z_loss_is_reported_beside_the_plain_loss(self) -> None:
        plain, weighted, batch = self.tiny(), self.tiny(), make_batch()
        weighted.enter(replace(STAGE, z_loss=1e-2))
        one, other = plain.step(batch, settings_at()), weighted.step(batch, settings_at())
        assert one.extra == {}
        assert other.loss == one.loss
        assert other.extra["z_loss"] > 0
        assert other.grad_norm != one.grad_norm

    def test_evaluation_counts_bytes_and_learns_nothing(self, tmp_path: Path) -> None:
        engine, batch = self.tiny(), make_batch()
        before = self.hash_of(engine, tmp_path / "before")
        stats = engine.evaluate(batch)
        counted = batch.targets[batch.targets != IGNORED]
        assert stats.bytes == counted.sum()
        assert self.hash_of(engine, tmp_path / "after") == before

    @pytest.mark.parametrize("micro_batch_size", [None, 3])
    def test_text_nats_are_those_of_targets_that_have_bytes(self, micro_batch_size: int | None) -> None:
        engine, batch = self.tiny(micro_batch_size=micro_batch_size), make_batch()
        batch = replace(batch, targets=np.where(batch.targets % 3 == 0, 0, batch.targets))  # token 0 has no bytes
        expected = {"web": 0.0, "code": 0.0}
        for targets, nats, source in zip(batch.targets, engine.nats(batch), batch.source, strict=True):
            for target, loss in zip(targets.tolist(), nats.tolist(), strict=True):
                expected[batch.sources[source]] += loss if target > 0 else 0.0
        stats = engine.evaluate(batch)
        assert {name: part.text_nats for name, part in stats.by_source.items()} == pytest.approx(expected, rel=1e-6)
        assert stats.text_nats == pytest.approx(sum(expected.values()), rel=1e-6)
        assert sum(expected.values()) < 0.9 * stats.nats

    @pytest.mark.parametrize("micro_batch_size", [None, 3])
    def test_nats_are_the_losses_of_every_target(self, micro_batch_size: int | None) -> None:
        engine, batch = self.tiny(micro_batch_size=micro_batch_size), make_batch()
        nats = engine.nats(batch)
        assert (nats.shape, nats.dtype) == (batch.targets.shape, np.dtype(np.float32))
        assert ((nats == 0) == (batch.targets == IGNORED)).all()
        assert nats.sum() == pytest.approx(nats_of(engine, batch), rel=1e-5)
        alone = engine.nats(only_learn(batch, 1))
        assert alone == pytest.approx(np.where(batch.segments == 1, nats, 0), rel=1e-4, abs=1e-6)

    @pytest.mark.parametrize("stage", GENERATED, ids=["plain", "yarn", "dropped"])
    @pytest.mark.parametrize("precision", ["float32", "bfloat16"])
    @pytest.mark.parametrize("lengths", [(7, 1, 4), (5, 5)], ids=["ragged", "even"])
    def test_a_generation_sees_what_whole_rows_see(
        self, stage: StageSettings, precision: Precision, lengths: tuple[int, ...]
    ) -> None:
        engine = self.tiny(precision=precision)
        engine.enter(stage)
        room = stage.seq_len - max(lengths)
        rows = np.random.default_rng(0).integers(0, VOCAB, (len(lengths), max(lengths) + room))
        generation = engine.generation([row[:length] for row, length in zip(rows, lengths, strict=True)], room)
        whole = [log_probabilities(engine, row.tolist(), VOCAB) for row in rows]
        near = 1e-4 if precision == "float32" else 0.2
        for more in range(room + 1):
            ends = [length + more for length in lengths]
            logits = generation.logits()
            assert (logits.shape, logits.dtype) == ((len(lengths), VOCAB), np.dtype(np.float32))
            expected = np.stack([each[end - 1] for each, end in zip(whole, ends, strict=True)])
            assert normalised(logits) == pytest.approx(expected, abs=near)
            if more < room:
                generation.append(np.array([row[end] for row, end in zip(rows, ends, strict=True)]))

    def test_rows_of_a_generation_may_be_taken_again_and_skipped(self) -> None:
        engine = self.tiny()
        prompts = [[1, 2, 3], [4], [5, 6]]
        generation = engine.generation([np.array(prompt) for prompt in prompts], 8)
        rows = [*map(list, prompts)]
        for chosen in ([2, 0, 0, 1], [1, 2, 3, 0], [1, 0], [1, 1, 0], [0]):
            generation.select(np.array(chosen))
            rows = [[*rows[row], 10 + place] for place, row in enumerate(chosen)]
            generation.append(np.array([row[-1] for row in rows]))
            expected = np.stack([log_probabilities(engine, row, VOCAB)[-1] for row in rows])
            assert normalised(generation.logits()) == pytest.approx(expected, abs=1e-4)

    def test_a_generation_may_have_no_rows_left_or_none_at_all(self) -> None:
        engine = self.tiny()
        ended = engine.generation([np.array([1, 2])], 4)
        ended.select(np.zeros(0, np.int64))
        for generation in (ended, engine.generation([], 4)):
            for _ in range(2):
                generation.append(np.zeros(0, np.int64))
                assert generation.logits().shape == (0, VOCAB)

    @pytest.mark.parametrize(
        ("length", "room", "message"),
        [
            (
                10,
                7,
                "the prompt of 10 tokens and 7 more are 17, and the model reads 16. Ask for 6 or fewer, or shorten it.",
            ),
            (20, 1, "the prompt of 20 tokens and 1 more are 21, and the model reads 16. Shorten it."),
        ],
    )
    def test_rows_that_would_be_too_long_are_refused(self, length: int, room: int, message: str) -> None:
        with pytest.raises(UsageError) as refusal:
            self.tiny().generation([np.array([1]), np.arange(length)], room)
        assert str(refusal.value) == message

    @pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda settings: settings.name)
    def test_a_loaded_engine_continues_bit_for_bit(self, optimizer: OptimizerSettings, tmp_path: Path) -> None:
        never_stopped, first = self.tiny(optimizer), self.tiny(optimizer)
        for step in range(3):
            never_stopped.step(make_batch(seed=step), settings_at(step))
            first.step(make_batch(seed=step), settings_at(step))
        assert self.hash_of(first, tmp_path / "first") == self.hash_of(never_stopped, tmp_path / "never stopped")
        second = self.tiny(optimizer, seed=2)
        second.step(make_batch(seed=9), settings_at())
        second.load(tmp_path / "first")
        for step in range(3, 6):
            stats = never_stopped.step(make_batch(seed=step), settings_at(step))
            assert second.step(make_batch(seed=step), settings_at(step)) == stats
        assert self.hash_of(second, tmp_path / "second") == self.hash_of(never_stopped, tmp_path / "end")

    def test_another_optimizers_state_is_refused(self, tmp_path: Path) -> None:
        adamw, muon = (self.tiny(optimizer) for optimizer in OPTIMIZERS[:2])
        adamw.step(make_batch(), settings_at())
        adamw.save(tmp_path).wait()
        with pytest.raises(ResumeError, match=r"Put optimizer\.name back"):
            muon.load(tmp_path)

    def test_an_engine_loads_what_was_saved_before_the_first_step(self, tmp_path: Path) -> None:
        untouched, used = self.tiny(), self.tiny(seed=2)
        saved = self.hash_of(untouched, tmp_path / "saved")
        used.step(make_batch(), settings_at())
        used.load(tmp_path / "saved")
        assert self.hash_of(used, tmp_path / "again") == saved

    def test_steps_after_a_background_save_do_not_change_it(self, tmp_path: Path) -> None:
        engine = self.tiny()
        engine.step(make_batch(), settings_at())
        at_rest = self.hash_of(engine, tmp_path / "at rest")
        handle = engine.save(tmp_path / "busy", background=True)
        engine.step(make_batch(seed=1), settings_at(1))
        handle.wait()
        assert handle.done()
        engine.load(tmp_path / "busy")
        assert self.hash_of(engine, tmp_path / "again") == at_rest

    def test_a_save_that_fails_says_so(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("in the way")
        with pytest.raises(OSError, match="file"):
            self.tiny().save(tmp_path / "file" / "folder").wait()

    def test_the_seed_decides_the_weights(self, tmp_path: Path) -> None:
        one, same, other = (self.hash_of(self.tiny(seed=seed), tmp_path / f"{n}") for n, seed in enumerate((1, 1, 2)))
        assert one == same
        assert one != other

    def test_a_reset_optimizer_is_a_new_one(self, tmp_path: Path) -> None:
        reset, fresh = self.tiny(), self.tiny(seed=2)
        reset.step(make_batch(), settings_at())
        reset.save(tmp_path / "saved").wait()
        fresh.start_from(tmp_path / "saved")
        reset.enter(replace(STAGE, reset_optimizer=True))
        for step in range(1, 3):
            stats = fresh.step(make_batch(seed=step), settings_at(step))
            assert reset.step(make_batch(seed=step), settings_at(step)) == stats

    def test_another_model_is_refused_by_name(self, tmp_path: Path) -> None:
        self.tiny().save(tmp_path).wait()
        wider = self.make(EngineSettings(replace(TINY, ffn=128, layers=3), device="cpu"))
        with pytest.raises(ResumeError) as refusal:
            wider.load(tmp_path)
        assert str(refusal.value) == (
            f"{tmp_path}: holds another model: layers was 2 and is now 3, ffn was 64 and is now 128. "
            "Put it back, or start a new run."
        )

    def test_a_longer_row_in_the_future_is_not_another_model(self, tmp_path: Path) -> None:
        engine = self.tiny()
        engine.save(tmp_path).wait()
        longer = self.make(EngineSettings(replace(TINY, max_seq_len=64, rope=RopeSpec(5e5)), device="cpu", seed=2))
        longer.load(tmp_path)
        longer.enter(replace(STAGE, rope=TINY.rope))
        assert nats_of(longer, make_batch()) == nats_of(engine, make_batch())

    def test_saved_weights_keep_the_rotary_positions_of_the_last_update(self, tmp_path: Path) -> None:
        engine, asked = self.tiny(), RopeSpec(5e5)
        engine.enter(StageSettings(SEQ_LEN, asked))
        engine.save(tmp_path / "0").wait()
        engine.step(make_batch(), settings_at())
        engine.enter(StageSettings(SEQ_LEN, RopeSpec(2e5)))
        engine.save(tmp_path / "1").wait()
        engine.export(tmp_path / "exported")
        again = self.tiny()
        again.load(tmp_path / "1")
        again.save(tmp_path / "2").wait()
        assert read_spec(tmp_path / "0").rope == RopeSpec()
        assert read_spec(tmp_path / "1").rope == read_spec(tmp_path / "2").rope == asked
        assert read_spec(tmp_path / "exported").rope == asked

    def test_an_exported_model_is_the_same_model(self, tmp_path: Path) -> None:
        engine, other = self.tiny(), self.tiny(seed=2)
        engine.export(tmp_path)
        other.start_from(tmp_path)
        assert nats_of(other, make_batch()) == nats_of(engine, make_batch())

    def test_bfloat16_learns_the_same(self) -> None:
        exact, rounded, batch = self.tiny(), self.tiny(precision="bfloat16"), make_batch()
        for step in range(5):
            loss = exact.step(batch, settings_at(step)).loss
            assert rounded.step(batch, settings_at(step)).loss == pytest.approx(loss, rel=3e-2)


def _moved(array: np.ndarray, start: int, length: int, empty: int) -> np.ndarray:
    """One document of a row at the start of a row of its own."""
    alone = np.full_like(array, empty)
    alone[:, :length] = array[:, start : start + length]
    return alone


assert all(sum(lengths) <= SEQ_LEN for lengths in ROWS)
