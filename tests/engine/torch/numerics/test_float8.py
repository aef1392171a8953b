"""Layers in float8, emulated: they learn as others do, and what is saved is as without it."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from tests.engine.tiny import OPTIMIZERS, STAGE, hash_of
from tests.support.batches import SEQ_LEN, TINY, make_batch, settings_at
from tests.support.two_ranks import on_two_ranks
from trivium.engine.base import EngineSettings, Float8, KlSettings, OptimizerSettings, StageSettings
from trivium.engine.torch.engine import TorchEngine
from trivium.engine.torch.numerics import float8
from trivium.errors import ConfigError

torchao = pytest.importorskip("torchao")
SCALES: list[Float8] = ["tensorwise", "rowwise"]


def engine_of(scales: Float8 | None, **settings: object) -> TorchEngine:
    engine = TorchEngine(EngineSettings(TINY, device="cpu", float8=scales, **settings))  # type: ignore[arg-type]
    engine.enter(STAGE)
    return engine


def learn(engine: TorchEngine, steps: range) -> list[float]:
    """Losses on one batch, again and again."""
    return [engine.step(make_batch(), settings_at(step)).loss for step in steps]


def converted(engine: TorchEngine) -> set[str]:
    return {name for name, module in engine.model.named_modules() if type(module).__name__ == "Float8Linear"}


def test_the_layers_matrices_are_converted_and_no_others() -> None:
    names = {name.partition(".")[2].partition(".")[2] for name in converted(engine_of("tensorwise"))}
    attention = {f"attention.{name}" for name in ("query", "key", "value", "output")}
    assert names == attention | {f"feed_forward.{name}" for name in ("gate", "up", "down")}


def test_a_matrix_with_other_sizes_is_left_as_it_is() -> None:
    assert [float8.has_sizes(nn.Linear(*sizes)) for sizes in ((32, 64), (24, 64), (64, 40))] == [True, False, False]


@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_losses_go_down_and_stay_near_those_without_it(
    scales: Float8, optimizer: OptimizerSettings, precision: str
) -> None:
    plain, rounded = (
        learn(engine_of(each, optimizer=optimizer, precision=precision), range(12)) for each in (None, scales)
    )
    assert rounded[-1] < 0.8 * rounded[0]
    assert rounded != plain
    assert rounded == pytest.approx(plain, abs=0.15)  # nats, of 4.5 at first


@pytest.mark.parametrize("scales", SCALES)
def test_it_resumes_bit_for_bit_and_weights_are_plain(scales: Float8, tmp_path: Path) -> None:
    whole, first, second = (engine_of(scales) for _ in range(3))
    losses = learn(whole, range(6))
    learn(first, range(3))
    first.save(tmp_path / "saved").wait()
    second.load(tmp_path / "saved")
    assert learn(second, range(3, 6)) == losses[3:]
    assert hash_of(second, tmp_path / "resumed") == hash_of(whole, tmp_path / "whole")
    assert {type(parameter) for parameter in second.model.parameters()} == {nn.Parameter}
    assert {parameter.dtype for parameter in second.model.parameters()} == {torch.float32}


def test_other_engines_read_what_it_saved_and_export_the_same(tmp_path: Path) -> None:
    rounded, plain = engine_of("rowwise"), engine_of(None)
    learn(rounded, range(3))
    rounded.save(tmp_path / "saved").wait()
    plain.load(tmp_path / "saved")
    for name, engine in {"rounded": rounded, "plain": plain}.items():
        engine.export(tmp_path / name)
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("rounded", "plain")]
    assert files[0] == files[1]
    prompt = [np.array([1, 2, 3], np.int32)]
    ours, theirs = (engine.generation(prompt, 4).logits() for engine in (rounded, plain))
    assert np.abs(ours - theirs).mean() < 0.3 * np.abs(theirs).mean()  # every product rounds to eight bits


@pytest.mark.filterwarnings("ignore")  # torch's compiler warns of torch's own ways
def test_compiled_and_recomputed_layers_learn_the_same() -> None:
    plain, recomputed, compiled = (
        engine_of("tensorwise", recompute=recompute, compile=compiles)
        for recompute, compiles in (("none", False), ("full", False), ("none", True))
    )
    for layer in compiled.model.layers:
        layer.compile(dynamic=False, backend="aot_eager")
    losses = learn(plain, range(3))
    assert learn(recomputed, range(3)) == losses
    assert learn(compiled, range(3)) == pytest.approx(losses, rel=1e-3)


def test_a_reference_is_not_converted(tmp_path: Path) -> None:
    engine = engine_of("tensorwise")
    engine.save(tmp_path / "saved").wait()
    engine.enter(StageSettings(SEQ_LEN, kl=KlSettings(0.1, tmp_path / "saved")))
    assert all(type(module).__name__ != "Float8Linear" for module in engine.references["kl"].model.modules())


def test_it_is_told_once_that_a_cpu_emulates_it() -> None:
    engine = engine_of("tensorwise")
    notices = [engine.step(make_batch(), settings_at(step)).notice for step in range(2)]
    assert notices == [float8.EMULATED, None]


def test_a_gpu_without_float8_a_package_that_is_missing_and_a_model_without_sizes_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ConfigError, match="no matrix of the layers has sizes that 16 divides"):
        TorchEngine(EngineSettings(replace(TINY, width=24, ffn=40), device="cpu", float8="rowwise"))
    monkeypatch.setitem(sys.modules, "torchao.float8", None)
    with pytest.raises(ConfigError) as caught:
        engine_of("rowwise")
    told = "engine.float8: is \"rowwise\", but torchao is not installed. Get the extra: pip install 'trivium[float8]'"
    assert str(caught.value) == told
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA A100-SXM4-80GB")
    with pytest.raises(ConfigError, match="NVIDIA A100-SXM4-80GB does not multiply in float8, as H100 and later do"):
        float8.use_float8(engine_of(None).model, "rowwise", torch.device("cuda"))


TWO_RANKS = """
import json
from trivium.engine.base import EngineSettings
from trivium.engine.make import join_ranks
from trivium.engine.mesh import MeshShape
from trivium.engine.torch.engine import TorchEngine
from tests.support.batches import TINY, make_batch, settings_at

ranks = join_ranks()
engine = TorchEngine(EngineSettings(TINY, device="cpu", float8="rowwise", mesh=MeshShape(shard=2)))
shard = make_batch().rows(2 * ranks.rank, 2 * ranks.rank + 2)
print(json.dumps([engine.step(shard, settings_at(step)).loss for step in range(4)]))
"""


@pytest.mark.slow
def test_ranks_that_share_a_model_learn_as_one() -> None:
    one, other = on_two_ranks(TWO_RANKS)
    assert one == other
    assert json.loads(one) == pytest.approx(learn(engine_of("rowwise"), range(4)), abs=0.05)
