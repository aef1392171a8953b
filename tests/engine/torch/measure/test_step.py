"""The real engine's step on fake tensors: its peak by parts, against arithmetic and against all layers at once."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.batches import TINY
from trivium.engine.average import AverageSettings
from trivium.engine.base import EngineSettings, KlSettings, OptimizerSettings, StageSettings
from trivium.engine.memory import Measured
from trivium.engine.mesh import MeshShape
from trivium.engine.torch.measure.fake import fake_rank
from trivium.engine.torch.measure.step import peak_parts, peaks_of, with_layers

SPEC = replace(TINY, layers=6, vocab=1024)
SLOTS = 512


def measured(rows: int = 2, kl: bool = False, **given: object) -> Measured:
    settings = EngineSettings(SPEC, precision="bfloat16", micro_batch_size=1, **given)  # type: ignore[arg-type]
    return Measured(settings, StageSettings(SLOTS, kl=KlSettings(0.1, Path("not there")) if kl else None), rows)


def test_weights_gradients_and_state_are_those_of_the_arithmetic_to_the_byte() -> None:
    step = measured()
    with fake_rank(0, 1):
        parts = peaks_of(step)["update"]
    tensors = 9 * SPEC.layers + 3
    assert parts["weights"] == parts["gradients"] == 4 * SPEC.parameters
    assert parts["optimizer"] == 8 * SPEC.parameters + 4 * tensors  # every tensor's state counts its steps


@pytest.mark.parametrize(("kept", "copies"), [(AverageSettings(ema=0.9), 1), (AverageSettings(last=3), 3)])
def test_every_copy_of_an_average_takes_the_memory_of_the_weights(kept: AverageSettings, copies: int) -> None:
    step = replace(measured(), stage=StageSettings(SLOTS, average=kept))
    with fake_rank(0, 1):
        assert peaks_of(step)["update"]["average"] == copies * 4 * SPEC.parameters


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_few_layers_tell_the_peak_of_many(recompute: str) -> None:
    step = measured(recompute=recompute)
    with fake_rank(0, 1):
        assert peak_parts(step) == max(peaks_of(step).values(), key=lambda parts: sum(parts.values()))


def kept_of_a_layer(step: Measured) -> int:
    """Bytes that one more layer keeps for the backward pass."""
    with fake_rank(0, 1):
        less, more = (peaks_of(with_layers(step, count))["loss 1"]["activations"] for count in (2, 3))
    return more - less


def test_recomputing_keeps_a_layers_input_alone() -> None:
    assert kept_of_a_layer(measured(rows=1, recompute="full")) == 2 * SLOTS * SPEC.width  # in bfloat16


def test_recomputing_selectively_keeps_attention_and_every_second_product() -> None:
    heads, kv_heads = (count * SPEC.head_dim for count in (SPEC.heads, SPEC.kv_heads))
    attention = 2 * SLOTS * heads + 4 * SLOTS * SPEC.heads  # and the logarithms of its sums, in float32
    products = 2 * SLOTS * (kv_heads + SPEC.width + SPEC.ffn)  # key, output, up
    kept = kept_of_a_layer(measured(rows=1, recompute="selective"))
    assert kept == 2 * SLOTS * SPEC.width + attention + products
    assert kept < kept_of_a_layer(measured(rows=1)) / 2


FORM = replace(
    SPEC, qk_norm=True, norm="both", qkv_bias=True, activation="xielu", gated=False, window=64, sliding=(0, 1, 3, 4)
)


def of_form(step: Measured) -> Measured:
    return replace(step, settings=replace(step.settings, spec=FORM))


def test_other_layers_are_measured_by_few_of_them() -> None:
    step = of_form(measured(recompute="selective"))
    with fake_rank(0, 1):
        peaks = peaks_of(step)
        assert peak_parts(step) == max(peaks.values(), key=lambda parts: sum(parts.values()))
        plain = peaks_of(replace(step, settings=replace(step.settings, spec=replace(FORM, sliding=()))))
    assert peaks["update"]["weights"] == 4 * FORM.parameters
    assert peaks["loss 1"]["mask"] == pytest.approx(2 * plain["loss 1"]["mask"], rel=0.1)  # one for each window


def test_recomputing_selectively_without_a_gate_keeps_key_and_output() -> None:
    ungated = replace(SPEC, gated=False, qkv_bias=True)
    step = measured(rows=1, recompute="selective")
    heads, kv_heads = (count * SPEC.head_dim for count in (SPEC.heads, SPEC.kv_heads))
    attention = 2 * SLOTS * heads + 4 * SLOTS * SPEC.heads
    products = 2 * SLOTS * (kv_heads + SPEC.width)
    kept = kept_of_a_layer(replace(step, settings=replace(step.settings, spec=ungated)))
    assert kept == 2 * SLOTS * SPEC.width + attention + products


def test_a_stages_own_settings_are_measured() -> None:
    step = measured(rows=1)
    own = replace(step, stage=replace(step.stage, recompute="full"))
    assert kept_of_a_layer(own) == 2 * SLOTS * SPEC.width


@pytest.mark.parametrize("method", ["gather", "ulysses"])
def test_ranks_that_share_rows_keep_half_of_what_one_keeps(method: str) -> None:
    alone = measured(rows=1, mesh=MeshShape(shard=2), context_method=method)
    kept = []
    for context in (1, 2):
        step = replace(alone, stage=replace(alone.stage, context=context))
        with fake_rank(1, 2):
            kept.append(peaks_of(with_layers(step, 2))["loss 1"])
    assert kept[1]["activations"] < 0.6 * kept[0]["activations"]
    assert kept[1]["weights"] == kept[0]["weights"]
    assert kept[1]["mask"] > 0


def test_a_reference_is_held_in_the_precision_that_flows() -> None:
    with fake_rank(0, 1):
        parts = peak_parts(measured(kl=True))
    assert 2 * SPEC.parameters <= parts["reference"] < 2.1 * SPEC.parameters + 4 * SLOTS * SPEC.width


def test_muon_keeps_one_average_where_adamw_keeps_two() -> None:
    with fake_rank(0, 1):
        parts = peaks_of(measured(optimizer=OptimizerSettings("muon")))["update"]
    matrices = SPEC.layers * SPEC.layer_matrices
    assert parts["optimizer"] == 4 * matrices + 8 * (SPEC.parameters - matrices) + 4 * (2 * SPEC.layers + 3)


def test_ademamix_keeps_three_averages_also_where_a_stage_names_it() -> None:
    step, ademamix = measured(), OptimizerSettings("ademamix")
    with fake_rank(0, 1):
        parts = peaks_of(measured(optimizer=ademamix))["update"]
        of_stage = peaks_of(replace(step, stage=replace(step.stage, optimizer=ademamix)))["update"]
    assert parts["optimizer"] == of_stage["optimizer"] == 12 * SPEC.parameters


def test_a_document_mask_is_a_part_of_its_own() -> None:
    with fake_rank(0, 1):
        masked = peaks_of(measured())["loss 1"]
        joined = peaks_of(replace(measured(), stage=StageSettings(SLOTS, document_mask=False)))["loss 1"]
    assert masked["mask"] > 0
    assert joined["mask"] == 0
