"""What every engine promises, by models of transformers on one process."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engine.contract import GENERATED, EngineContract
from tests.engine.distill_contract import DistillContract
from tests.engine.freeze_contract import State
from tests.engine.layers_contract import LayersContract
from tests.engine.tiny import STAGE, hash_of
from tests.engine.torch.transformers.families import tiny
from tests.support.batches import SEQ_LEN, TINY, VOCAB, make_batch, settings_at
from tests.support.generated import log_probabilities, normalised
from trivium.engine.base import Engine, EngineSettings, KlSettings, OptimizerSettings, Precision, StageSettings
from trivium.engine.make import weight_shapes
from trivium.engine.torch.engine import TorchEngine
from trivium.errors import ConfigError, ResumeError
from trivium.model.families.table import FAMILIES
from trivium.model.foreign import keys_spec
from trivium.model.spec import ModelSpec, RopeSpec

SIZES = (
    "layers",
    "width",
    "heads",
    "kv_heads",
    "ffn",
    "vocab",
    "max_seq_len",
    "init_std",
    "head_dim",
    "tied_embeddings",
)
DECODERS_OWN = (LayersContract, DistillContract)  # of its shapes and names
OF_THE_DECODER = [name for each in DECODERS_OWN for name in vars(each) if name.startswith("test_")]
LLAMA = next(family for family in FAMILIES if family.name == "llama")
IN_OTHER_WORDS = (
    "test_another_model_is_refused_as_a_reference",
    "test_another_model_is_refused_by_name",
    "test_a_generation_sees_what_whole_rows_see",
)


def llama(spec: ModelSpec) -> ModelSpec:
    """A shape of the decoder as transformers' Llama."""
    return keys_spec("llama", {key: getattr(spec, key) for key in SIZES}, {})


class TestTransformers(EngineContract):
    """The contract's tiny model as a Llama of transformers."""

    locals().update(dict.fromkeys((*OF_THE_DECODER, *IN_OTHER_WORDS)))

    def make(self, settings: EngineSettings) -> Engine:
        return TorchEngine(replace(settings, spec=llama(settings.spec)))

    def state_of(self, engine: Engine) -> tuple[State, State]:
        """Under the decoder's names, by which the contract finds the parts of a model."""
        assert isinstance(engine, TorchEngine)
        ours = {LLAMA.their_name(name): name for name in weight_shapes(TINY)}
        weights = {ours[name]: each.detach().numpy().copy() for name, each in engine.model.weights().items()}
        kept = ((name.partition(":"), each) for name, each in engine.optimizers.state() if each.ndim)
        return weights, {f"{ours[name]}:{part}": each.numpy().copy() for (name, _, part), each in kept}

    def rows_of(self, vocab: int) -> int:
        return vocab

    def test_another_shape_is_refused_by_name(self, tmp_path: Path) -> None:
        self.make(EngineSettings(replace(TINY, ffn=128), device="cpu")).save(tmp_path).wait()
        with pytest.raises(ResumeError, match=r"holds another model: config\.intermediate_size was 128 and is now 64"):
            self.tiny().load(tmp_path)
        with pytest.raises(ResumeError, match=r"config\.intermediate_size was 128 and is now 64"):
            self.tiny().enter(replace(STAGE, kl=KlSettings(0.5, tmp_path)))

    @pytest.mark.parametrize("stage", GENERATED[:2], ids=["plain", "yarn"])
    @pytest.mark.parametrize("precision", ["float32", "bfloat16"])
    def test_a_generation_sees_whole_rows(self, stage: StageSettings, precision: Precision) -> None:
        engine, lengths = self.tiny(precision=precision), (7, 1, 4)
        engine.enter(stage)
        room = stage.seq_len - max(lengths)
        rows = np.random.default_rng(0).integers(0, VOCAB, (len(lengths), max(lengths) + room))
        generation = engine.generation([row[:length] for row, length in zip(rows, lengths, strict=True)], room)
        whole = [log_probabilities(engine, row.tolist(), VOCAB) for row in rows]
        for step in range(room):
            at = [length + step for length in lengths]
            expected = np.stack([each[place - 1] for each, place in zip(whole, at, strict=True)])
            assert normalised(generation.logits()) == pytest.approx(
                expected, abs=1e-4 if precision == "float32" else 0.3
            )
            generation.append(np.array([row[place] for row, place in zip(rows, at, strict=True)]))
        generation.select(np.array([1]))
        assert generation.logits().shape == (1, VOCAB)
        generation.select(np.array([], np.int64))
        generation.append(np.array([], np.int64))
        assert generation.logits().shape == (0, VOCAB)


def test_layers_without_rotary_positions_are_refused() -> None:
    engine = TorchEngine(EngineSettings(llama(TINY)))
    with pytest.raises(ConfigError, match='has drop_layers, which the family "llama" cannot do'):
        engine.enter(StageSettings(SEQ_LEN, RopeSpec(dropped=(1,))))


@pytest.mark.parametrize("family", ["olmo3", "olmoe"])
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_save_continues_bit_for_bit(family: str, optimizer: str, tmp_path: Path) -> None:
    settings = EngineSettings(tiny(family), OptimizerSettings(optimizer), seed=1, micro_batch_size=2, recompute="full")
    engine, batches = TorchEngine(settings), [make_batch(seed=seed) for seed in range(4)]
    engine.enter(STAGE)
    for step in range(2):
        engine.step(batches[step], settings_at(step))
    engine.save(tmp_path / "half").wait()
    other = TorchEngine(replace(settings, seed=2))
    other.enter(STAGE)
    other.load(tmp_path / "half")
    for each in (engine, other):
        for step in range(2, 4):
            each.step(batches[step], settings_at(step))
    assert hash_of(engine, tmp_path / "one") == hash_of(other, tmp_path / "two")


@pytest.mark.parametrize("family", ["olmo3", "olmoe", "phi"])
def test_recompute_and_micro_batches_change_nothing(family: str) -> None:
    batch, found = make_batch(), []
    kinds: list[dict[str, Any]] = [{}, {"recompute": "full"}, {"recompute": "selective"}]
    if family != "olmoe":  # a balancing loss is of a micro-batch
        kinds += [{"micro_batch_size": 1}]
    for kind in kinds:
        engine = TorchEngine(EngineSettings(tiny(family), seed=1, **kind))
        engine.enter(STAGE)
        found.append([engine.step(batch, settings_at(step)) for step in range(2)])
    for steps in found[1:]:
        for one, other in zip(found[0], steps, strict=True):
            assert other.loss == pytest.approx(one.loss, rel=1e-5)
            assert other.grad_norm == pytest.approx(one.grad_norm, rel=1e-4)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("family", ["olmo3", "olmoe"])
def test_compiled_layers_learn_the_same(family: str) -> None:
    found = []
    for compiled in (False, True):
        engine = TorchEngine(EngineSettings(tiny(family), seed=1, compile=compiled))
        engine.enter(STAGE)
        found.append([engine.step(make_batch(), settings_at(step)) for step in range(2)])
    for one, other in zip(*found, strict=True):
        assert other.loss == pytest.approx(one.loss, rel=1e-5)
        assert other.extra == pytest.approx(one.extra, rel=1e-4)


def test_the_balancing_loss_is_transformers_own_and_weighted_by_loss_tokens() -> None:
    import torch
    from transformers.models.olmoe.modeling_olmoe import load_balancing_loss_func

    engine = TorchEngine(EngineSettings(tiny("olmoe"), seed=1, micro_batch_size=2))
    engine.enter(STAGE)
    batch = make_batch()
    weighted, expected = 0.0, []
    with torch.no_grad():
        for rows, _ in engine._micro_batches(batch):
            logits = engine.model._passed(rows, routes=True)[1]  # type: ignore[operator]
            balance = load_balancing_loss_func(logits, 4, 2, rows.not_padding)
            expected.append((float(balance) * 0.01, len(rows.targets.tokens)))
    weighted = sum(loss * tokens for loss, tokens in expected) / sum(tokens for _, tokens in expected)
    stats = engine.step(batch, settings_at())
    assert stats.extra["balance_loss"] == pytest.approx(weighted, rel=1e-5)
    assert stats.extra["objective"] == pytest.approx(stats.loss + weighted, rel=1e-6)
    assert engine.evaluate(batch).tokens == batch.loss_tokens()


def test_muon_updates_matrices_of_layers_alone() -> None:
    engine = TorchEngine(EngineSettings(tiny("olmo3"), OptimizerSettings("muon")))
    groups = {group["kind"].name: group["params"] for each in engine.optimizers.each for group in each.param_groups}
    names = {name: {engine.optimizers.names[each] for each in group} for name, group in groups.items()}
    assert names["embedding"] == {"model.embed_tokens.weight"}
    assert names["unembedding"] == {"lm_head.weight"}
    assert all("proj" in name for name in names["matrix"])
    assert all("norm" in name for name in names["rest"])


def test_first_values_are_the_family_s_own_and_rotary_positions_change_by_stage() -> None:
    engine = TorchEngine(EngineSettings(tiny("gemma3_text"), seed=1))
    weights = engine.model.weights()
    assert not weights["model.norm.weight"].any(), "Gemma adds 1 to its norms' weights"
    assert float(weights["model.layers.0.mlp.up_proj.weight"].detach().std()) == pytest.approx(0.02, rel=0.1)
    apertus = TorchEngine(EngineSettings(tiny("apertus"), seed=1)).model
    assert float(apertus.constants()["model.layers.0.mlp.act_fn.beta"]) == 0.5
    llama_engine = TorchEngine(EngineSettings(llama(TINY)))
    before = llama_engine.nats(make_batch())
    llama_engine.enter(StageSettings(SEQ_LEN, RopeSpec(theta=100.0)))
    assert (llama_engine.nats(make_batch()) != before).any()
    llama_engine.enter(STAGE)
    assert (llama_engine.nats(make_batch()) == before).all()


@pytest.mark.parametrize(
    ("family", "why"),
    [
        ("gpt_oss", "its attention has sinks"),
        ("falcon_h1", "which mixes neighbouring documents"),
        ("bloom", "2 of its 2 layers (0, 1) ask for no attention"),
        ("gptj", "transformers cannot make it with another attention"),
        ("stablelm", "do not hand on to attention what the model is called with"),
        ("llama4_text", "other kinds than full and sliding attention (chunked_attention)"),
        ("doge", "its attention uses a mask of its own"),
        ("minicpm3", "makes logits of hidden states in a way that is not built"),
    ],
)
def test_a_model_that_cannot_be_held_rightly_is_refused_by_name(family: str, why: str) -> None:
    spec = keys_spec(family, {"layers": 2, "width": 64, "heads": 4}, {})
    with pytest.raises(ConfigError) as refusal:
        TorchEngine(EngineSettings(spec))
    assert f'model.family: "{family}" cannot be trained here: ' in str(refusal.value)
    assert why in str(refusal.value)


@pytest.mark.parametrize("student", ["decoder", "transformers"])
def test_a_teacher_may_be_of_the_other_kind_which_pads_its_vocabulary_otherwise(student: str, tmp_path: Path) -> None:
    ours, theirs = replace(TINY, vocab=300), llama(replace(TINY, vocab=300, layers=1))
    spec, of_teacher = (ours, theirs) if student == "decoder" else (theirs, ours)
    teacher = TorchEngine(EngineSettings(of_teacher, seed=9, device="cpu"))
    teacher.save(tmp_path).wait()
    batch = make_batch()
    engine = TorchEngine(EngineSettings(spec, seed=1, device="cpu"))
    engine.enter(replace(STAGE, distill=KlSettings(1.0, tmp_path, spec=of_teacher)))
    steps = [engine.step(batch, settings_at(step)) for step in range(8)]
    expected = teacher.evaluate(batch).nats / batch.loss_tokens()
    assert steps[0].extra["teacher_loss"] == pytest.approx(expected, rel=1e-5)
    assert steps[-1].extra["distill"] < steps[0].extra["distill"]
