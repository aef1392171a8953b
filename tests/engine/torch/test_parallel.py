"""Every layout of ranks starts from the same weights and learns the same; real processes, one launch for each size.

Sums over ranks are taken in another order, so that figures differ by rounding: float32 losses of eight steps agree
within 1e-5, relative.
"""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import get_total_norm

from tests.engine.torch.layouts import AVERAGES, HANDED_ON, KINDS, LAYOUTS, SPEC, STEPS
from tests.support.measured import measured
from tests.support.sharded import playing_rank, sharded_matrices
from trivium.engine.mesh import MeshShape, refuse_uneven_matrices
from trivium.engine.torch.parallel import REPLICATE, SHARD, TENSOR, local_part, part_at, scale_and_clip
from trivium.engine.torch.ranks import first_node, take_slurms_names
from trivium.errors import ConfigError

MANY = [name for name in LAYOUTS if name != "one"]
EXACT = [kind for kind in KINDS if kind != "bfloat16"]


@pytest.fixture(scope="module")
def layouts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The figures of every layout."""
    folder = tmp_path_factory.mktemp("layouts")
    return measured("tests.engine.torch.layouts", folder)


def losses(steps: list[dict[str, Any]]) -> list[float]:
    return [step["loss"] for step in steps]


@pytest.mark.slow
@pytest.mark.parametrize("name", MANY)
def test_all_layouts_start_from_the_same_weights_to_the_bit(layouts: dict[str, Any], name: str) -> None:
    for kind in KINDS:
        assert layouts[name][kind]["initial"] == layouts["one"][kind]["initial"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", EXACT)
@pytest.mark.parametrize("name", MANY)
def test_all_layouts_learn_the_same(layouts: dict[str, Any], name: str, kind: str) -> None:
    one, many = layouts["one"][kind]["steps"], layouts[name][kind]["steps"]
    assert len(many) == STEPS
    for step, other in zip(one, many, strict=True):
        for figure in ("loss", "norm", "z", "objective"):
            assert other[figure] == pytest.approx(step[figure], rel=1e-5 if figure != "norm" else 1e-4)
        assert other["loss_tokens"] == step["loss_tokens"]
        assert other["by_source"][1] == step["by_source"][1]
        assert other["by_source"][0] == pytest.approx(step["by_source"][0], rel=1e-5)
        assert other["by_row"] == pytest.approx(step["by_row"], rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", MANY)
def test_bfloat16_learns_the_same_but_for_its_rounding(layouts: dict[str, Any], name: str) -> None:
    one, many = (losses(layouts[each]["bfloat16"]["steps"]) for each in ("one", name))
    assert many == pytest.approx(one, rel=3e-2)


@pytest.mark.slow
@pytest.mark.parametrize("name", MANY)
def test_an_evaluation_adds_up_all_ranks_rows(layouts: dict[str, Any], name: str) -> None:
    one, many = (layouts[each]["adamw"]["evaluated"] for each in ("one", name))
    assert many.keys() == one.keys() == {"web", "code"}
    for source, (nats, tokens, size, text_nats) in one.items():
        assert many[source] == [pytest.approx(nats, rel=1e-5), tokens, size, pytest.approx(text_nats, rel=1e-5)]


@pytest.mark.slow
def test_a_step_gathers_layers_twice_and_all_else_once(layouts: dict[str, Any]) -> None:
    gathers, reductions = "_allgather_base_", "_reduce_scatter_base_"
    layers = SPEC.layers
    untied, tied = (layouts["shard 2"][kind]["calls"] for kind in ("adamw", "tied"))
    assert (untied[gathers], untied[reductions]) == (2 * layers + 2, layers + 2)
    assert (tied[gathers], tied[reductions]) == (2 * layers + 1, layers + 1)


@pytest.mark.slow
@pytest.mark.parametrize(("let_go", "gathers"), [("True", 2 * SPEC.layers + 4), ("False", SPEC.layers + 2)])
def test_what_is_let_go_after_the_forward_pass_is_gathered_again(
    layouts: dict[str, Any], let_go: str, gathers: int
) -> None:
    found = layouts["shard 2"]["let go"][let_go]
    assert (found["_allgather_base_"], found["_reduce_scatter_base_"]) == (gathers, SPEC.layers + 2)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["adamw", "micro-batches", "bfloat16"])
def test_loss_tokens_figures_and_flags_of_a_step_are_one_call_between_ranks(layouts: dict[str, Any], kind: str) -> None:
    assert layouts["shard 2"][kind]["calls"].keys() == {"_allgather_base_", "_reduce_scatter_base_", "allreduce_"}
    assert layouts["shard 2"][kind]["calls"]["allreduce_"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", MANY)
def test_ranks_generate_together_with_other_numbers_of_rows_and_lengths(layouts: dict[str, Any], name: str) -> None:
    one, many = (layouts[each]["generated"] for each in ("one", name))
    assert [len(row) for row in one["tokens"]] == [9, 3, 9]
    assert many["tokens"] == one["tokens"]
    assert many["nats"] == pytest.approx(one["nats"], rel=1e-5)


@pytest.mark.slow
def test_a_rank_holds_its_part_of_the_model(layouts: dict[str, Any]) -> None:
    held = {name: layouts[name]["adamw"]["held"] for name in LAYOUTS}
    assert held["shard 2"] == held["replicate 2 x shard 2"] == held["one"] // 2
    assert held["shard 4"] == held["one"] // 4
    assert held["shard 2 x tensor 2"] < held["shard 2"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["adamw", "muon", "ademamix"])
@pytest.mark.parametrize("name", list(LAYOUTS))
def test_a_layout_goes_on_bit_for_bit_from_its_own_checkpoint(layouts: dict[str, Any], name: str, kind: str) -> None:
    files = [f"rank-{rank:05}.safetensors" for rank in range(LAYOUTS[name].size)]
    assert layouts[name][f"{kind} again"] == {"same": True, "files": files}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["adamw", "muon", "ademamix"])
@pytest.mark.parametrize("name", MANY)
def test_a_layout_goes_on_from_the_checkpoint_of_another(layouts: dict[str, Any], name: str, kind: str) -> None:
    one = losses(layouts["one"][kind]["steps"])[HANDED_ON:]
    assert losses(layouts[name][f"{kind} of another layout"]) == pytest.approx(one, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(LAYOUTS))
def test_a_layout_resumes_exactly_where_another_optimizer_begins_and_after(layouts: dict[str, Any], name: str) -> None:
    assert layouts[name]["another optimizer again"]


@pytest.mark.slow
@pytest.mark.parametrize("name", list(LAYOUTS))
def test_an_exported_model_is_read_by_the_same_ranks(layouts: dict[str, Any], name: str) -> None:
    assert layouts[name]["exported"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", AVERAGES)
@pytest.mark.parametrize("name", LAYOUTS)
def test_an_average_resumes_to_the_bit_and_is_read_on_another_layout(
    layouts: dict[str, Any], name: str, kind: str
) -> None:
    names = list(LAYOUTS)
    found, before = layouts[name][kind], layouts[names[max(0, names.index(name) - 1)]][kind]
    assert found["moved"]
    assert found["same"]
    assert found["before"] == before["average"]


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYOUTS)
def test_all_layouts_freeze_grow_and_are_taught_alike(layouts: dict[str, Any], name: str) -> None:
    one, many = (layouts[each]["changed"] for each in ("one", name))
    assert many["same"]
    assert many["grown"] == one["grown"]
    for step, other in zip(one["steps"], many["steps"], strict=True):
        for figure in ("loss", "norm", "objective"):
            assert other[figure] == pytest.approx(step[figure], rel=1e-4)


SIZES = [(40, 24), (24, 40), (8, 8), (56, 16), (200, 3)]  # rows that shard axes do not divide, and fewer than ranks


@pytest.mark.parametrize(
    ("shape", "ranks"),
    [
        (MeshShape(shard=8), range(8)),
        (MeshShape(shard=4, tensor=2), range(8)),
        (MeshShape(replicate=2, shard=4), range(8)),
        (MeshShape(replicate=2, shard=2, tensor=2), range(8)),
        (MeshShape(tensor=8), range(8)),
        (MeshShape(shard=64), (0, 7, 39, 63)),
        (MeshShape(replicate=2, shard=8, tensor=4), (0, 1, 30, 63)),
    ],
    ids=str,
)
def test_any_rank_knows_what_all_ranks_hold(shape: MeshShape, ranks: Sequence[int]) -> None:
    with playing_rank(shape.size - 1, shape.size):
        tensors = sharded_matrices(shape, SIZES, whole=1)
        everywhere = itertools.product(range(shape.replicate), range(shape.shard), range(shape.tensor))
        places = [dict(zip((REPLICATE, SHARD, TENSOR), indices, strict=True)) for indices in everywhere]
        known = {rank: [part_at(tensor, places[rank]) for tensor in tensors] for rank in ranks}
    for rank in ranks:
        with playing_rank(rank, shape.size):
            for tensor, where in zip(sharded_matrices(shape, SIZES, whole=1), known[rank], strict=True):
                local, own = local_part(tensor)
                assert own == where
                assert local.shape == tuple(part.stop - part.start for part in where)
                (chunk,) = tensor.__create_chunk_list__()  # type: ignore[no-untyped-call]
                assert chunk.sizes == local.shape
                assert not local.numel() or chunk.offsets == tuple(part.start for part in where)


def test_one_process_clips_as_torch_does() -> None:
    random = torch.Generator().manual_seed(0)
    values = [torch.randn(size, generator=random) for size in SIZES]
    ours, theirs = ([torch.zeros(size, requires_grad=True) for size in SIZES] for _ in range(2))
    for one, other, value in zip(ours[1:], theirs[1:], values[1:], strict=True):  # the first has no gradient
        one.grad, other.grad = value.clone(), value.clone()
    norm = get_total_norm([tensor.grad for tensor in ours if tensor.grad is not None])
    scale_and_clip(1.0, norm, 1.0, ours)
    assert torch.equal(norm, nn.utils.clip_grad_norm_(theirs, 1.0))
    for one, other in zip(ours[1:], theirs[1:], strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=0, atol=0)


@pytest.mark.parametrize("limit", [None, 1.0, 1e6])
def test_gradients_are_scaled_and_clipped_at_once(limit: float | None) -> None:
    wanted = [torch.tensor([3.0, 4.0]), torch.tensor([12.0])]
    weights = [torch.zeros(len(each), requires_grad=True) for each in wanted]
    for weight, gradient in zip(weights, wanted, strict=True):
        weight.grad = gradient / 8
    scale_and_clip(8.0, get_total_norm(wanted), limit, weights)
    for weight, gradient in zip(weights, wanted, strict=True):
        torch.testing.assert_close(weight.grad, gradient / 13 if limit == 1 else gradient)


def test_heads_that_cannot_be_split_are_refused() -> None:
    with pytest.raises(ConfigError) as error:
        refuse_uneven_matrices(MeshShape(tensor=4), SPEC)
    assert str(error.value) == ("engine.parallel.tensor: is 4, which does not divide the model's kv_heads 2. Lower it.")


def test_a_vocabulary_that_cannot_be_split_is_refused() -> None:
    threes = replace(SPEC, heads=6, kv_heads=3, ffn=96)
    with pytest.raises(ConfigError) as error:
        refuse_uneven_matrices(MeshShape(tensor=3), threes)
    assert (
        str(error.value)
        == "engine.parallel.tensor: is 3, which does not divide the model's padded vocab 128. Lower it."
    )


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("gpu7", "gpu7"), ("gpu[007-012,020],cpu1", "gpu007"), ("a-1,b-2", "a-1"), ("n[3],m", "n3")],
)
def test_the_first_node_of_a_slurm_list(nodes: str, first: str) -> None:
    assert first_node(nodes) == first


def test_a_slurm_step_is_named_as_torchrun_names_it() -> None:
    step = {"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8", "SLURM_LOCALID": "1", "SLURM_JOB_ID": "40007"}
    environment = step | {"SLURM_STEP_NODELIST": "gpu[3-4]"}
    take_slurms_names(environment)
    assert {name: environment[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")} == {
        "RANK": "5",
        "WORLD_SIZE": "8",
        "LOCAL_RANK": "1",
        "MASTER_ADDR": "gpu3",
        "MASTER_PORT": "15007",
    }
    launched_by_torchrun = {"RANK": "0", "SLURM_PROCID": "3"}
    take_slurms_names(launched_by_torchrun)
    assert launched_by_torchrun == {"RANK": "0", "SLURM_PROCID": "3"}
