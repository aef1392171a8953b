"""Layouts of up to 1,024 ranks go through a whole step of the real engine, each in a process of its own."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.batches import TINY
from trivium.engine.average import AverageSettings
from trivium.engine.base import EngineSettings, KlSettings, OptimizerSettings, StageSettings
from trivium.engine.loss_weight import LossWeights
from trivium.engine.memory import Measured, MeasuringProcess
from trivium.engine.mesh import MeshShape
from trivium.errors import ConfigError, UsageError
from trivium.model.spec import RopeSpec

SPEC = replace(TINY, layers=3, width=1024, heads=8, kv_heads=8, head_dim=128, ffn=1024, vocab=1024, qk_norm=True)


def measured(mesh: MeshShape, optimizer: str) -> Measured:
    how = OptimizerSettings(optimizer, grad_clip=1.0)
    settings = EngineSettings(SPEC, optimizer=how, precision="bfloat16", micro_batch_size=1, mesh=mesh)
    return Measured(settings, StageSettings(128), rows=2)


def test_a_step_is_sent_as_json_and_comes_back_as_it_was() -> None:
    step = measured(MeshShape(2, 4, 1), "muon")
    with_kl = StageSettings(64, rope=RopeSpec(theta=5e4), kl=KlSettings(0.1, Path("reference"), "reverse"))
    weighted = StageSettings(64, loss_weight=LossWeights({"web": 0.5}), start_from=AverageSettings(ema=0.9))
    taught = replace(with_kl, distill=KlSettings(0.5, Path("teacher"), top_k=3, spec=SPEC), freeze=("norm",), vocab=99)
    for sent in (step, *(replace(step, stage=stage) for stage in (with_kl, weighted, taught))):
        assert Measured.from_plain(json.loads(json.dumps(sent.plain()))) == sent
        assert len({sent.stage, replace(sent.stage)}) == 1, "of equal stages one is measured"


@pytest.mark.parametrize(
    ("mesh", "rank"),
    [(MeshShape(1, 1024, 1), 1023), (MeshShape(8, 16, tensor=8), 512), (MeshShape(8, 16, 1), 0)],
    ids=["fully sharded", "all three axes", "hybrid"],
)
def test_a_rank_of_many_takes_a_step_with_either_optimizer(mesh: MeshShape, rank: int) -> None:
    with MeasuringProcess([measured(mesh, name) for name in ("adamw", "muon")], rank) as process:
        adamw, muon = process.peaks()
    matrices, parts = SPEC.layers * SPEC.layer_matrices, mesh.shard * mesh.tensor
    split = 4 * matrices // parts
    assert adamw["weights"] == muon["weights"] >= split
    # But for the vectors of norms, which are shared out less evenly.
    assert adamw["weights"] == pytest.approx(split + 4 * 2 * SPEC.vocab * SPEC.width / parts, rel=0.02)
    assert adamw["optimizer"] == pytest.approx(2 * adamw["weights"], rel=0.02)
    assert adamw["optimizer"] - muon["optimizer"] == pytest.approx(split, rel=0.02)
    assert adamw["gathered"] > 0


def test_weights_that_are_not_let_go_are_measured() -> None:
    step = measured(MeshShape(1, 64, 1), "adamw")
    step = replace(step, settings=replace(step.settings, spec=replace(SPEC, layers=12)))
    kept = replace(step, settings=replace(step.settings, reshard_after_forward=False))
    with MeasuringProcess([step, kept]) as process:
        less, more = process.peaks()
    layers = 2 * 12 * SPEC.layer_matrices  # in bfloat16
    assert less["gathered"] < layers / 2
    assert more["gathered"] > layers


def test_a_layout_that_does_not_fit_the_model_is_refused_before_anything_runs() -> None:
    with pytest.raises(ConfigError) as error:
        MeasuringProcess([measured(MeshShape(1, 2, tensor=16), "adamw")])
    assert str(error.value) == (
        "engine.parallel.tensor: is 16, which does not divide the model's heads 8, kv_heads 8. Lower it."
    )


def test_a_step_that_fails_is_one_message() -> None:
    step = measured(MeshShape(1, 2, 1), "adamw")
    step = replace(step, settings=replace(step.settings, optimizer=OptimizerSettings(betas=(2.0, 0.9))))
    with MeasuringProcess([step], rank=1) as process, pytest.raises(UsageError) as error:
        list(process.peaks())
    why = "ValueError: Invalid beta parameter at index 0: 2.0"
    assert str(error.value) == f"a step of rank 1 of 2 cannot run: {why}"
