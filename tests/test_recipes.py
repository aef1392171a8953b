"""Every config in examples/recipes/ plans with the figures that its makers published, and its small twin trains.

The figures stand beside the recipes, in examples/recipes/published/, each with where it is from.
"""

import math
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from tests.support.events import steps_taken
from tests.support.scripts import load_script
from trivium.ask.average import average_models
from trivium.config.load import load
from trivium.plan.plan import Plan
from trivium.train.fork import fork_run
from trivium.train.trainer import Trainer

ROOT = Path(__file__).parent.parent
RECIPES = sorted((ROOT / "examples" / "recipes").glob("*.toml"))
NAMES = [path.stem for path in RECIPES]
BY_SIZE = ("olmo-2-32b", "olmo-3-7b")  # shares in proportion to sizes, which are others in a twin


SCRIPT = load_script("docs", "make_recipes.py")
planned: Callable[[str], Plan] = SCRIPT.planned
published: Callable[[str], dict[str, Any]] = SCRIPT.published


@pytest.mark.parametrize("name", NAMES)
def test_the_published_figures_are_the_plans(name: str) -> None:
    compared = [
        (f"{figure.stage}: {figure.what}", figure.expected, figure.found, figure.note)
        for figure in SCRIPT.figures(name)
    ]
    assert len(compared) >= 5
    assert [(what, found) for what, _, found, _ in compared] == [(what, expected) for what, expected, _, _ in compared]


@pytest.mark.parametrize(
    ("shown", "value", "rounded"),
    [
        ("6.06T", 6.0557e12, "6.06T"),
        ("6.06T", 6.0657e12, "6.07T"),
        ("2.071e-4", 2.07123e-4, "2.071e-4"),
        ("6e-4", 5.6e-4, "6e-4"),
        ("0.02", 0.0151, "0.02"),
        ("33.3%", 0.333, "33.3%"),
        ("0", 0.0, "0"),
    ],
)
def test_a_figure_is_rounded_to_the_digits_that_were_published(shown: str, value: float, rounded: str) -> None:
    assert SCRIPT.rounded_as(shown, value) == rounded


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


def test_the_page_has_the_plans_as_they_are() -> None:
    page = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    assert SCRIPT.with_recipes(page) == page, "run: python docs/make_recipes.py"
    assert all((SCRIPT.PICTURES / f"{name}.png").exists() for name in NAMES)


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
    for number, changes in enumerate(
        [["stages.anneal.seed=2662"], ["stages.anneal.seed=2662", "stages.anneal.steps=9"]]
    ):
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
