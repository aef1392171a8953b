"""What every engine promises of an average that it keeps beside the weights."""

from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file

from tests.engine.tiny import STAGE, TinyEngines, nats_of
from tests.support.batches import make_batch, settings_at
from trivium.engine.average import AverageSettings, AverageWeights
from trivium.engine.base import Engine
from trivium.errors import ResumeError

Weights = dict[str, NDArray[Any]]
EMA = AverageSettings(ema=0.5)
LAST = AverageSettings(last=3, weights="1-sqrt")
numbers = count()


def weights_of(engine: Engine, folder: Path) -> Weights:
    """The engine's weights now, by name."""
    path = folder / f"weights {next(numbers)}"
    engine.export(path)
    return load_file(path / "model.safetensors")


def average_of(engine: Engine, folder: Path) -> Weights:
    with engine.averaged():
        return weights_of(engine, folder)


def train(engine: Engine, *steps: int) -> None:
    """Take steps, after each of which a copy is due."""
    for step in steps:
        engine.step(make_batch(seed=step), settings_at(step))
        engine.add_to_average()


def assert_alike(one: Weights, other: Weights) -> None:
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_allclose(one[name], other[name], rtol=1e-5, atol=1e-7, err_msg=name)


def assert_same(one: Weights, other: Weights) -> None:
    assert all((one[name] == other[name]).all() for name in one.keys() | other.keys())


class AverageContract(TinyEngines):
    """The tests of averages, which `EngineContract` inherits."""

    def test_an_average_follows_the_weights_update_by_update(self, tmp_path: Path) -> None:
        engine = self.tiny()
        engine.enter(replace(STAGE, average=EMA, begin_average=True))
        expected = weights_of(engine, tmp_path)
        assert_same(average_of(engine, tmp_path), expected)
        for step in range(3):
            train(engine, step)
            now = weights_of(engine, tmp_path)
            expected = {name: 0.5 * was + 0.5 * now[name] for name, was in expected.items()}
        assert_alike(average_of(engine, tmp_path), expected)

    def test_a_skipped_update_does_not_move_it(self, tmp_path: Path) -> None:
        engine = self.tiny()
        engine.enter(replace(STAGE, average=EMA))
        train(engine, 0)
        before = average_of(engine, tmp_path)
        assert engine.step(make_batch(seed=1), replace(settings_at(1), loss_limit=0.0)).skipped is not None
        assert_same(average_of(engine, tmp_path), before)

    @pytest.mark.parametrize("weights", ["uniform", "1-sqrt", "cosine", "sqrt"])
    def test_the_last_copies_are_weighed_by_their_age(self, weights: AverageWeights, tmp_path: Path) -> None:
        engine, kept = self.tiny(), AverageSettings(last=3, weights=weights)
        engine.enter(replace(STAGE, average=kept))
        assert not engine.has_average
        copies = []
        for step in range(5):
            train(engine, step)
            copies.append(weights_of(engine, tmp_path))
            there = copies[-3:]
            shares = kept.shares(len(there))
            expected = {name: np.tensordot(shares, [copy[name] for copy in there], 1) for name in there[0]}
            assert_alike(average_of(engine, tmp_path), expected)

    @pytest.mark.parametrize("kept", [EMA, LAST], ids=["ema", "last"])
    def test_weights_come_back_to_the_bit(self, kept: AverageSettings, tmp_path: Path) -> None:
        engine, batch = self.tiny(), make_batch(seed=9)
        engine.enter(replace(STAGE, average=kept))
        train(engine, 0, 1, 2, 3)
        before, own = self.hash_of(engine, tmp_path / "before"), nats_of(engine, batch)
        with engine.averaged():
            assert nats_of(engine, batch) != own
        with pytest.raises(KeyError), engine.averaged():
            raise KeyError("whatever happens inside")
        assert nats_of(engine, batch) == own
        assert self.hash_of(engine, tmp_path / "after") == before

    @pytest.mark.parametrize("kept", [EMA, LAST], ids=["ema", "last"])
    def test_an_average_changes_no_step(self, kept: AverageSettings) -> None:
        plain, averaging = self.tiny(), self.tiny()
        averaging.enter(replace(STAGE, average=kept, begin_average=True))
        for step in range(3):
            batch = make_batch(seed=step)
            assert averaging.step(batch, settings_at(step)) == plain.step(batch, settings_at(step))
            averaging.add_to_average()

    @pytest.mark.parametrize("kept", [EMA, LAST], ids=["ema", "last"])
    def test_a_loaded_average_continues_bit_for_bit(self, kept: AverageSettings, tmp_path: Path) -> None:
        never_stopped, first, second = self.tiny(), self.tiny(), self.tiny(seed=2)
        for engine in (never_stopped, first):
            engine.enter(replace(STAGE, average=kept, begin_average=True))
        train(never_stopped, 0, 1, 2, 3, 4)
        train(first, 0, 1)
        first.save(tmp_path / "first").wait()
        second.load(tmp_path / "first")
        second.enter(replace(STAGE, average=kept))
        train(second, 2, 3, 4)
        assert_same(average_of(second, tmp_path), average_of(never_stopped, tmp_path))
        assert self.hash_of(second, tmp_path / "second") == self.hash_of(never_stopped, tmp_path / "never stopped")

    @pytest.mark.parametrize("kept", [EMA, LAST], ids=["ema", "last"])
    def test_a_stage_starts_from_the_average(self, kept: AverageSettings, tmp_path: Path) -> None:
        engine, resumed = self.tiny(), self.tiny(seed=2)
        engine.enter(replace(STAGE, average=kept))
        train(engine, 0, 1, 2, 3)
        average = average_of(engine, tmp_path)
        engine.save(tmp_path / "boundary").wait()
        resumed.load(tmp_path / "boundary")
        for each in (engine, resumed):
            each.enter(replace(STAGE, average=kept, start_from=kept))
            assert_same(weights_of(each, tmp_path), average)
            train(each, 4)
        assert self.hash_of(resumed, tmp_path / "resumed") == self.hash_of(engine, tmp_path / "never stopped")

    def test_an_average_begins_anew_and_ends_with_a_stage(self, tmp_path: Path) -> None:
        engine = self.tiny()
        engine.enter(replace(STAGE, average=LAST))
        train(engine, 0, 1)
        engine.enter(replace(STAGE, average=EMA, begin_average=True))
        assert_same(average_of(engine, tmp_path), weights_of(engine, tmp_path))
        engine.enter(STAGE)
        assert not engine.has_average

    @pytest.mark.parametrize("kept", [EMA, LAST], ids=["ema", "last"])
    def test_a_saved_average_is_taken_instead_of_the_weights(self, kept: AverageSettings, tmp_path: Path) -> None:
        engine, other = self.tiny(), self.tiny(seed=2)
        engine.enter(replace(STAGE, average=kept))
        train(engine, 0, 1)
        engine.save(tmp_path / "saved").wait()
        other.start_from(tmp_path / "saved", kept)
        assert_same(weights_of(other, tmp_path), average_of(engine, tmp_path))

    def test_a_checkpoint_without_an_average_is_refused(self, tmp_path: Path) -> None:
        engine = self.tiny()
        engine.save(tmp_path).wait()
        with pytest.raises(ResumeError) as refusal:
            engine.start_from(tmp_path, LAST)
        assert str(refusal.value) == (
            f"{tmp_path}: has no average. Take a later checkpoint, or the weights themselves."
        )
