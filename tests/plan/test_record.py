"""The fingerprint up to a step changes if and only if something before that step changed."""

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.support.plans import config_of, plan_of
from trivium.errors import ConfigError, PlanError
from trivium.plan.make import make_plan
from trivium.plan.plan import Plan
from trivium.plan.record import Difference, first_difference

Tables = dict[str, Any]

MIXTURES = [{"web": 1.0}, {"web": 0.5, "code": 0.5}, {"web": 0.8, "code": 0.2}, {"math": 1.0}]
STAGE_LRS = [
    {"scale": 0.5},
    {"warmup": {"steps": 1}},
    {"scale": 2.0, "warmup": {"fraction": 0.5}},
    {"shape": "constant"},
    {"shape": "linear", "to": 0.0},
    {"shape": "cosine", "to": 0.5},
    {"shape": "wsd", "decay": {"fraction": 0.5}, "decay_shape": "1-sqrt"},
    {"shape": "inverse-sqrt", "warmup": {"steps": 1}},
    {"shape": "power", "exponent": 2.0},
    {"shape": "exponential", "half_life": {"steps": 3}},
    {"shape": "wsd", "cycle": {"steps": 2, "decay": 1}, "to": 0.5},
    {"points": [{"steps": 0, "lr": 1.0}, {"steps": 2, "lr": 0.5}, {"steps": 2, "lr": 0.25}]},
    {"scale": {"embedding": 0.5}},
    {"scale": {"rest": 0.5, "embedding": 1.0}},
    {"from": "here", "shape": "constant"},
    {"from": "here", "shape": "linear", "to": 0.5},
    {"from": "here", "shape": "cosine", "to": 0.5, "scale": {"matrix": 0.5}},
    {"from": "here", "shape": "linear", "warmup": {"steps": 1}},
]
SCHEDULES = [
    {},
    {"warmup": {"steps": 2}},
    {"warmup": {"tokens": 100}},
    {"shape": "linear"},
    {"shape": "linear", "to": 0.5},
    {"shape": "linear", "horizon": {"steps": 30}},
    {"shape": "cosine", "warmup": {"fraction": 0.2}},
    {"shape": "cosine", "horizon": {"steps": 24}},
    {"shape": "cosine", "horizon": {"steps": 30}},
    {"shape": "wsd", "horizon": {"steps": 20}},
    {"shape": "wsd", "decay": {"steps": 3}, "decay_shape": "1-sqrt"},
    {"shape": "wsd", "decay": {"steps": 3}, "decay_shape": "sqrt"},
    {"shape": "wsd", "decay": {"steps": 3}, "decay_shape": "cosine"},
    {"shape": "inverse-sqrt", "warmup": {"steps": 2}},
    {"shape": "sqrt", "horizon": {"steps": 30}},
    {"shape": "power", "exponent": 0.5, "horizon": {"steps": 30}},
    {"shape": "power", "exponent": 1.0, "horizon": {"steps": 30}},
    {"shape": "exponential", "half_life": {"steps": 3}},
    {"shape": "wsd", "decay_shape": "exponential", "half_life": {"steps": 3}, "decay": {"steps": 4}},
    {"shape": "wsd", "cycle": {"steps": 4, "decay": 2}},
    {"shape": "wsd", "cycle": {"steps": 4, "decay": 2, "warmup": 1}, "to": 0.5},
    {"shape": "wsd", "cycle": {"steps": 6, "decay": 2, "warmup": 2}, "decay_shape": "cosine"},
    {"shape": "cosine", "horizon": {"steps": 24}, "extend": {"at": {"steps": 5}, "to": {"steps": 40}}},
    {"shape": "cosine", "horizon": {"steps": 24}, "extend": {"at": {"steps": 12}, "to": {"steps": 40}}},
    {"shape": "linear", "horizon": {"steps": 30}, "extend": {"at": {"steps": 4}, "to": {"steps": 50}}},
    {"shape": "wsd", "horizon": {"steps": 12}, "extend": {"at": {"steps": 11}, "to": {"steps": 17}}},
    {"points": [{"steps": 0, "lr": 1.0}, {"steps": 6, "lr": 0.5}, {"tokens": 700, "lr": 0.25, "shape": "cosine"}]},
    {"points": [{"steps": 0, "lr": 1.0}, {"steps": 3, "lr": 1.0}, {"steps": 3, "lr": 0.5}]},
]
# For each key of a stage that decides its steps, values to choose from; None is absence.
STAGE_KEYS: dict[str, list[Any]] = {
    "mixture": MIXTURES,
    "seq_len": [None, 8, 32],
    "batch_size": [
        None,
        2,
        3,
        {"from": 2, "to": 4, "over": 64, "by": 2},
        {"from": 2, "to": 4, "over": 64, "by": 1},
        {"from": 2, "to": 4, "over": 128, "by": 2},
    ],
    "packing": [None, "concat", "pad"],
    "document_mask": [None, False],
    "seed": [None, 1, 1234],
    "lr": [None, *STAGE_LRS],
    "rope": [None, {"theta": 500_000}, {"theta": 1_000_000}, {"scaling": "yarn", "factor": 4.0}, {"drop_layers": [1]}],
    "kl": [None, {"beta": 0.1}, {"beta": 0.2}, {"beta": 0.1, "direction": "reverse"}],
    "z_loss": [None, 1e-4],
    "loss_on": [None, "all", "assistant"],
    "loss_weight": [None, {"web": 0.5}, {"web": 1.0, "code": 0.5}],
    "goldfish": [None, {"k": 50, "h": 50}, {"k": 4, "h": 13}],
    "reset_optimizer": [None, True],
    "optimizer": [
        None,
        {"grad_clip": 0.2},
        {"grad_clip": 1.0, "weight_decay": 0.0},
        {"betas": [0.9, 0.99], "no_decay": ["norms"]},
        {"lr": 1e-3},
        {"skip": {"deviations": 4.0}},
        {"name": "muon", "lr": 0.02},
        {"name": "muon", "lr": 0.02, "momentum": {"steps": 2}},
        {"name": "ademamix", "lr": 1e-3, "alpha": 4.0, "alpha_warmup": 5},
        {"name": "ademamix", "lr": 1e-3, "beta3_warmup": 8},
        {"name": "adamw", "lr": 3e-4},
    ],
    "fade": [
        None,
        {"steps": 1},
        {"steps": 1, "shape": "cosine"},
        {"steps": 1, "shape": "sigmoid"},
        {"steps": 1, "shape": "sigmoid", "steepness": 20},
        {"steps": 2},
        {"steps": 2, "center": True},
        {"steps": 2, "shape": "cosine", "center": True},
    ],
}
# Keys of a stage that decide nothing.
IDLE_STAGE_KEYS: dict[str, list[Any]] = {
    "name": ["a", "b", "c", "d", "e"],
    "evaluate": [None, True],
    "max_epochs": [None, 4, 8],
    "engine": [None, {"recompute": "full"}, {"micro_batch_size": 1}],
}
RUN_KEYS: dict[tuple[str, str], list[Any]] = {
    ("run", "seed"): [1, 2],
    ("optimizer", "name"): ["adamw", "muon"],
    ("optimizer", "lr"): [3e-4, 1e-3],
    ("optimizer", "weight_decay"): [0.1, 0.2],
    ("optimizer", "grad_clip"): [None, 1.0],
    ("optimizer", "betas"): [[0.9, 0.95], [0.9, 0.99]],
    ("optimizer", "momentum"): [{"steps": 2}, {"steps": 5}, {"steps": 5, "end": 0.9}],
    ("model", "qk_norm"): [None, True],
    ("model", "norm_eps"): [None, 1e-5],
}
IDLE_RUN_KEYS: dict[tuple[str, str], list[Any]] = {
    ("run", "name"): ["test", "other"],
    ("run", "folder"): ["runs", "elsewhere"],
    ("checkpoint", "every"): [None, 10, {"minutes": 5}],
    ("checkpoint", "keep"): [1, 5],
    ("checkpoint", "async"): [True, False],
    ("evaluate", "every"): [None, 10],
    ("track", "every"): [1, 10],
    ("loader", "workers"): [1, 4],
    ("engine", "micro_batch_size"): [None, 1],
    ("engine", "recompute"): [None, "full"],
}


def put(table: Tables, key: str, value: Any) -> None:
    table.pop(key, None)
    if value is not None:
        table[key] = value


@st.composite
def some_tables(draw: st.DrawFn) -> Tables:
    """The tables of a config with one to four short stages."""
    stages = []
    for number in range(draw(st.integers(1, 4))):
        stage: Tables = {"name": f"stage-{number}", "mixture": draw(st.sampled_from(MIXTURES))}
        put(stage, draw(st.sampled_from(["steps", "steps", "tokens"])), draw(st.integers(2, 6)))
        if "tokens" in stage:
            stage["tokens"] *= 60
        for key in draw(st.sets(st.sampled_from(sorted(STAGE_KEYS)), max_size=3)):
            if number > 0 or key not in ("kl", "fade"):
                put(stage, key, draw(st.sampled_from(STAGE_KEYS[key])))
        stages.append(stage)
    return {
        "run": {"name": "test", "seed": 1},
        "model": {"size": "tiny", "vocab": 256},
        "optimizer": {"name": draw(st.sampled_from(["adamw", "muon"]))},
        "schedule": draw(st.sampled_from(SCHEDULES)),
        "stages": stages,
    }


@st.composite
def changed(draw: st.DrawFn, tables: Tables) -> Tables:
    """The same tables with one thing changed."""
    tables = copy.deepcopy(tables)
    stage = draw(st.sampled_from(tables["stages"]))
    match draw(st.sampled_from(["stage", "stage", "length", "idle stage", "run", "idle run", "schedule", "stages"])):
        case "stage":
            key = draw(st.sampled_from(sorted(STAGE_KEYS)))
            put(stage, key, draw(st.sampled_from(STAGE_KEYS[key])))
        case "length":
            unit = "steps" if "steps" in stage else "tokens"
            stage[unit] += draw(st.sampled_from([-1, 1, 2, 60]))
        case "idle stage":
            key = draw(st.sampled_from(sorted(IDLE_STAGE_KEYS)))
            put(stage, key, draw(st.sampled_from(IDLE_STAGE_KEYS[key])))
        case "schedule":
            tables["schedule"] = draw(st.sampled_from(SCHEDULES))
        case "stages":
            if draw(st.booleans()):
                tables["stages"].append({"name": "last", "steps": 3, "mixture": {"web": 1.0}})
            else:
                tables["stages"].pop()
        case kind:
            keys = RUN_KEYS if kind == "run" else IDLE_RUN_KEYS
            (table, key) = draw(st.sampled_from(sorted(keys)))
            put(tables.setdefault(table, {}), key, draw(st.sampled_from(keys[table, key])))
    return tables


def planned(tables: Tables) -> Plan:
    """The plan of such tables; not all that can be drawn fits together."""
    stages = tables["stages"]
    try:
        return make_plan(config_of(stages, **{key: table for key, table in tables.items() if key != "stages"}))
    except (ConfigError, PlanError):
        assume(False)
        raise AssertionError("unreachable") from None


def decided(plan: Plan, step: int) -> tuple[object, list[float]]:
    """All that one step is taken with: what is the same or not, and numbers that are so up to rounding."""
    stage, now = plan.stage_at(step), plan.settings_at(step)
    optimizer, is_fresh = plan.optimizers[stage.index].settings, plan.optimizers[stage.index].is_fresh
    assert stage.mixture is not None
    said = stage.config
    fade = stage.mixture.fade if stage.mixture.fade.rows else None
    out = stage.mixture.out
    if out is not None and stage.rows_before(step + 1) <= out.first:
        out = None  # the next mixture has not begun
    shares = {name: share for name, share in (stage.shares or {}).items() if share}
    counts = stage.mixture.count(stage.batches.rows_before(step + 1 - (stage.start or 0))).tolist()
    read = [name for name, count in zip(stage.mixture.names, counts, strict=True) if count]
    what = (
        (now.stage, stage.start, now.seq_len, now.batch_size, now.tokens_before, now.weight_decay),
        (
            stage.seed,
            shares,
            fade,
            out,
            said.packing,
            said.document_mask,
            stage.rope,
            said.kl,
            said.z_loss,
            said.loss_on,
            said.goldfish,
            {name: weight for name, weight in (said.loss_weight or {}).items() if weight != 1 and name in read},
        ),
        (
            is_fresh and stage.start != 0,
            optimizer.name,
            plan.peak_lr_of(stage),
            set(optimizer.no_decay),
            optimizer.skip,
            optimizer.betas,
            optimizer.eps,
            optimizer.grad_clip,
        ),
    )
    momentum = now.momentum if optimizer.name == "muon" else 0.0
    return what, [now.lr_multiplier, *now.lr.values(), momentum, now.alpha, now.beta3]


def alike(one: Plan, other: Plan, step: int) -> bool:
    """Whether two plans begin with the same model and take the same steps before this one."""
    if (one.config.model, one.config.run.seed) != (other.config.model, other.config.run.seed):
        return False
    for earlier in range(step):
        (what, numbers), (other_what, other_numbers) = decided(one, earlier), decided(other, earlier)
        close = all(
            math.isclose(a, b, rel_tol=1e-12, abs_tol=1e-15) for a, b in zip(numbers, other_numbers, strict=True)
        )
        if what != other_what or not close:
            return False
    return True


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(st.data())
def test_the_fingerprint_changes_if_and_only_if_something_before_changed(data: st.DataObject) -> None:
    tables = data.draw(some_tables())
    before = planned(tables)
    other = data.draw(changed(tables)) if len(tables["stages"]) > 1 else data.draw(changed(tables).filter(_has_stages))
    after = planned(other)
    assert before.total_steps is not None
    assert after.total_steps is not None
    assert before.total_steps == after.total_steps or before.fingerprint(
        max(before.total_steps, after.total_steps)
    ) != after.fingerprint(max(before.total_steps, after.total_steps))
    for step in range(min(before.total_steps, after.total_steps) + 1):
        same = before.fingerprint(step) == after.fingerprint(step)
        difference = first_difference(before.record(step), after.record(step))
        assert same == alike(before, after, step), (step, difference)
        assert same == (difference is None)


def _has_stages(tables: Tables) -> bool:
    return bool(tables["stages"])


@settings(max_examples=50, deadline=None)
@given(some_tables())
def test_a_fingerprint_that_differs_differs_for_ever_after(tables: Tables) -> None:
    plan = planned(tables)
    other = planned({**tables, "schedule": {"shape": "linear", "to": 0.25}})
    steps = range(plan.known_steps + 1)
    same = [plan.fingerprint(step) == other.fingerprint(step) for step in steps]
    assert same == sorted(same, reverse=True)


@pytest.mark.parametrize(
    ("change", "step", "difference"),
    [
        (
            lambda t: put(t["stages"][0], "mixture", {"web": 0.7, "code": 0.3}),
            1,
            ("stages[0].mixture.code", "0.2", "0.3"),
        ),
        (lambda t: put(t["stages"][0], "mixture", {"web": 1.0}), 1, ("stages[0].mixture.code", "0.2", None)),
        (lambda t: put(t["stages"][1], "seq_len", 64), 11, ("stages[1].seq_len", 32, 64)),
        (lambda t: put(t["stages"][0], "steps", 9), 10, ("stages[1].start", None, 9)),
        (lambda t: put(t["stages"][0], "steps", 11), 11, ("stages[1].start", 10, None)),
        (lambda t: put(t["stages"][0], "seed", 7), 1, ("stages[0].seed", 1234, 7)),
        (lambda t: put(t["stages"][1], "kl", {"beta": 0.2}), 11, ("stages[1].kl.beta", 0.1, 0.2)),
        (lambda t: put(t["stages"][1], "packing", "pad"), 11, ("stages[1].packing", "bestfit", "pad")),
        (lambda t: put(t, "run", {"name": "test", "seed": 5}), 0, ("run.seed", 1234, 5)),
        (lambda t: put(t, "optimizer", {"weight_decay": 0.2}), 1, ("optimizer.weight_decay", 0.1, 0.2)),
    ],
)
def test_the_first_difference_names_key_old_and_new(
    change: Callable[[Tables], None], step: int, difference: tuple[str, Any, Any]
) -> None:
    tables: Tables = {
        "run": {"name": "test"},
        "stages": [
            {"steps": 10, "mixture": {"web": 0.8, "code": 0.2}},
            {"steps": 10, "seq_len": 32, "kl": {"beta": 0.1}, "mixture": {"web": 1.0}},
        ],
    }
    before = plan_of(*tables["stages"], run=tables["run"])
    change(tables)
    after = plan_of(*tables["stages"], **{key: table for key, table in tables.items() if key != "stages"})
    assert first_difference(before.record(step), after.record(step)) == Difference(*difference)
    if step:
        assert first_difference(before.record(step - 1), after.record(step - 1)) is None


def test_a_difference_reads_as_a_sentence() -> None:
    assert str(Difference("stages[0].mixture.web", 0.8, 0.7)) == "stages[0].mixture.web was 0.8 and is now 0.7"
    assert str(Difference("stages[0].packing", "crop", None)) == 'stages[0].packing was "crop" and is now absent'


def test_lengthening_a_run_under_cosine_changes_its_past() -> None:
    short, long = (plan_of({"steps": steps}, schedule={"shape": "cosine"}) for steps in (100, 120))
    assert short.fingerprint(1) == long.fingerprint(1)  # both begin at the peak
    assert short.fingerprint(2) != long.fingerprint(2)
    difference = first_difference(short.record(50), long.record(50))
    assert difference is not None
    assert difference.key == "learning rate from step 0"


def test_lengthening_a_run_under_wsd_with_a_horizon_changes_nothing_before_its_end() -> None:
    schedule = {"shape": "wsd", "warmup": {"steps": 10}, "horizon": {"steps": 200}}
    short, long = (plan_of({"steps": steps}, schedule=schedule) for steps in (100, 120))
    assert short.fingerprint(100) == long.fingerprint(100)


def test_lengthening_a_run_under_wsd_leaves_what_came_before_the_decay() -> None:
    short, long = (plan_of({"steps": steps}, schedule={"shape": "wsd"}) for steps in (100, 120))
    assert short.fingerprint(81) == long.fingerprint(81)  # the decay's first step is still at the peak
    assert short.fingerprint(82) != long.fingerprint(82)


def test_inverse_sqrt_is_told_from_constant() -> None:
    warmup = {"steps": 4}
    constant, root = (
        plan_of({"steps": 10}, schedule={"shape": shape, "warmup": warmup}) for shape in ("constant", "inverse-sqrt")
    )
    assert constant.fingerprint(4) == root.fingerprint(4)
    assert constant.fingerprint(5) != root.fingerprint(5)


def test_a_fingerprint_is_the_same_on_every_machine() -> None:
    plan = plan_of({"steps": 4, "mixture": {"web": 0.8, "code": 0.2}}, {"steps": 4, "lr": {"scale": 0.3}})
    assert plan.fingerprint(8) == plan_of(
        {"steps": 4, "mixture": {"code": 0.2, "web": 0.8}}, {"steps": 4, "lr": {"scale": 0.3}}
    ).fingerprint(8)
    assert len(plan.fingerprint(8)) == 32


def test_a_later_context_extension_leaves_the_past_alone() -> None:
    stages = ({"steps": 5}, {"steps": 5, "seq_len": 64})
    before, after = (plan_of(*stages, model={"size": "tiny", "vocab": 256, "max_seq_len": most}) for most in (64, 4096))
    assert before.fingerprint(10) == after.fingerprint(10)


def test_one_thing_said_in_two_ways_is_one_past() -> None:
    sizes = {"layers": 2, "width": 64, "heads": 2, "kv_heads": 2, "ffn": 192, "vocab": 266}
    for tables, others in (
        ({"model": {"size": "tiny"}, "tokenizer": {"kind": "bytes"}}, {"model": sizes}),
        ({"optimizer": {"lr": 3e-4}}, {"optimizer": {"lr": {"matrix": 3e-4, "rest": 3e-4}}}),
        ({"optimizer": {"no_decay": ["norms", "biases"]}}, {"optimizer": {"no_decay": ["biases", "norms"]}}),
    ):
        one, other = (plan_of({"steps": 5}, **each) for each in (tables, others))
        assert one.fingerprint(5) == other.fingerprint(5)


def test_a_source_enters_the_record_with_its_first_row() -> None:
    mixture = {"web": 0.8, "code": 0.2}
    short, long = (plan_of({"steps": steps, "batch_size": 2, "mixture": mixture}) for steps in (1, 2))
    assert "sources.code.content" not in long.record(1)
    assert "sources.code.content" in long.record(2)
    assert short.fingerprint(1) == long.fingerprint(1)
