"""Plans -> what crosses the engine's door."""

from pathlib import Path

import pytest

from trivium.config.engine import Engine, Parallel
from trivium.config.optimizer import Optimizer
from trivium.config.schema import Config, Run
from trivium.config.stages import Kl, Stage, StageEngine
from trivium.engine.base import EngineSettings, KlSettings, StageSettings
from trivium.engine.mesh import MeshShape
from trivium.errors import ConfigError
from trivium.model.spec import ModelSpec
from trivium.plan.settings import engine_settings, mesh_shape, refuse_stage_meshes, stage_mesh, stage_settings

SPEC = ModelSpec(layers=1, width=64, heads=1, kv_heads=1, head_dim=64, ffn=192, vocab=256, max_seq_len=128)


def test_settings_are_those_of_the_config() -> None:
    config = Config(
        run=Run(name="small", seed=7),
        optimizer=Optimizer(name="muon", grad_clip=1.0, betas=(0.8, 0.9)),
        engine=Engine(device="cpu", micro_batch_size=2, recompute="full", deterministic=False),
    )
    settings = engine_settings(config, SPEC)
    assert (settings.seed, settings.device, settings.micro_batch_size) == (7, "cpu", 2)
    assert (settings.optimizer.name, settings.optimizer.grad_clip, settings.optimizer.betas) == (
        "muon",
        1.0,
        (0.8, 0.9),
    )
    assert settings.recompute == "full"
    assert not settings.deterministic


def test_the_optimizer_is_reset_only_where_a_stage_begins() -> None:
    stage = Stage(name="long", seq_len=64, document_mask=False, z_loss=1e-4, reset_optimizer=True)
    expected = StageSettings(64, SPEC.rope, False, 1e-4, reset_optimizer=True)
    assert stage_settings(stage, SPEC.rope, begins=True) == expected
    assert not stage_settings(stage, SPEC.rope, begins=False).reset_optimizer


def test_a_stages_engine_table_crosses_the_door_and_leaves_the_rest_to_the_engine() -> None:
    stage = Stage(name="long", engine=StageEngine(recompute="selective"))
    found = stage_settings(stage, SPEC.rope, begins=True)
    assert (found.recompute, found.micro_batch_size) == ("selective", None)
    config = Config(engine=Engine(recompute="full", micro_batch_size=2))
    resolved = found.resolved(engine_settings(config, SPEC))
    assert (resolved.recompute, resolved.micro_batch_size) == ("selective", 2)


def test_kl_crosses_the_door_with_the_reference_that_was_found() -> None:
    stage = Stage(name="chat", kl=Kl(beta=0.1, direction="reverse", precision="bfloat16"))
    frozen = Path("folder")
    expected = KlSettings(0.1, frozen, "reverse", "bfloat16")
    assert stage_settings(stage, SPEC.rope, begins=True, references={"kl": frozen}).kl == expected
    assert stage_settings(stage, SPEC.rope, begins=True).kl is None
    assert stage_settings(Stage(name="chat"), SPEC.rope, begins=True, references={"kl": frozen}).kl is None


def test_what_is_left_of_the_ranks_shards_the_model() -> None:
    assert mesh_shape(Parallel(replicate=2, tensor=2), 16) == MeshShape(replicate=2, shard=4, tensor=2)
    assert [MeshShape(2, 2, tensor=2).reader(rank, 8) for rank in range(8)] == [0, 0, 1, 1, 2, 2, 3, 3]


def test_ranks_that_share_rows_read_the_same_ones_and_a_stage_may_share_them_otherwise() -> None:
    mesh = mesh_shape(Parallel(context=2, tensor=2), 16)
    assert mesh == MeshShape(shard=4, context=2, tensor=2)
    assert [mesh.reader(rank, 16) for rank in range(0, 16, 2)] == [0, 0, 1, 1, 2, 2, 3, 3]
    longer = stage_mesh(mesh, Stage(engine=StageEngine(context=8)))
    assert (longer, longer.parameter_shards) == (MeshShape(shard=1, context=8, tensor=2), mesh.parameter_shards)
    assert (longer.readers(16), mesh.with_context(1).readers(16)) == (1, 8)
    assert stage_mesh(mesh, Stage()) == mesh


def test_a_context_that_does_not_divide_the_ranks_is_refused_for_every_stage_at_once() -> None:
    sizes = {"a": 3, "b": 2, "c": 16}
    stages = dict(enumerate(Stage(name=name, engine=StageEngine(context=size)) for name, size in sizes.items()))
    with pytest.raises(ConfigError) as error:
        refuse_stage_meshes(EngineSettings(SPEC), MeshShape(shard=4, context=2), stages)
    assert [problem.where for problem in error.value.problems] == [
        "stages[0].engine.context",
        "stages[2].engine.context",
    ]
    assert str(error.value.problems[0]) == (
        "stages[0].engine.context: is 3, which does not divide the 8 ranks of shard x context. "
        "Write a divisor of it, or launch another number of ranks for this stage."
    )
    assert str(error.value.problems[1]).endswith("for this stage, and end this launch before it with --until c.")


@pytest.mark.parametrize(
    ("parallel", "launched", "message"),
    [
        (
            Parallel(replicate=2, shard=3),
            8,
            "replicate 2 x shard 3 x tensor 1 is 6, but 8 ranks were launched. Launch 6, or change one of them.",
        ),
        (
            Parallel(tensor=2),
            1,
            "replicate 1 x shard 1 x tensor 2 is 2, but 1 rank was launched. Launch 2, or change one of them.",
        ),
    ],
    ids=["fewer", "alone"],
)
def test_a_product_that_is_not_the_world_size_is_refused(parallel: Parallel, launched: int, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        mesh_shape(parallel, launched)
    assert str(error.value) == f"engine.parallel: {message}"


def test_of_one_device_words_are_of_devices() -> None:
    with pytest.raises(ConfigError) as caught:
        mesh_shape(Parallel(shard=3), 1, 1)
    product = "replicate 1 x shard 3 x tensor 1 is 3"
    assert str(caught.value).endswith(f"engine.parallel: {product}, but there is 1 device. Change one of them.")


def test_of_several_devices_in_a_rank_the_rank_reads_all_rows() -> None:
    assert mesh_shape(Parallel(tensor=2), 2, 4) == MeshShape(shard=4, tensor=2)
    assert [MeshShape(shard=4, tensor=2).reader(rank, 2) for rank in range(2)] == [0, 1]
    assert [MeshShape(tensor=8).reader(rank, 2) for rank in range(2)] == [0, 0]


@pytest.mark.parametrize(
    ("parallel", "message"),
    [
        (
            Parallel(shard=3),
            "engine.parallel: replicate 1 x shard 3 x tensor 1 is 3, but there are 12 devices. Change one of them.",
        ),
        (
            Parallel(tensor=4),
            (
                "engine.parallel.tensor: makes 4 devices share rows, and a rank has 6: "
                "one must divide the other. Change it."
            ),
        ),
    ],
)
def test_devices_that_cannot_be_shared_so_are_refused(parallel: Parallel, message: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        mesh_shape(parallel, 2, 6)
    assert str(refusal.value) == message
