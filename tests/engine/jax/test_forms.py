"""Decoders of other forms than Llama's: the formulas' losses, packed or alone, on any layout, and written on."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.engine.jax.forms import FOUR, LAYOUTS, engine_of
from tests.support.batches import make_batch, settings_at
from tests.support.decoder_by_hand import Decoder, nats_by_hand
from tests.support.forms import ALONE, LENGTH, ROWS, TOGETHER
from tests.support.generated import normalised
from tests.support.scripts import ROOT
from trivium.engine.base import OptimizerSettings, StageSettings
from trivium.engine.jax.engine import JaxEngine
from trivium.engine.jax.generation import JaxGeneration
from trivium.model.spec import RopeSpec
from trivium.rows.batch import IGNORED

pytestmark = pytest.mark.slow  # programs are compiled


def weights_of(engine: JaxEngine) -> dict[str, Any]:
    return {name: np.asarray(each) for name, each in engine.state.params.items()}


@pytest.mark.parametrize("form", [*ALONE, *TOGETHER])
def test_packed_documents_have_the_losses_of_the_formulas_for_each_alone(form: str) -> None:
    spec = (ALONE | TOGETHER)[form]
    engine, batch = engine_of(spec), make_batch(ROWS, seq_len=LENGTH)
    expected = nats_by_hand(spec, batch, 0, weights=weights_of(engine))
    assert engine.nats(batch) == pytest.approx(expected, rel=1e-5, abs=1e-5)


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """The figures of every layout."""
    command = [sys.executable, "-m", "tests.engine.jax.forms"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XLA_FLAGS": FOUR}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    figures: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return figures


@pytest.mark.parametrize("number", range(len(LAYOUTS)), ids=[f"{form}, {mesh}" for form, mesh, _ in LAYOUTS])
def test_a_form_trains_and_writes_on_many_devices_as_on_one(found: dict[str, Any], number: int) -> None:
    ours, theirs = found["four"][number], found["one"][LAYOUTS[number][0]]
    assert np.array(ours["nats"]) == pytest.approx(np.array(theirs["nats"]), rel=1e-5, abs=1e-5)
    assert np.array(ours["figures"]) == pytest.approx(np.array(theirs["figures"]), rel=1e-5)
    assert np.array(ours["logits"]) == pytest.approx(np.array(theirs["logits"]), abs=1e-4)
    assert ours["weights"].keys() == theirs["weights"].keys()
    for name, weight in theirs["weights"].items():
        assert np.array(ours["weights"][name]) == pytest.approx(np.array(weight), abs=1e-5), name


@pytest.mark.parametrize("form", TOGETHER)
def test_a_generation_is_what_the_formulas_make_of_whole_rows(form: str) -> None:
    """Past a prompt that is longer than the window, and past the first room; of a sliding layer a window is kept."""
    spec = replace(TOGETHER[form], max_seq_len=100)
    engine = engine_of(spec)
    rows, lengths = np.random.default_rng(1).integers(0, spec.vocab, (3, 80)), (12, 1, 5)
    generation = engine.generation([row[:length] for row, length in zip(rows, lengths, strict=True)], 68)
    by_hand = Decoder(spec, 0, spec.rope, weights_of(engine))
    expected = [normalised(by_hand.logits(row)) for row in rows]
    for more in range(68):
        ends = [length + more for length in lengths]
        wanted = np.stack([each[end - 1] for each, end in zip(expected, ends, strict=True)])
        assert normalised(generation.logits()) == pytest.approx(wanted, abs=2e-5)
        generation.append(np.array([row[end] for row, end in zip(rows, ends, strict=True)]))
    assert isinstance(generation, JaxGeneration)
    kept = [keys.shape[1] for keys, _ in generation.cache]
    assert kept == [spec.attention_of(layer).window or 128 for layer in range(2)]


def test_a_stage_may_bring_other_positions_to_either_kind_of_layer_and_compiles_nothing() -> None:
    spec = ALONE["sliding"]
    engine, batch = engine_of(spec), make_batch(ROWS, seq_len=LENGTH)
    engine.step(batch, settings_at())
    for rope in (RopeSpec(sliding=RopeSpec(100.0)), RopeSpec(100.0, sliding=RopeSpec())):
        engine.enter(StageSettings(LENGTH, rope))
        expected = nats_by_hand(spec, batch, 0, rope, weights_of(engine))
        assert engine.nats(batch) == pytest.approx(expected, rel=1e-5, abs=1e-5)
        assert engine.step(batch, settings_at(1)).compilations == 0


def test_biases_alphas_and_norms_do_not_decay_and_are_adamws_beside_muon() -> None:
    engine = engine_of(TOGETHER["after"], optimizer=OptimizerSettings("muon"))
    before, batch = weights_of(engine), make_batch(ROWS, seq_len=LENGTH)
    matrices = {name for name, each in before.items() if each.ndim == 2 and name.startswith("layers")}
    assert set(engine.state.opt_state.muon.mean) == matrices
    nothing = replace(batch, targets=np.full_like(batch.targets, IGNORED))
    engine.step(nothing, settings_at(weight_decay=0.5))
    changed = {name for name, each in weights_of(engine).items() if not np.array_equal(each, before[name])}
    assert changed == matrices | {"unembedding.weight"}
