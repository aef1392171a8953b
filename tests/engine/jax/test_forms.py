"""Decoders of other forms than Llama's: the plain formulas' losses, packed or alone; generation; exact continuation."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.support.batches import make_batch, settings_at
from tests.support.forms import FORMS, TOGETHER
from tests.support.generated import normalised
from tests.support.plain_decoder import any_weights, log_softmax, plain_logits, plain_nats
from trivium.engine.base import EngineSettings, OptimizerSettings, StageSettings
from trivium.engine.jax.engine import JaxEngine
from trivium.engine.jax.state import named_leaves
from trivium.model.spec import ModelSpec, RopeSpec

pytestmark = pytest.mark.slow  # programs are compiled

LENGTH = 40
ROWS = ((12, 20, 8), (40,), (3, 25))
STAGE = StageSettings(LENGTH)


def make(spec: ModelSpec, **settings: Any) -> JaxEngine:
    """An engine with weights of which none is zero or one."""
    engine = JaxEngine(EngineSettings(spec, device="cpu", **settings))
    held = engine.state.params
    drawn = any_weights({name: each.shape for name, each in held.items()})
    params = {name: jax.device_put(each, held[name].sharding) for name, each in drawn.items()}
    engine.state = engine.state._replace(params=params)
    engine.enter(STAGE)
    return engine


def weights_of(engine: JaxEngine) -> dict[str, Any]:
    return {name: np.asarray(each) for name, each in engine.state.params.items()}


@pytest.mark.parametrize("form", [*FORMS, *TOGETHER])
def test_losses_of_packed_documents_are_those_of_the_formulas_for_each_alone(form: str) -> None:
    spec = (FORMS | TOGETHER)[form]
    engine, batch = make(spec), make_batch(ROWS, seq_len=LENGTH)
    assert engine.nats(batch) == pytest.approx(plain_nats(spec, weights_of(engine), batch), rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("form", TOGETHER)
def test_a_generation_is_what_the_formulas_make_of_whole_rows(form: str) -> None:
    """Past a prompt that is longer than the window, and past the first room."""
    spec = replace(TOGETHER[form], max_seq_len=100)
    engine = make(spec)
    engine.enter(StageSettings(100))
    rows, lengths = np.random.default_rng(1).integers(0, spec.vocab, (3, 80)), (12, 1, 5)
    generation = engine.generation([row[:length] for row, length in zip(rows, lengths, strict=True)], 68)
    expected = [log_softmax(plain_logits(spec, weights_of(engine), row)) for row in rows]
    for more in range(68):
        ends = [length + more for length in lengths]
        if more < 12 or more > 50:
            wanted = np.stack([each[end - 1] for each, end in zip(expected, ends, strict=True)])
            assert normalised(generation.logits()) == pytest.approx(wanted, abs=2e-5)
        generation.append(np.array([row[end] for row, end in zip(rows, ends, strict=True)]))
    kept = [keys.shape[1] for keys, _ in generation.cache]
    assert kept == [spec.attention_of(layer).window or 128 for layer in range(2)]


def test_a_stage_may_bring_other_positions_to_sliding_layers_alone() -> None:
    spec = FORMS["sliding"]
    engine, batch = make(spec), make_batch(ROWS, seq_len=LENGTH)
    for rope in (RopeSpec(sliding=RopeSpec(100.0)), RopeSpec(100.0, sliding=RopeSpec())):
        engine.enter(replace(STAGE, rope=rope))
        expected = plain_nats(replace(spec, rope=rope), weights_of(engine), batch)
        assert engine.nats(batch) == pytest.approx(expected, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("form", TOGETHER)
def test_what_is_loaded_continues_bit_for_bit_and_what_is_no_matrix_is_left_to_adamw(form: str, tmp_path: Path) -> None:
    engine, other = (make(TOGETHER[form], optimizer=OptimizerSettings("muon")) for _ in range(2))
    engine.step(make_batch(ROWS, 0, LENGTH), settings_at(0))
    engine.save(tmp_path).wait()
    other.load(tmp_path)
    for each in (engine, other):
        each.step(make_batch(ROWS, 1, LENGTH), settings_at(1))
    ours, theirs = named_leaves(engine.state), named_leaves(other.state)
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)
    by_muon = {name for name, each in engine.state.params.items() if each.ndim == 2 and name.startswith("layers")}
    assert set(engine.state.opt_state.muon.mean) == by_muon
    assert set(engine.state.opt_state.adam.mu) == engine.state.params.keys() - by_muon


def test_biases_alphas_and_norms_do_not_decay() -> None:
    engine = make(TOGETHER["apertus"])
    before = weights_of(engine)
    nothing = replace(batch := make_batch(ROWS, 0, LENGTH), targets=np.full_like(batch.targets, -100))
    engine.step(nothing, settings_at(0, weight_decay=0.5))
    changed = {name for name, each in weights_of(engine).items() if not np.array_equal(each, before[name])}
    assert changed == {name for name, each in before.items() if each.ndim == 2 and name != "embedding.weight"}
