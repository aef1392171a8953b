"""The tables on docs/recipes.md, from the plans of examples/recipes/ and the figures in examples/recipes/published/.

    python docs/make_recipes.py               writes the tables into the page
    python docs/make_recipes.py --pictures    and draws the pictures again, with the system's chromium

A recipe's part of the page stands between `<!-- NAME begins -->` and `<!-- NAME ends -->`. A figure in quotes has
the digits that were published; the plan's own is rounded to as many.
"""

import sys
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from trivium.config.load import load
from trivium.config.numbers import parse_count, show_count
from trivium.model.words import layer_line
from trivium.plan.export import objective_lines, plan_json, stage_json
from trivium.plan.lr.words import rate_lines
from trivium.plan.make import make_plan
from trivium.plan.plan import Plan
from trivium.plan.stage import PlannedStage

ROOT = Path(__file__).parent.parent
RECIPES = ROOT / "examples" / "recipes"
NAMES = sorted(path.stem for path in RECIPES.glob("*.toml"))
PICTURES = ROOT / "docs" / "images" / "recipes"
UNITS = {"M": 1e6, "B": 1e9, "T": 1e12, "%": 0.01}
WORDS = {"ends": "ends at step", "ends_tokens": "tokens at its end", "length": "row length", "clip": "gradient clip"}
MOST_SOURCES = 30  # whose names fit above a picture


@dataclass(frozen=True)
class Figure:
    """A published figure beside the plan's."""

    stage: str
    what: str
    published: Any
    expected: Any  # the plan's: the published one, or another where a note says why
    found: Any
    source: str
    note: str


@cache
def planned(name: str) -> Plan:
    """A recipe's plan."""
    return make_plan(load(RECIPES / f"{name}.toml").config)


@cache
def published(name: str) -> dict[str, Any]:
    """A recipe's published figures."""
    return tomllib.loads((RECIPES / "published" / f"{name}.toml").read_text(encoding="utf-8"))


def figures(name: str) -> Iterator[Figure]:
    """Each published figure of a recipe, in the order of its file."""
    plan = planned(name)
    if (shown := published(name).get("parameters")) is not None:
        found = rounded_as(shown, plan.model.parameters if plan.model else 0)
        yield Figure("", "parameters", shown, shown, found, "its name", "")
    for entry in published(name)["figures"]:
        stage = next(stage for stage in plan.stages if stage.name == entry["stage"])
        differs = entry.get("ours", {})
        for key in entry:
            if key in ("stage", "from", "note", "ours"):
                continue
            for what, shown, value in _parts(plan, stage, key, entry[key]):
                expected = differs.get(key, shown)
                found = rounded_as(expected, value) if isinstance(expected, str) else value
                yield Figure(stage.name, what, shown, expected, found, entry["from"], entry.get("note", ""))


def _parts(plan: Plan, stage: PlannedStage, key: str, shown: Any) -> Iterator[tuple[str, Any, Any]]:
    """What a key of a published figure is of, its value, and the plan's."""
    assert stage.start is not None
    assert stage.end is not None
    if key == "lr":
        for place, rate in shown:
            step = place if isinstance(place, int) else stage.steps_for(parse_count(place))
            at = f"after {place:,} steps" if isinstance(place, int) else f"at {place}"
            yield f"learning rate {at}", rate, plan.settings_at(stage.start + step).lr["matrix"]
    elif key in ("epochs", "shares"):
        for source, value in shown.items():
            shares = stage.shares or {}
            found = stage.uses[source].epochs if key == "epochs" else float(shares[source])
            yield f"{'epochs' if key == 'epochs' else 'share'} of {source}", value, found
    else:
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
        yield WORDS.get(key, key), shown, values[key]


def rounded_as(shown: str, value: float) -> str:
    """A value with the digits and the unit of a published one: 6.0557e12 beside "6.01T" is "6.06T"."""
    if (unit := shown[-1]) in UNITS:
        return f"{value / UNITS[unit]:.{_decimals(shown[:-1])}f}{unit}"
    if "e" in shown:
        digits, _, exponent = f"{value:.{_decimals(shown.partition('e')[0])}e}".partition("e")
        return f"{digits}e{int(exponent)}"
    return f"{value:.{_decimals(shown)}f}"


def _decimals(number: str) -> int:
    return len(number.partition(".")[2])


def part(name: str) -> str:
    """A recipe's generated part of the page: its picture, its stages, and its figures."""
    plan = planned(name)
    title = published(name)["title"]
    lines = [f"![{title}: shares, learning rate, row length and batch size](images/recipes/{name}.png)", ""]
    lines += ["| stage | steps | tokens | rows x length | learning rate |", "|---|---|---|---|---|"]
    lines += [_stage_line(plan, stage) for stage in plan.stages]
    layers = [f"layers: {line}" for line in [plan.model and layer_line(plan.model)] if line]
    words = [*layers, *rate_lines(plan), *objective_lines([stage_json(plan, stage) for stage in plan.stages])]
    lines += ["", *(f"- {_plain(line)}" for line in words), "" if words else None]
    lines += ["| stage | figure | published | ours | from |", "|---|---|---|---|---|"]
    lines += [_figure_line(figure) for figure in figures(name)]
    sources = "; ".join(f"*{key}* is {where}" for key, where in published(name)["from"].items())
    return "\n".join([*(line for line in lines if line is not None), "", f"From: {sources}."])


def _plain(line: str) -> str:
    """A line of a plan as Markdown shows it."""
    return line.replace("<", "&lt;").replace("*", "\\*")


def _stage_line(plan: Plan, stage: PlannedStage) -> str:
    sizes = [piece.size for piece in stage.batch_pieces]
    rows = f"{sizes[0]:,}" if len(sizes) == 1 else f"{min(sizes):,} to {max(sizes):,}"
    rate = " to ".join(f"{rate:.3g}" for rate in _turns(plan, stage))
    span = f"{stage.start:,} to {stage.end:,}"
    return f"| {stage.name} | {span} | {show_count(stage.tokens or 0)} | {rows} x {stage.seq_len:,} | {rate} |"


def _turns(plan: Plan, stage: PlannedStage) -> list[float]:
    """The learning rate at a stage's first and last step, and its highest where that is neither of them."""
    assert plan.learning_rate is not None
    assert stage.start is not None
    assert stage.end is not None
    starts = [piece.start for piece in plan.learning_rate.between(stage.start, stage.end)]
    steps = sorted({stage.start, stage.end - 1, *starts, *(start - 1 for start in starts if start > stage.start)})
    rates = [plan.settings_at(step).lr["matrix"] for step in steps]
    highest = max(rates)
    turns = [rates[0], *([highest] if highest > 1.01 * max(rates[0], rates[-1]) else []), rates[-1]]
    return turns[:1] if f"{turns[0]:.3g}" == f"{turns[-1]:.3g}" and len(turns) == 2 else turns


def _figure_line(figure: Figure) -> str:
    shown = [_shown(value) for value in (figure.published, figure.found)]
    what = figure.what + (f" ({figure.note})" if figure.note else "")
    return f"| {figure.stage} | {what} | {shown[0]} | {shown[1]} | {figure.source} |"


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return " to ".join(map(_shown, value))
    return f"{value:,}" if isinstance(value, int) else f"{value:,g}" if isinstance(value, float) else str(value)


def with_recipes(page: str) -> str:
    """The page with every recipe's part as it is now."""
    for name in NAMES:
        begin, end = f"<!-- {name} begins -->\n", f"<!-- {name} ends -->"
        assert begin in page, f"docs/recipes.md has no part for {name}"
        before, _, rest = page.partition(begin)
        page = f"{before}{begin}\n{part(name)}\n\n{end}{rest.partition(end)[2]}"
    return page


def draw_pictures() -> None:
    """The first figure of each plan's page."""
    import tomli_w
    from PIL import Image

    from tests.support.browser import system_browser
    from trivium.report.page import write_plan

    PICTURES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, system_browser() as browser:
        for name in NAMES:
            loaded = load(RECIPES / f"{name}.toml")
            page, path = Path(folder) / f"{name}.html", PICTURES / f"{name}.png"
            write_plan(plan_json(planned(name), loaded), tomli_w.dumps(loaded.raw), page)
            view = browser.new_page(viewport={"width": 900, "height": 1400})
            view.goto(page.as_uri())
            view.wait_for_timeout(800)
            view.add_style_tag(content="#block-plan-picture > .note, .chart-buttons { display: none }")
            if len(loaded.config.sources) > MOST_SOURCES:
                view.add_style_tag(content="#block-plan-picture .part:first-child .legend { display: none }")
            view.locator("#block-plan-picture").screenshot(path=path)
            view.close()
            Image.open(path).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)


if __name__ == "__main__":
    if "--pictures" in sys.argv:
        sys.path.insert(0, str(ROOT))
        draw_pictures()
    target = ROOT / "docs" / "recipes.md"
    target.write_text(with_recipes(target.read_text(encoding="utf-8")), encoding="utf-8")
