"""What every engine promises of layers that differ from Llama's: windows, norms, biases, activations, caps, scales."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.engine.tiny import STAGE, TinyEngines, change_segment, nats_of, only_learn
from tests.support.batches import SEQ_LEN, TINY, VOCAB, make_batch, settings_at
from tests.support.decoder_by_hand import nats_by_hand
from tests.support.generated import log_probabilities, normalised
from trivium.engine.base import Engine, EngineSettings, KlSettings, LossBatch, OptimizerSettings, Recompute
from trivium.errors import ResumeError, UsageError
from trivium.model.folder import read_spec
from trivium.model.spec import ModelSpec, RopeSpec

YARN = RopeSpec(scaling="yarn", factor=4.0, original_seq_len=SEQ_LEN)
FORMS: dict[str, ModelSpec] = {
    "sliding": replace(TINY, layers=3, window=4, sliding=(0, 1), rope=replace(YARN, sliding=RopeSpec(500.0))),
    "olmo": replace(TINY, qk_norm=True, qk_norm_joint=True, norm="after", window=3, sliding=(1,)),
    "gemma": replace(
        TINY,
        qk_norm=True,
        tied_embeddings=True,
        norm="both",
        activation="gelu_tanh",
        window=5,
        sliding=(0,),
        attention_scale=0.3,
        embedding_scale=32**0.5,
        logit_softcap=8.0,
    ),
    "biases": replace(TINY, qkv_bias=True, rotary_dim=4, attention_softcap=1.5, activation="gelu"),
    "xielu": replace(TINY, qk_norm=True, activation="xielu", gated=False, logit_scale=0.7),
    "capped window": replace(TINY, window=4, sliding=(0, 1), attention_softcap=2.0, logit_scale=1.5, logit_softcap=5.0),
}


class LayersContract(TinyEngines):
    """The tests of such layers, which `EngineContract` inherits."""

    def formed(self, form: str, recompute: Recompute = "none", micro: int | None = None, seed: int = 1) -> Engine:
        """A tiny engine of a form, which has entered a plain stage."""
        optimizer = OptimizerSettings("muon" if form == "xielu" else "adamw", grad_clip=1.0)
        settings = EngineSettings(
            FORMS[form], optimizer, seed, device="cpu", recompute=recompute, micro_batch_size=micro, precision="float32"
        )
        engine = self.make(settings)
        engine.enter(STAGE)
        return engine

    @pytest.mark.parametrize("form", FORMS)
    def test_a_form_is_what_its_definition_says(self, form: str) -> None:
        batch = make_batch()
        expected = nats_by_hand(FORMS[form], batch, seed=1)
        assert self.formed(form).nats(batch) == pytest.approx(expected, rel=1e-4, abs=1e-4)

    @pytest.mark.parametrize("form", FORMS)
    def test_a_form_learns_and_recomputes_the_same(self, form: str) -> None:
        engine, selective, full = self.formed(form), self.formed(form, "selective", 2), self.formed(form, "full")
        losses = []
        for step in range(4):
            batch = make_batch(seed=step % 2)
            stats = engine.step(batch, settings_at(step))
            losses.append(stats.loss)
            for other in (selective, full):
                found = other.step(batch, settings_at(step))
                assert found.loss == pytest.approx(stats.loss, rel=1e-4)
                assert found.grad_norm == pytest.approx(stats.grad_norm, rel=1e-3)
        assert losses[2] < losses[0]

    @pytest.mark.parametrize("form", FORMS)
    def test_the_gradient_of_a_form_is_how_its_loss_changes(self, form: str) -> None:
        """Plain descent by a small step lowers the loss by the squared norm of the gradient, times the step."""
        batch, rate = make_batch(), 1e-3
        settings = replace(OptimizerSettings("adamw"), betas=(0.0, 0.0), eps=1e8)  # so that an update is the gradient
        engine = self.make(EngineSettings(FORMS[form], settings, seed=1, device="cpu", precision="float32"))
        engine.enter(STAGE)
        stats = engine.step(batch, settings_at(lr=rate * 1e8, weight_decay=0.0))
        after = engine.evaluate(batch)
        assert stats.loss - after.nats / after.tokens == pytest.approx(rate * stats.grad_norm**2, rel=0.05)

    @pytest.mark.parametrize("form", FORMS)
    def test_documents_of_a_form_do_not_see_each_other_and_padding_is_not_seen(self, form: str) -> None:
        engine, batch = self.formed(form), only_learn(make_batch(), 1)
        assert nats_of(engine, change_segment(batch, 0)) == pytest.approx(nats_of(engine, batch), rel=1e-6)
        assert nats_of(engine, change_segment(batch, -1)) == nats_of(engine, batch)

    def test_joined_documents_see_each_other_within_a_window(self) -> None:
        """Of two sliding layers with a window of 4 a slot sees six slots before it, and no more."""
        engine = self.formed("capped window")
        engine.enter(replace(STAGE, document_mask=False))
        batch = only_learn(make_batch(((4, 12),)), 1)
        nats, other = engine.nats(batch), engine.nats(change_segment(batch, 0))
        changed = np.flatnonzero(np.abs(nats - other)[0] > 1e-6)
        assert changed.tolist() == list(range(4, 10))

    @pytest.mark.parametrize("form", FORMS)
    @pytest.mark.parametrize("lengths", [(7, 1, 4), (5, 5)], ids=["ragged", "even"])
    def test_a_generation_of_a_form_sees_what_whole_rows_see(self, form: str, lengths: tuple[int, ...]) -> None:
        engine = self.formed(form)
        room = SEQ_LEN - max(lengths)
        rows = np.random.default_rng(0).integers(0, VOCAB, (len(lengths), SEQ_LEN))
        generation = engine.generation([row[:length] for row, length in zip(rows, lengths, strict=True)], room)
        whole = [log_probabilities(engine, row.tolist(), VOCAB) for row in rows]
        for more in range(room + 1):
            ends = [length + more for length in lengths]
            expected = np.stack([each[end - 1] for each, end in zip(whole, ends, strict=True)])
            assert normalised(generation.logits()) == pytest.approx(expected, abs=1e-3)
            if more < room:
                generation.append(np.array([row[end] for row, end in zip(rows, ends, strict=True)]))
        generation = engine.generation([rows[0][:3]], room)
        generation.select(np.zeros(0, np.int64))
        generation.append(np.zeros(0, np.int64))
        assert generation.logits().shape == (0, VOCAB)

    @pytest.mark.parametrize("form", FORMS)
    def test_a_form_is_saved_and_continues_bit_for_bit(self, form: str, tmp_path: Path) -> None:
        engine = self.formed(form)
        engine.step(make_batch(), settings_at())
        engine.save(tmp_path).wait()
        assert replace(read_spec(tmp_path), max_seq_len=SEQ_LEN) == FORMS[form]
        again = self.formed(form, seed=2)
        again.load(tmp_path)
        batch = make_batch(seed=1)
        assert again.step(batch, settings_at(1)) == engine.step(batch, settings_at(1))

    def test_another_form_is_refused_by_name(self, tmp_path: Path) -> None:
        self.tiny().save(tmp_path).wait()
        biases = self.formed("biases")
        with pytest.raises(
            ResumeError, match=r"qkv_bias was False and is now True, activation was silu and is now gelu"
        ):
            biases.load(tmp_path)

    def test_a_penalty_is_measured_between_capped_logits(self, tmp_path: Path) -> None:
        """To itself a model has none, and its gradient has none either."""
        engine, batch = self.formed("capped window"), make_batch()
        engine.save(tmp_path).wait()
        plain = engine.step(batch, settings_at(lr=0.0))
        for direction in ("forward", "reverse"):
            engine.enter(replace(STAGE, kl=KlSettings(0.5, tmp_path, direction)))
            stats = engine.step(batch, settings_at(lr=0.0))
            assert stats.extra["kl"] == pytest.approx(0, abs=1e-5)
            assert stats.grad_norm == pytest.approx(plain.grad_norm, rel=1e-4)

    def test_a_loss_of_ones_own_is_refused_where_logits_are_capped(self) -> None:
        def losses(hidden: object, lm_head: object, batch: LossBatch) -> object:
            raise AssertionError("never called")

        settings = EngineSettings(FORMS["gemma"], seed=1, device="cpu", token_losses=losses)
        message = (
            r"the model caps its logits \(logit_softcap = 8\), but Trainer.loss\(\) makes logits itself, and would "
            r"not. Leave one of them out."
        )
        with pytest.raises(UsageError, match=message):
            self.make(settings)
