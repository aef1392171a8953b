"""Initial weights come from the seed and from names."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.batches import TINY
from trivium.engine.base import EngineSettings
from trivium.engine.draw import first_values
from trivium.engine.torch import model as model_module
from trivium.engine.torch.checkpoint import weights
from trivium.engine.torch.checkpoint.weights import init_weights
from trivium.engine.torch.engine import TorchEngine
from trivium.engine.torch.model import Decoder


def model(**changes: int) -> dict[str, torch.Tensor]:
    decoder = Decoder(replace(TINY, **changes), torch.float32)  # type: ignore[arg-type]
    init_weights(decoder, seed=1)
    return {name: parameter.detach() for name, parameter in decoder.named_parameters()}


def test_parameters_are_counted_as_the_spec_says() -> None:
    for spec in (TINY, replace(TINY, qk_norm=True, tied_embeddings=True)):
        decoder = Decoder(spec, torch.float32)
        padding = (spec.padded_vocab - spec.vocab) * spec.width * (1 if spec.tied_embeddings else 2)
        assert sum(parameter.numel() for parameter in decoder.parameters()) == spec.parameters + padding


def test_more_layers_change_nothing_in_those_before() -> None:
    two, three = model(), model(layers=3)
    same = {name for name in two if torch.equal(two[name], three[name])}
    assert two.keys() - same == {
        f"layers.{layer}.{part}.weight" for layer in (0, 1) for part in ("attention.output", "feed_forward.down")
    }  # these are scaled by the number of layers


def test_large_parameters_are_drawn_some_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = model()
    monkeypatch.setattr(weights, "DRAWN_AT_ONCE", 100)
    by_rows = model()
    assert all(torch.equal(by_rows[name], each) for name, each in at_once.items())


def test_nothing_is_drawn_before_a_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = EngineSettings(TINY, device="cpu", seed=3)
    saved = TorchEngine(settings)
    saved.save(tmp_path / "saved").wait()
    saved.export(tmp_path / "exported")
    drawn: list[str] = []

    def counted(name: str, *rest: Any) -> Any:
        drawn.append(name)
        return first_values(name, *rest)

    monkeypatch.setattr(model_module, "first_values", counted)
    loaded = TorchEngine(replace(settings, draw=False))
    loaded.load(tmp_path / "saved")
    started = TorchEngine(replace(settings, draw=False))
    started.start_from(tmp_path / "exported")
    assert drawn == []
    ours = saved.model.weights()
    for other in (loaded, started):
        assert all(torch.equal(each, ours[name]) for name, each in other.model.weights().items())
    later = TorchEngine(replace(settings, draw=False))
    later.draw()
    assert sorted(drawn) == sorted(ours)
    assert all(torch.equal(each, ours[name]) for name, each in later.model.weights().items())
