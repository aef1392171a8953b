"""Ranks that share the slots of rows learn what one process does; real processes, one launch for each layout."""

from typing import Any

import numpy as np
import pytest

from tests.engine.torch.context_parallel.shared_rows import KINDS, LAYOUTS, LONG, ON_EIGHT, SHORT, SPEC
from tests.support.measured import measured
from trivium.engine.base import EngineSettings, StageSettings, refuse_misfits
from trivium.engine.mesh import MeshShape
from trivium.errors import ConfigError

MANY = [name for name in LAYOUTS if name != "one"]
EACH = [(name, kind) for name in MANY for kind in KINDS if LAYOUTS[name].size < 8 or kind in ON_EIGHT]


@pytest.fixture(scope="module")
def layouts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The figures of every layout."""
    folder = tmp_path_factory.mktemp("layouts")
    return measured("tests.engine.torch.context_parallel.shared_rows", folder)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), EACH)
def test_ranks_that_share_rows_learn_what_one_process_does(layouts: dict[str, Any], name: str, kind: str) -> None:
    one, many = layouts["one"][kind], layouts[name][kind]
    assert len(many["steps"]) == len(one["steps"]) == 8
    for step, other in zip(one["steps"], many["steps"], strict=True):
        assert other["tokens"] == step["tokens"]
        assert other["loss"] == pytest.approx(step["loss"], rel=1e-6)
        figures = {figure: pytest.approx(value, rel=1e-5, abs=1e-7) for figure, value in step.items()}
        assert other == figures | {"tokens": step["tokens"]}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), EACH)
def test_all_gradients_of_a_pass_are_those_of_one_process(layouts: dict[str, Any], name: str, kind: str) -> None:
    # Rows of masked documents from equal weights; joined ones, with KL, after four steps that differ by rounding.
    for seq_len, close in ((LONG, 1e-6), (SHORT, 1e-5)):
        found, expected = (np.array(layouts[each][kind]["gradients"][str(seq_len)]) for each in (name, "one"))
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=close * np.abs(expected).max())


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), EACH)
def test_an_evaluation_counts_every_token_once(layouts: dict[str, Any], name: str, kind: str) -> None:
    for one, many in zip(layouts["one"][kind]["evaluated"], layouts[name][kind]["evaluated"], strict=True):
        for source, (nats, tokens) in one["sources"].items():
            assert many["sources"][source] == [pytest.approx(nats, rel=1e-6), tokens]
        np.testing.assert_allclose(many["by_position"], one["by_position"], rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", MANY)
def test_every_rank_has_the_losses_of_its_whole_rows(layouts: dict[str, Any], name: str) -> None:
    ((expected,), parts) = (layouts[each]["gather"]["nats"] for each in ("one", name))
    mesh = LAYOUTS[name]
    readers = [part for rank, part in enumerate(parts) if rank % (mesh.context * mesh.tensor) == 0]
    np.testing.assert_allclose(np.concatenate(readers), expected, rtol=1e-5, atol=1e-6)
    assert all(part == parts[rank - rank % mesh.tensor] for rank, part in enumerate(parts))


@pytest.mark.slow
@pytest.mark.parametrize("name", MANY)
def test_ranks_that_share_rows_generate_whole_ones(layouts: dict[str, Any], name: str) -> None:
    assert layouts[name]["generated"] == layouts["one"]["generated"]


@pytest.mark.slow
def test_keys_and_values_are_gathered_once_a_layer_and_not_where_no_document_crosses(layouts: dict[str, Any]) -> None:
    rows, found = 4, layouts["context 2"]["sent"]
    of_keys = 2 * rows * SHORT * SPEC.kv_heads * SPEC.head_dim * 4  # bytes of a layer's keys and values, in float32
    gathered = found["gather"]["crossing"]
    assert gathered["calls"]["all_gather_into_tensor"] == gathered["calls"]["reduce_scatter_tensor"] == SPEC.layers
    assert gathered["bytes"]["all_gather_into_tensor"] == SPEC.layers * of_keys
    assert gathered["bytes"]["reduce_scatter_tensor"] == SPEC.layers * of_keys // 2
    # What is kept of a layer does not hold other ranks' keys: they are gathered again.
    assert found["selective"]["crossing"]["calls"]["all_gather_into_tensor"] == 2 * SPEC.layers
    exchanged = found["ulysses"]["crossing"]
    assert exchanged["calls"]["all_to_all_single"] == 4 * SPEC.layers
    of_heads = rows * SHORT * SPEC.head_dim * (2 * SPEC.heads + 2 * SPEC.kv_heads) * 4
    assert exchanged["bytes"]["all_to_all_single"] == 2 * SPEC.layers * of_heads // 2
    for kind in found:
        assert "all_gather_into_tensor" not in found[kind]["apart"]["calls"]
        assert "all_to_all_single" not in found[kind]["apart"]["calls"]


@pytest.mark.slow
def test_another_precision_leaves_weights_and_optimizer_as_they_are(layouts: dict[str, Any]) -> None:
    found = layouts["context 2"]["precision"]
    assert found["kept"]
    assert found["flows"] == ["torch.bfloat16", "torch.float32"]
    assert found["losses"][1] < found["losses"][0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            EngineSettings(SPEC, mesh=MeshShape(context=4, tensor=2), context_method="ulysses"),
            'divide the kv_heads 2 of a rank, with tensor = 2, that context_method = "ulysses" shares out.',
        ),
        (
            EngineSettings(SPEC, mesh=MeshShape(context=2), make_model=lambda spec: spec),
            "is 2, but only the decoder attends over several ranks, and <lambda> makes the model. Set it to 1.",
        ),
    ],
    ids=["heads", "own model"],
)
def test_rows_that_ranks_cannot_share_are_refused(settings: EngineSettings, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        refuse_misfits(settings, StageSettings(SHORT))
    assert message in str(error.value)
    refuse_misfits(settings, StageSettings(SHORT, context=1))
