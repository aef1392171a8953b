"""The JAX engine keeps the contract; and what only it has: compilations that are counted, optax's transformations."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import optax
import pytest

from tests.engine.contract import EngineContract
from tests.engine.freeze_contract import State
from tests.engine.tiny import STAGE
from tests.support.batches import SEQ_LEN, TINY, make_batch, settings_at
from trivium.engine.base import Engine, EngineSettings, KlSettings, OptimizerSettings
from trivium.engine.jax.engine import JaxEngine
from trivium.engine.jax.model import Design
from trivium.engine.jax.state import OPTIMIZER, WEIGHTS, named_leaves, read_state, room_for
from trivium.errors import ConfigError, UsageError
from trivium.model.spec import RopeSpec
from trivium.rows.batch import Batch

pytestmark = pytest.mark.slow  # programs are compiled


class TestJaxEngine(EngineContract):
    def make(self, settings: EngineSettings) -> Engine:
        return JaxEngine(settings)

    def state_of(self, engine: Engine) -> tuple[State, State]:
        assert isinstance(engine, JaxEngine)
        params, averages = engine.state.params, engine.state.opt_state
        parts = {"mu": averages.adam.mu, "nu": averages.adam.nu, "muon": averages.muon.mean, "slow": averages.slow}
        kept = {f"{name}:{part}": np.array(each) for part, arrays in parts.items() for name, each in arrays.items()}
        return {name: np.array(each) for name, each in params.items()}, kept

    def hash_of(self, engine: Engine, folder: Path) -> str:
        """Orbax names its files by chance and dates them: what counts is every array by its name."""
        assert isinstance(engine, JaxEngine)
        engine.save(folder).wait()
        optimizer = named_leaves(engine.state.opt_state)
        saved = read_state(folder, {WEIGHTS: room_for(dict(engine.state.params)), OPTIMIZER: room_for(optimizer)})
        found = hashlib.blake2b()
        for part, arrays in saved.items():
            for name, array in sorted(arrays.items()):
                found.update(f"{part} {name} {array.shape}".encode() + np.asarray(array).tobytes())
        return found.hexdigest()


def make(**settings: Any) -> JaxEngine:
    engine = JaxEngine(EngineSettings(TINY, device="cpu", **settings))
    engine.enter(STAGE)
    return engine


def test_a_stage_is_compiled_once_and_another_shape_once_more(tmp_path: Path) -> None:
    engine = make(optimizer=OptimizerSettings(eps=2e-8))  # compiled by no other test
    engine.save(tmp_path).wait()
    short, long = make_batch(), make_batch(seq_len=2 * SEQ_LEN)

    def compiled(*batches: Batch) -> list[int]:
        return [engine.step(batch, settings_at(step)).compilations for step, batch in enumerate(batches)]

    assert compiled(short, short, short) == [1, 0, 0]
    engine.enter(replace(STAGE, rope=RopeSpec(theta=50.0), z_loss=1e-3, reset_optimizer=True))
    assert compiled(short, short) == [0, 0]
    engine.enter(replace(STAGE, seq_len=2 * SEQ_LEN))
    assert compiled(long, long) == [1, 0]
    engine.enter(replace(STAGE, kl=KlSettings(0.5, tmp_path)))
    assert compiled(short, short) == [1, 0]
    engine.enter(replace(STAGE, kl=KlSettings(0.1, tmp_path)))
    assert compiled(short) == [0]
    engine.enter(STAGE)
    assert compiled(short) == [0]
    stopped = engine.step(short, replace(settings_at(3, lr=0.5, weight_decay=0.3), momentum=0.5, loss_limit=1e-3))
    assert (stopped.compilations, stopped.skipped is None) == (0, False)


def test_a_stage_has_its_own_recomputation_precision_and_rows_in_a_pass() -> None:
    engine = JaxEngine(EngineSettings(TINY, device="cpu", micro_batch_size=1))
    engine.enter(replace(STAGE, recompute="selective", micro_batch_size=2, precision="bfloat16"))
    design = engine.program.how.design
    assert (design.recompute, design.precision, engine.stage.micro_batch_size) == ("selective", "bfloat16", 2)
    assert engine.computes_in()["precision"] == "bfloat16"
    assert {array.dtype.name for array in engine.state.params.values()} == {"float32"}
    engine.enter(STAGE)
    design = engine.program.how.design
    assert (design.recompute, design.precision, engine.stage.micro_batch_size) == ("none", "float32", 1)


def test_an_update_that_must_not_be_made_leaves_everything_as_it_was() -> None:
    engine, batch = make(), make_batch()
    engine.step(batch, settings_at())
    before = {name: np.array(array) for name, array in named_leaves(engine.state).items()}
    stats = engine.step(batch, replace(settings_at(1), loss_limit=0.5))
    assert stats.skipped == f"the loss is {stats.loss:.4f}, over the limit of 0.5000"
    assert same(engine, before)
    rates = settings_at(1, lr=float("inf"))
    assert engine.step(batch, rates).skipped is None  # the loss was fine: the weights are not, from here on
    broken = {name: np.array(array) for name, array in named_leaves(engine.state).items()}
    stats = engine.step(batch, settings_at(2))
    assert stats.skipped == "the loss is nan and the gradient's norm nan"
    assert same(engine, broken)


def same(engine: JaxEngine, before: dict[str, np.ndarray]) -> bool:
    now = named_leaves(engine.state)
    return all(np.array_equal(np.asarray(now[name]), array, equal_nan=True) for name, array in before.items())


def test_an_optax_transformation_takes_the_place_of_the_settings() -> None:
    def own(named: Sequence[tuple[str, Any]]) -> optax.GradientTransformation:
        assert dict(named).keys() == Design(TINY).shapes().keys()
        return optax.chain(optax.scale_by_sign(), optax.scale(-1e-2))

    engine, batch = make(own_optimizer=own), make_batch()
    before = {name: np.array(array) for name, array in engine.state.params.items()}
    engine.step(batch, replace(settings_at(), lr_multiplier=0.5))
    name = "layers.0.attention.query.weight"
    moved = np.abs(np.asarray(engine.state.params[name]) - before[name])
    assert moved == pytest.approx(5e-3, rel=1e-3)


def test_what_is_no_transformation_is_refused() -> None:
    with pytest.raises(UsageError, match=r"returned what makes a int, and the JAX engine takes an optax\.Gradient"):
        make(own_optimizer=lambda _named: 3)


def test_the_padded_vocabulary_is_never_touched() -> None:
    engine = make()
    for step in range(3):
        engine.step(make_batch(seed=step), settings_at(step))
    for name in ("embedding.weight", "unembedding.weight"):
        weight = np.asarray(engine.state.params[name])
        assert weight.shape[0] == TINY.padded_vocab == 128
        assert not weight[TINY.vocab :].any()


def test_a_device_that_is_not_there_is_refused_in_a_line() -> None:
    with pytest.raises(ConfigError) as caught:
        JaxEngine(EngineSettings(TINY, device="mps"))
    what = 'is "mps", which JAX does not find here. Write "cpu", or leave it out.'
    assert str(caught.value).endswith(f"engine.device: {what}")


def test_a_profile_is_written_into_its_folder(tmp_path: Path) -> None:
    engine = JaxEngine(EngineSettings(TINY, device="cpu"))
    with engine.profiled(tmp_path / "profile"):
        engine.step(make_batch(), settings_at())
    assert list((tmp_path / "profile").rglob("*.xplane.pb"))
    assert engine.computes_in() == {"device": "cpu", "precision": "float32"}
