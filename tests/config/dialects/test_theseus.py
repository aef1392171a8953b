"""theseus's configs: a stage for every entry of tokens and dataset, in either way to write keys."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.dialects import EXAMPLES, shares, spans, unsaid_of
from tests.support.theseus import BASE, FOLDER, PADDED, PMD, load, notes, plan_of, refusal, written
from trivium.plan.make import make_plan


def test_an_entry_is_a_stage(file: Path) -> None:
    plan = plan_of(written(file))
    assert spans(plan) == [("stage-0", 0, 100), ("stage-1", 100, 110)]
    assert shares(plan) == [{"fineweb": 1.0}, {"mnli": 1.0}]
    assert [stage.config.packing for stage in plan.stages] == ["concat", "pad"]
    assert [(stage.seq_len, stage.batch_size) for stage in plan.stages] == [(512, 8), (512, 8)]
    assert notes(file) == [FOLDER]


def test_keys_may_be_slashed_dotted_or_nested(file: Path) -> None:
    slashed = load(written(file)).raw
    nested: dict[str, Any] = {}
    for key, value in BASE.items():
        table, _, name = key.partition("/")
        nested.setdefault(table, {})[name] = value
    file.write_text(yaml.safe_dump(nested))
    assert load(file).raw == slashed
    file.write_text(yaml.safe_dump({key.replace("/", "."): value for key, value in BASE.items()}))
    assert load(file).raw == slashed


def test_a_key_that_is_said_twice_is_refused(file: Path) -> None:
    written(file, training={"batch_size": 4})
    assert refusal(file) == ["training/batch_size: is given twice. Keep one."]
    written(file, optimization=5, optimization__lr=1e-3)
    assert refusal(file) == ["optimization: is a value and a table. Keep one."]


def test_a_bare_number_and_a_bare_list_are_one_stage(file: Path) -> None:
    plan = plan_of(written(file, training__tokens=40_960.0, training__dataset=[PMD]))
    assert spans(plan) == [("stage-0", 0, 10)]


def test_kl_counts_from_the_second_stage_on_as_theirs_computes_it(file: Path) -> None:
    written(file, optimization__kl__beta=0.2)
    kls = [stage.kl for stage in load(file).config.stages]
    assert kls[0] is None
    assert kls[1] is not None
    assert (kls[1].beta, kls[1].direction, kls[1].reference) == (0.2, "nll_gap", None)
    assert kls[1].precision == "bfloat16"  # in which theirs keeps its reference
    assert notes(file)[0] == (
        'optimization/kl: is the difference of two token losses there (direction = "nll_gap"), '
        "which holds nothing back. KL itself: stages.1.kl.direction=forward."
    )


def test_betas_by_stage_have_the_reference_of_the_last_update(file: Path) -> None:
    three = {"training__tokens": [4096] * 3, "training__dataset": [[PMD]] * 3}
    kl = {"betas": [0.0, 0.1, 0.3]}  # theirs updates the reference when stage 1 begins, unless it says otherwise
    kls = [stage.kl for stage in load(written(file, **three, optimization={"kl": kl})).config.stages]
    assert kls[2] is not None
    assert kls[2].reference is not None
    assert (kls[2].beta, kls[2].reference.stage) == (0.3, "stage-1")
    kl["reference_update_stages"] = [1, 2]
    kls = [stage.kl for stage in load(written(file, **three, optimization={"kl": kl})).config.stages]
    assert kls[2] is not None
    assert kls[2].reference is None  # the model as it was when its stage began


def test_the_activations_type_is_the_precision(file: Path) -> None:
    assert load(written(file)).raw["engine"]["precision"] == "bfloat16"  # as theirs is by default
    dtypes = {"param": "float32", "activation": "float32"}
    assert load(written(file, architecture__dtype=dtypes)).raw["engine"]["precision"] == "float32"


FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"training__batch_size": 0}, "training/batch_size: is 0. It must be a whole number, at least 1."),
    (
        {"training__tokens": [4096, "x"]},
        'training/tokens[1]: is "x". It must be a whole number, at least 1.',
    ),
    (
        {"training__tokens": [4096]},
        "training/dataset: has 2 entries, but training/tokens has 1. Give one for each stage.",
    ),
    (
        {"training__dataset": [[PMD], [PADDED | {"rate": 0.5}]]},
        "training/dataset[1]: has rates that add up to 0.5, not 1. Change them, so that they do.",
    ),
    (
        {"training__dataset": [[PMD], [PADDED | {"rate": 2}]]},
        "training/dataset[1][0]/rate: is 2. It must be a number between 0 and 1.",
    ),
    (
        {"training__dataset": [[PMD], [PADDED | {"style": "CONTRASTIVE"}]]},
        'training/dataset[1][0]/style: is "CONTRASTIVE". Write one of "PMD" or "PADDED".',
    ),
    (
        {"training__dataset": [[PMD], [{"rate": 1.0}]]},
        "training/dataset[1][0]/name: is missing. It must be text. Write name: fineweb.",
    ),
    (
        {"training__dataset": [[PMD], [PMD | {"rate": 0.5}, PMD | {"rate": 0.5}]]},
        "training/dataset[1][1]/name: is twice in its stage. Name it once, with the sum of rates.",
    ),
    (
        {"training__dataset": "fineweb"},
        (
            'training/dataset: is "fineweb". It must be a list of samplings for each stage. '
            "Write - - { name: fineweb, rate: 1.0, style: PMD }."
        ),
    ),
    (
        {"optimization__warmup_pct": 2},
        "optimization/warmup_pct: is 2. It must be a number between 0 and 1.",
    ),
    (
        {"optimization__warmup_pct": 0.5, "optimization__decay_pct": 0.75},
        "optimization/warmup_pct: and decay_pct and constant_pct are 1.25 of the run. Lower one of them.",
    ),
    (
        {"optimization__kl__betas": [0.1]},
        "optimization/kl/betas: is [0.1]. Give a number for each of the 2 stages.",
    ),
    (
        {"training__fade__curve": "steps"},
        'training/fade/curve: is "steps". Write "linear", "cosine" or "sigmoid".',
    ),
    (
        {"training__fade__per_boundary_overlap": [0.1, 0.2]},
        "training/fade/per_boundary_overlap: is [0.1, 0.2]. Give a number, at least 0, for each of the 1 boundaries.",
    ),
    (
        {"training__fade__per_boundary_overlap": [-0.5]},
        "training/fade/per_boundary_overlap: is [-0.5]. Give a number, at least 0, for each of the 1 boundaries.",
    ),
    (
        {"training__tokens": []},
        "training/tokens: is []. A step has 4,096 (batch_size x block_size). Write that, or more, for each stage.",
    ),
    (
        {"training__tokens": [2000, 2000]},
        (
            "training/tokens: is [2000, 2000]. A step has 4,096 (batch_size x block_size). "
            "Write that, or more, for each stage."
        ),
    ),
    (
        {"optimization__kl": {"betas": [0.0, 0.1], "reference_update_stages": [2]}},
        "optimization/kl/reference_update_stages: is [2]. Give numbers of stages, from 0 to 1.",
    ),
    (
        {"optimization__kl": {"betas": [0.1, 0.1]}},
        (
            "optimization/kl/reference_update_stages: is [1]. Stage 0 has a beta of 0.1 and no reference. "
            "Add the stage it begins with, after 0."
        ),
    ),
    (
        {"architecture__dtype__activation": "float16"},
        'architecture/dtype/activation: is "float16". Write "bfloat16" or "float32".',
    ),
    (
        {"architecture__dtype__param": "bfloat16"},
        'architecture/dtype/param: is "bfloat16". Weights here are float32. Write param: float32.',
    ),
    ({"architecture__dropout": 0.1}, "architecture/dropout: is 0.1. Nothing is dropped here. Write dropout: 0.0."),
    ({"architecture__rope": False}, "architecture/rope: is false. Positions here are rotary. Write rope: true."),
    (
        {"architecture__moe__experts": 8},
        "architecture/moe/experts: is 8. Experts are not built here. Remove the table moe to train a dense model.",
    ),
    (
        {"architecture__d_state": 128},
        (
            "architecture/d_state: is 128. Layers that read this key are not built here. "
            "Remove it to train without them."
        ),
    ),
    (
        {"optimization__lora": {"rank": 16}},
        (
            "optimization/lora: is { rank = 16 }. LoRA is not built here: all parameters are trained. "
            "Remove it to train them."
        ),
    ),
    (
        {"optimization__schedule": "cosine"},
        'optimization/schedule: is "cosine". Write "wsd", "wsd_reset", "wsds" or "cosine_rewarm".',
    ),
    (
        {"training__dataset": [[PMD], [PADDED | {"weight": 3}]]},
        (
            "training/dataset[1][0]/weight: is 3. trivium does not know this key. "
            "Remove it to train without what it does."
        ),
    ),
]


@pytest.mark.parametrize(("keys", "what"), FAULTS, ids=[what.split(":")[0] for _, what in FAULTS])
def test_a_fault_is_refused_by_their_key(file: Path, keys: dict[str, Any], what: str) -> None:
    assert refusal(written(file, **keys)) == [what]


def test_problems_come_at_once(file: Path) -> None:
    keys = {"training__batch_size": -1, "optimization__warmup_pct": -1, "logging__report_interval": 0}
    told = ["training/batch_size", "optimization/warmup_pct", "logging/report_interval"]
    assert [said.split(":")[0] for said in refusal(written(file, **keys))] == told
    assert [said.split(":")[0] for said in refusal(file, ())] == [*told, "job"]


def test_nothing_is_dropped_silently() -> None:
    """Every key with an odd value of its own turns up: in our tables, in a note, or in a problem."""
    assert unsaid_of("theseus", Path(__file__).parent / "odd_theseus.yaml") == []


def test_the_example_is_planned_as_the_page_says() -> None:
    sizes = ["model.layers=8", "model.width=512", "model.heads=8"]
    plan = make_plan(load(EXAMPLES / "theseus.yaml", sizes).config)
    assert spans(plan) == [("stage-0", 0, 1000), ("stage-1", 1000, 1050), ("stage-2", 1050, 1100)]
