"""Every config in examples/recipes/ plans with the figures that its makers published, and its small twin trains.

The figures stand beside the recipes, in examples/recipes/published/, each with where it is from. A figure in quotes has
the digits that were published: the plan's, rounded to as many, must be the same.
"""

import math
import re
import tomllib
from collections.abc import Callable
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from tests.support.events import steps_taken
from tests.support.scripts import load_script
from trivium.ask.average import average_models
from trivium.config.load import load
from trivium.config.numbers import parse_count
from trivium.plan.make import make_plan
from trivium.plan.plan import Plan
from trivium.plan.stage import PlannedStage
from trivium.train.fork import fork_run
from trivium.train.trainer import Trainer

ROOT = Path(__file__).parent.parent
RECIPES = sorted((ROOT / "examples" / "recipes").glob("*.toml"))
NAMES = [path.stem for path in RECIPES]
BY_SIZE = ("olmo-2-32b", "olmo-3-7b")  # shares in proportion to sizes, which are others in a twin
UNITS = {"B": 10**9, "T": 10**12, "M": 10**6}


@cache
def planned(name: str) -> Plan:
    return make_plan(load(ROOT / "examples" / "recipes" / f"{name}.toml").config)


@cache
def published(name: str) -> dict[str, Any]:
    path = ROOT / "examples" / "recipes" / "published" / f"{name}.toml"
    return tomllib.loads(path.read_text(encoding="utf-8"))


def all_figures() -> list[Any]:
    """Each figure of each recipe as a case: its name, its stage, what it is of and what it is."""
    cases = []
    for name in NAMES:
        for figure in published(name)["figures"]:
            for key in figure.keys() - {"stage", "from", "note", "ours"}:
                expected = figure.get("ours", {}).get(key, figure[key])  # `ours` where a note says why it differs
                cases.append(pytest.param(name, figure["stage"], key, expected, id=f"{name}-{figure['stage']}-{key}"))
    return sorted(cases, key=lambda case: str(case.id))


def rounded_as(shown: str, value: float) -> str:
    """A value with the digits and the unit of a published one: 6.0557e12 as "6.06T" is "6.06T", as "6e12" "6e12"."""
    if (unit := shown[-1]) in "BTM%":
        scale = UNITS.get(unit, Decimal("0.01"))
        decimals = len(shown[:-1].partition(".")[2])
        return f"{value / float(scale):.{decimals}f}{unit}"
    if "e" in shown:
        mantissa, _, _ = shown.partition("e")
        digits, _, exponent = f"{value:.{len(mantissa.partition('.')[2])}e}".partition("e")
        return f"{digits}e{int(exponent)}"
    return f"{value:.{len(shown.partition('.')[2])}f}"


def stage_of(plan: Plan, name: str) -> PlannedStage:
    return next(stage for stage in plan.stages if stage.name == name)


def rate_at(plan: Plan, stage: PlannedStage, place: int | str) -> float:
    """The matrices' learning rate at a step of a stage, or before the step of the run that reads a token."""
    assert stage.start is not None
    step = place if isinstance(place, int) else stage.steps_for(parse_count(place))
    return plan.settings_at(stage.start + step).lr["matrix"]


def ours(plan: Plan, stage: PlannedStage, key: str) -> Any:
    """What the plan has for one of the keys that are one number."""
    assert stage.end is not None
    sizes = [piece.size for piece in stage.batch_pieces]
    values = {
        "steps": stage.steps,
        "ends": stage.end,
        "tokens": stage.tokens,
        "ends_tokens": plan.tokens_before(stage.end),
        "rows": sizes[0] if len(sizes) == 1 else [sizes[0], sizes[-1]],
        "length": stage.seq_len,
        "theta": None if stage.rope is None else stage.rope.theta,
        "clip": plan.optimizers[stage.index].settings.grad_clip,
    }
    return values[key]


@pytest.mark.parametrize(("name", "stage_name", "key", "expected"), all_figures())
def test_a_published_figure_is_the_plans(name: str, stage_name: str, key: str, expected: Any) -> None:
    plan = planned(name)
    stage = stage_of(plan, stage_name)
    if key == "lr":
        found = [[place, rounded_as(shown, rate_at(plan, stage, place))] for place, shown in expected]
        assert found == expected
    elif key == "epochs":
        assert {each: rounded_as(shown, stage.uses[each].epochs or 0) for each, shown in expected.items()} == expected
    elif key == "shares":
        shares = stage.shares or {}
        assert {each: rounded_as(shown, float(shares[each])) for each, shown in expected.items()} == expected
    else:
        value = ours(plan, stage, key)
        assert (rounded_as(expected, value) if isinstance(expected, str) else value) == expected


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_loads_without_a_warning_and_tells_where_its_figures_are_from(name: str) -> None:
    path = ROOT / "examples" / "recipes" / f"{name}.toml"
    assert load(path).warnings == ()
    assert planned(name).warnings == ()
    text, facts = path.read_text(encoding="utf-8"), published(name)
    assert "# Figures: [" in text
    assert "# What differs:" in text
    assert {figure["from"] for figure in facts["figures"]} <= facts["from"].keys()
    assert all("note" in figure for figure in facts["figures"] if "ours" in figure)
    assert {figure["stage"] for figure in facts["figures"]} <= {stage.name for stage in planned(name).stages}
    tags = set(re.findall(r"\[([a-z]+)\]", text.partition("[run]")[0]))
    assert set(re.findall(r"# \[([a-z]+)\]", text.partition("[run]")[2])) <= tags


@pytest.mark.parametrize("name", [name for name in NAMES if "parameters" in published(name)])
def test_a_recipes_model_has_the_published_size(name: str) -> None:
    model, shown = planned(name).model, published(name)["parameters"]
    assert model is not None
    assert rounded_as(shown, model.parameters) == shown


@pytest.fixture
def write_twin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Write a recipe's twin into an empty folder, and stand there."""
    monkeypatch.chdir(tmp_path)
    script = load_script("examples", "recipes", "twin.py")
    return lambda name: Path(script.write_twin(ROOT / "examples" / "recipes" / f"{name}.toml", tmp_path))


def train(config: Path, *overrides: str) -> Trainer:
    trainer = Trainer(config, overrides, show=False)
    trainer.run()
    assert trainer.finished
    return trainer


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_recipes_twin_has_its_stages_and_trains(name: str, write_twin: Callable[[str], Path]) -> None:
    trainer = train(write_twin(name))
    plan, small = planned(name), trainer.plan
    first, tiny = plan.stages[0], small.stages[0]
    assert [stage.name for stage in small.stages] == [stage.name for stage in plan.stages]
    assert [stage.shares for stage in small.stages] == [stage.shares for stage in plan.stages] or name in BY_SIZE
    lengths = [stage.seq_len / first.seq_len for stage in plan.stages]
    assert [stage.seq_len / tiny.seq_len for stage in small.stages] == lengths
    steps = steps_taken(Path(f"runs/{name}-twin/events.jsonl"))
    assert len(steps) == small.total_steps
    assert all(math.isfinite(step["loss"]) for step in steps.values())
    assert min(step["loss"] for step in steps.values()) < steps[1]["loss"] - 0.05


@pytest.mark.slow
def test_the_three_anneals_of_olmo_2_are_forks_whose_mean_is_a_model(write_twin: Callable[[str], Path]) -> None:
    """The commands of its file, with the twin's steps."""
    config = write_twin("olmo-2-32b")
    at = train(config).plan.stages[1].start
    assert at is not None
    runs = ["runs/olmo-2-32b-twin"]
    for number, changes in enumerate([["stages.anneal.seed=2662"], ["stages.anneal.seed=2662", "stages.anneal.steps=9"]]):
        overrides = [f"run.name=anneal-{number}", *changes]
        fork_run(Path(runs[0]), at, config, overrides)
        train(config, *overrides)
        runs.append(f"runs/anneal-{number}")
        assert min(steps_taken(Path(runs[-1]) / "events.jsonl")) == at + 1
    average_models(runs, Path("soup"), None)
    raw = tomllib.loads(config.read_text(encoding="utf-8"))
    config.write_text(tomli_w.dumps({**raw, "run": {"name": "soup"}, "model": {"init": "soup"}}), encoding="utf-8")
    train(config)
    first, last = (steps_taken(Path(f"runs/{name}/events.jsonl")) for name in ("olmo-2-32b-twin", "soup"))
    assert last[1]["loss"] < first[1]["loss"] - 0.5  # it begins with what the three have learnt
