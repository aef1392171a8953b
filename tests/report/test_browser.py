"""Pages in a real browser: drawn, quiet, safe, usable on a phone, and true."""

import csv
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.support.browser import until
from tests.support.corpus import write_source
from tests.support.events import steps_taken
from tests.support.runs import WrittenRun, eventful_run
from trivium.report.page import write_plan, write_report
from trivium.run.events import Evaluated, read_events
from trivium.train.trainer import Trainer

# The lines of every chart as they are drawn, in their order: label, then [step, value] pairs.
DRAWN = """() => Object.fromEntries([...report.views].map(([id, view]) => [id,
    view.chart.series.map((series, number) => [series.label,
        view.plot.data[0].map((step, i) => [step, view.columns[number + 1][i]])
            .filter(([, value]) => value != null)])]))"""
# How many pixels of a chart have the colour of a series.
PIXELS = """([id, number]) => {
    const view = report.views.get(id), canvas = view.host.querySelector("canvas");
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    const stroke = view.plot.series[number + 1].stroke();
    const wanted = [1, 3, 5].map((at) => parseInt(stroke.slice(at, at + 2), 16));
    let found = 0;
    for (let i = 0; i < data.length; i += 4)
        if (data[i + 3] > 60 && wanted.every((value, at) => Math.abs(value - data[i + at]) < 24)) found++;
    return found;
}"""


@dataclass
class Opened:
    """A page in a browser, with all it asked for and complained about."""

    page: Page
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def lines(self) -> dict[str, list[tuple[str, list[tuple[int, float]]]]]:
        """Every line of every chart with its label; one that has gaps is several."""
        found: dict[str, list[tuple[str, list[tuple[int, float]]]]] = self.page.evaluate(DRAWN)
        return found

    def drawn(self) -> dict[str, dict[str, list[tuple[int, float]]]]:
        """The points of every label of every chart."""
        found: dict[str, dict[str, list[tuple[int, float]]]] = {}
        for chart, lines in self.lines().items():
            points = found[chart] = {}
            for label, line in lines:
                points.setdefault(label, []).extend((step, value) for step, value in line)
        return found

    def pixels(self, chart: str, number: int) -> int:
        return int(self.page.evaluate(PIXELS, [chart, number]))


Open = Callable[..., Opened]
pytestmark = pytest.mark.slow  # a browser starts


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Open]:
    """Opens a file or an address in a context of its own."""
    contexts = []

    def opens(where: Path | str, width: int = 1280, **settings: Any) -> Opened:
        context = browser.new_context(viewport={"width": width, "height": 900}, **settings)
        contexts.append(context)
        opened = Opened(context.new_page())
        opened.page.on("request", lambda request: opened.requests.append(request.url))
        opened.page.on("console", lambda message: opened.complaints.append(message.text))
        opened.page.on("pageerror", lambda error: opened.complaints.append(str(error)))
        opened.page.goto(where if isinstance(where, str) else where.as_uri())
        until(opened.page, "window.report !== undefined")
        return opened

    yield opens
    for context in contexts:
        context.close()


def test_a_page_is_drawn_whole_and_asks_for_nothing(open_page: Open, page_file: Path) -> None:
    opened = open_page(page_file)
    assert opened.complaints == []
    assert opened.requests == [page_file.as_uri()]
    assert opened.page.title() == "made · trivium"  # what the texts on the page would have made of it is another
    charts = opened.lines()
    assert len(charts) == 21
    for chart, lines in charts.items():
        style = opened.page.evaluate("id => report.views.get(id).chart.series.map(({ style }) => style)", chart)
        for number, (label, points) in enumerate(lines):
            assert points, f"{chart}: {label} has no points"
            if style[number] not in ("faint", "dashed"):
                assert opened.pixels(chart, number) > 20, f"{chart}: {label} is not to be seen"
    assert opened.page.locator("#block-texts-0 pre").inner_text().startswith("The cat sat on </script><script>")
    assert opened.page.locator("main img").count() == 0


def test_what_is_drawn_is_what_was_written(open_page: Open, run_folder: Path, page_file: Path) -> None:
    charts = open_page(page_file).drawn()
    steps = steps_taken(run_folder / "events.jsonl")
    events = read_events(run_folder / "events.jsonl")
    # 120 is behind the checkpoint from which the run went on; at 150 and at 240 two stages meet.
    evaluations = [event for event in events if event["event"] == Evaluated.kind and event["step"] != 120]
    assert [(event["step"], event["stage"]) for event in evaluations[2:4]] == [(150, "general"), (150, "long")]

    def same(chart: str, label: str, truth: dict[int, float]) -> None:
        assert dict(charts[chart][label]) == pytest.approx(truth, rel=1e-6), f"{chart}: {label}"

    same("loss", "loss", {step: event["loss"] for step, event in steps.items()})
    same("loss", "running mean", {step: event["mean_loss"] for step, event in steps.items()})
    same("gradient-norm", "gradient norm", {step: event["grad_norm"] for step, event in steps.items()})
    same("throughput", "tokens a second", {step: event["tokens_per_second"] for step, event in steps.items()})
    same("waited", "waited for data", {step: event["waited"] for step, event in steps.items()})
    same("lr", "taken", {step: event["lr"]["matrix"] for step, event in steps.items()})
    for name in ("web", "code", "talk"):
        for chart, key in (("loss-by-source", "loss_by_source"), ("epochs", "epochs")):
            same(chart, name, {step: event[key][name] for step, event in steps.items() if name in event[key]})
    figures: dict[tuple[str, str], Callable[[dict[str, Any]], float]] = {
        ("validation-loss", "overall"): lambda event: event["loss"],
        ("validation-loss", "code"): lambda event: event["loss_by_source"]["code"],
        ("validation-bpb", "overall"): lambda event: event["bits_per_byte"],
        ("scores", "accuracy"): lambda event: event["scores"]["accuracy"],
    }
    for (chart, label), figure in figures.items():
        steps_drawn, values = zip(*charts[chart][label], strict=True)
        assert steps_drawn == tuple(event["step"] for event in evaluations), chart
        assert values == pytest.approx([figure(event) for event in evaluations], rel=1e-6), chart
    assert "code" not in charts["validation-bpb"]  # its bits per byte are not known


def test_where_two_stages_meet_a_line_has_a_gap_and_both_values_are_shown(open_page: Open, page_file: Path) -> None:
    opened = open_page(page_file)
    overall = [line for label, line in opened.lines()["validation-loss"] if label == "overall"]
    assert [[step for step, _ in line] for line in overall] == [[0, 100, 150], [150, 240], [240, 300]]
    names = opened.page.locator("#block-validation-loss .legend .name").all_inner_texts()
    assert names == ["overall", "web", "code"]  # one name for all pieces of a line
    at_boundary = opened.page.evaluate(
        """() => {
            const view = report.views.get("validation-loss"), plot = view.plot;
            plot.setCursor({ left: plot.valToPos(150, "x"), top: 10 });
            return view.values.get("overall").textContent;
        }"""
    )
    assert [float(each) for each in at_boundary.split(" \u2192 ")] == pytest.approx(
        [overall[0][-1][1], overall[1][0][1]], rel=1e-4
    )
    overall_now = opened.page.locator("#block-validation-loss .legend button").first
    overall_now.click()
    shown = "report.views.get('validation-loss').plot.series.slice(1).map(({ show }) => show)"
    assert opened.page.evaluate(shown) == [False] * 3 + [True] * 6
    changes = opened.page.locator("#block-changes-0 tbody tr").all_inner_texts()
    named = [("general", "web"), ("", "code"), ("long", "web"), ("", "code"), ("talk", "web"), ("", "code")]
    assert [tuple(line.split("\t")[:2]) for line in changes] == named
    web = [line for label, line in opened.lines()["validation-loss"] if label == "web"]
    before, after, change = (float(cell) for cell in changes[2].split("\t")[2:5])
    assert (before, after) == pytest.approx((web[1][0][1], web[1][1][1]), abs=1e-4)
    assert change == pytest.approx(after - before, abs=1e-4)


def test_the_head_and_the_tables_show_the_run_s_state(open_page: Open, run_folder: Path, page_file: Path) -> None:
    page = open_page(page_file).page
    last = steps_taken(run_folder / "events.jsonl")[300]
    head = page.locator("#summary").inner_text()
    assert "finished" in head
    assert f"training loss\n{last['mean_loss']:.4f}\n" in head
    assert page.locator("#block-troubles-0 tbody").inner_text().splitlines() == [
        "155\tspike\t9.5000\tover 3.2000\tweb: 812, 97, 5; code: 7",
        "156\tskipped\t\tthe loss is nan\t",
    ]
    launches = page.locator("#block-launches-0 tbody tr").all_inner_texts()
    assert [line.split("\t")[:2] for line in launches] == [["0", "starts"], ["100", "resumes"], ["200", "resumes"]]
    assert "stages[2].mixture.talk: 0.7 -> 0.75" in launches[2]
    marks = page.evaluate("report.data.runs[0].marks.map(({ step, kind }) => [step, kind])")
    assert marks == [[100, "resume"], [200, "resume"], [155, "spike"], [156, "skipped"]]


def test_a_cursor_shows_the_values_of_its_step(open_page: Open, run_folder: Path, page_file: Path) -> None:
    page = open_page(page_file).page
    plot = page.locator("#block-loss .u-over")
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    at = page.locator("#block-loss .at").inner_text()
    step = int(at.removeprefix("step "))
    assert 148 <= step <= 152
    truth = steps_taken(run_folder / "events.jsonl")[step]
    shown = page.locator("#block-loss .legend button", has_text="running mean").locator(".now").inner_text()
    assert float(shown) == pytest.approx(truth["mean_loss"], rel=1e-4)
    # The other charts follow it. What a source did not give near this step is not shown.
    by_source = page.locator("#block-loss-by-source .legend button").all_inner_texts()
    assert [text.split() for text in by_source] == [
        ["web", f"{truth['loss_by_source']['web']:.5g}"],
        ["code", f"{truth['loss_by_source']['code']:.5g}"],
        ["talk"],
    ]
    other = page.locator("#block-gradient-norm")
    expect(other.locator(".at")).to_have_text(at)
    assert float(other.locator(".now").inner_text()) == pytest.approx(truth["grad_norm"], rel=1e-4)


def test_a_name_hides_its_line_and_brings_it_back(open_page: Open, page_file: Path) -> None:
    opened = open_page(page_file)
    button = opened.page.locator("#block-loss-by-source .legend button", has_text="code")
    before = opened.pixels("loss-by-source", 1)
    button.click()
    expect(opened.page.locator("#block-loss-by-source .legend button", has_text="code")).to_have_attribute(
        "aria-pressed", "false"
    )
    assert opened.pixels("loss-by-source", 1) == 0
    button.click()
    assert opened.pixels("loss-by-source", 1) == before
    # In a stack the others close the gap.
    stack = opened.page.locator(".part", has_text="Shares")
    stack.locator("button", has_text="web").click()
    top = opened.page.evaluate("report.views.get('plan-shares-0').plot.data[2][0]")
    assert top == pytest.approx(20)  # code alone, at the first step


def test_zoom_moves_all_charts(open_page: Open, page_file: Path) -> None:
    page = open_page(page_file).page
    ranges = "[...new Set([...report.views.values()].map(({ plot }) => [plot.scales.x.min, plot.scales.x.max].join()))]"
    assert page.evaluate(ranges) == ["0,300"]
    page.locator("#zoom").select_option("long")
    until(page, f"{ranges}.join() === '150,240'")
    plot = page.locator("#block-loss .u-over")
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 3, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + 2 * box["width"] / 3, box["y"] + 50, steps=4)
    page.mouse.up()
    until(page, f"{ranges}.length === 1 && {ranges}[0] !== '150,240'")
    low, high = map(float, page.evaluate(ranges)[0].split(","))
    assert low == pytest.approx(180, abs=2)
    assert high == pytest.approx(210, abs=2)
    plot.dblclick()
    until(page, f"{ranges}.join() === '0,300'")


def test_lines_are_drawn_by_step_tokens_or_time(open_page: Open, run_folder: Path, page_file: Path) -> None:
    page = open_page(page_file).page
    steps = steps_taken(run_folder / "events.jsonl")
    places = "report.views.get('loss').plot.data[0]"
    ends = "[report.views.get('loss').plot.scales.x.min, report.views.get('loss').plot.scales.x.max]"
    assert page.evaluate(places) == list(steps)
    page.locator("#axis").select_option("tokens")
    tokens = list(accumulate(step["tokens"] for step in steps.values()))
    assert page.evaluate(places) == pytest.approx(tokens)
    assert page.evaluate(ends) == [0, tokens[-1]]
    page.locator("#zoom").select_option("long")
    long = dict(zip(steps, tokens, strict=True))
    assert page.evaluate(ends) == pytest.approx([long[150], long[240]])
    page.locator("#axis").select_option("seconds")
    seconds = list(accumulate(step["seconds"] for step in steps.values()))
    assert page.evaluate(places) == pytest.approx(seconds, rel=1e-6)
    assert page.evaluate(ends) == pytest.approx([0, seconds[-1]])  # the zoom was by tokens
    page.locator("#axis").select_option("steps")
    assert page.evaluate(places) == list(steps)


def test_smoothing_moves_figures_of_steps_and_leaves_what_was_written(open_page: Open, page_file: Path) -> None:
    opened = open_page(page_file)
    page = opened.page
    before = opened.drawn()
    page.locator("#smooth").fill("50")
    after = opened.drawn()

    def jumps(charts: dict[str, dict[str, list[tuple[int, float]]]], chart: str, label: str) -> float:
        values = [value for _, value in charts[chart][label]]
        return sum(abs(later - value) for value, later in pairwise(values))

    for chart, label in (("loss", "loss"), ("throughput", "tokens a second"), ("gradient-norm", "gradient norm")):
        assert jumps(after, chart, label) < 0.6 * jumps(before, chart, label), chart
    assert after["loss"]["running mean"] == before["loss"]["running mean"]
    for chart in ("validation-loss", "epochs", "plan-lr", "lr"):
        assert after[chart] == before[chart]
    assert page.evaluate("report.views.get('loss').written[1].filter((value) => value != null)") == [
        value for _, value in before["loss"]["loss"]
    ]
    page.locator("#smooth").fill("0")
    assert opened.drawn() == before


def test_a_chart_can_have_a_logarithmic_axis(open_page: Open, page_file: Path) -> None:
    page = open_page(page_file).page
    button = page.locator("#block-loss .chart-buttons button", has_text="log")
    expect(button).to_have_attribute("aria-pressed", "false")
    kind = "report.views.get('loss').plot.scales.y.distr"
    button.click()
    expect(button).to_have_attribute("aria-pressed", "true")
    assert page.evaluate(kind) == 3
    low, high = page.evaluate(
        "[report.views.get('loss').plot.scales.y.min, report.views.get('loss').plot.scales.y.max]"
    )
    assert 1 < low < high < 10  # not whole decades
    button.click()
    assert page.evaluate(kind) == 1
    assert (
        page.locator("#block-gradient-norm .chart-buttons button", has_text="log").get_attribute("aria-pressed")
        == "true"
    )


def test_a_chart_is_saved_as_a_picture_and_as_a_table(
    open_page: Open, run_folder: Path, page_file: Path, tmp_path: Path
) -> None:
    opened = open_page(page_file)
    page = opened.page

    def saved(chart: str, button: str) -> Path:
        with page.expect_download() as download:
            page.locator(f"#block-{chart} .chart-buttons button", has_text=button).click()
        path = tmp_path / download.value.suggested_filename
        download.value.save_as(path)
        return path

    picture = saved("loss", "PNG")
    assert picture.name == "training-loss.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 10_000
    with open(saved("loss", "CSV"), newline="") as file:
        head, *rows = csv.reader(file)
    assert head == ["step", "tokens", "seconds", "loss", "running mean"]
    steps = steps_taken(run_folder / "events.jsonl")
    assert [int(row[0]) for row in rows] == list(steps)
    assert [float(row[3]) for row in rows] == pytest.approx([step["loss"] for step in steps.values()], rel=1e-6)
    assert opened.complaints == []
    assert [url for url in opened.requests if not url.startswith("blob:")] == [page_file.as_uri()]


def test_a_name_is_no_formula_in_a_table(open_page: Open, page_file: Path) -> None:
    page = open_page(page_file).page
    rows = [["=1+1", "+a", 'a "b", c', -2.5, None]]
    assert page.evaluate("rows => chartTools.csvOf(rows)", rows) == '\'=1+1,\'+a,"a ""b"", c",-2.5,\n'


def test_the_page_says_what_it_ran_on(open_page: Open, page_file: Path) -> None:
    page = open_page(page_file).page
    shown = page.locator("#machine").inner_text()
    for words in ("parameters\t140,864 (141k)", "commit\t0123456789", "host\tnode-1", "devices\t2 x H100", "ranks\t2"):
        assert words in shown
    page.locator("#block-versions summary").click()
    assert "torch\t2.13.0" in page.locator("#machine").inner_text()


def test_dark_follows_the_system_and_the_button(open_page: Open, page_file: Path) -> None:
    opened = open_page(page_file, color_scheme="dark")
    page = opened.page
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert opened.pixels("loss", 1) > 20
    page.locator("#theme").click()
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != dark
    assert opened.pixels("loss", 1) > 20
    assert opened.complaints == []


@pytest.mark.parametrize("width", [320, 390, 768])
def test_nothing_runs_over_the_edge_of_a_phone(open_page: Open, page_file: Path, width: int) -> None:
    page = open_page(page_file, width=width, has_touch=True, device_scale_factor=2).page
    assert page.evaluate("report.views.get('loss').plot.axes[0].font[0]").startswith("24px ")  # as sharp, as large
    page.evaluate("document.querySelectorAll('details').forEach((details) => (details.open = true))")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    over = """[...document.querySelectorAll('.card, .number, canvas, h2')]
        .filter((element) => element.getBoundingClientRect().right > innerWidth).map((element) => element.id)"""
    assert page.evaluate(over) == []


def test_several_runs_lie_over_one_another(open_page: Open, run_folder: Path, tmp_path: Path) -> None:
    other = eventful_run(tmp_path / "hotter", "hotter", lr=2e-3, seed=2).folder
    opened = open_page(write_report([run_folder, other], tmp_path / "two.html"))
    assert opened.complaints == []
    charts = opened.drawn()
    for folder, name in ((run_folder, "made"), (other, "hotter")):
        truth = {step: event["loss"] for step, event in steps_taken(folder / "events.jsonl").items()}
        assert dict(charts["loss"][f"loss, {name}"]) == pytest.approx(truth, rel=1e-6)
    rows = opened.page.locator("#block-differing-keys tbody tr").all_inner_texts()
    assert rows == ["optimizer.lr\t0.001\t0.002", "run.name\tmade\thotter"]
    looks = opened.page.evaluate(
        "report.views.get('plan-lr').plot.series.slice(1).map((series) => [series.stroke(), series.dash.length])"
    )
    assert looks[0] != looks[1]


def test_a_plan_is_drawn_before_its_run(open_page: Open, tmp_path: Path) -> None:
    written = WrittenRun(tmp_path / "run").plan
    written["sources"]["<b>web"] = {"kind": "tokens", "documents": None, "tokens": None, "fingerprint": None}
    written["warnings"] = ["sources.web: is read 5.0 times, over 4. <script>alert(1)</script>"]
    opened = open_page(write_plan(written, "", tmp_path / "plan.html"))
    assert opened.complaints == []
    assert set(opened.drawn()) == {"plan-shares-0", "plan-lr", "plan-rows", "plan-batch"}
    assert opened.page.locator(".warns li").inner_text() == written["warnings"][0]
    assert "planned" in opened.page.locator("#summary").inner_text()


CONFIG = """
run.name = "trained"
model = { layers = 1, width = 32, heads = 2, vocab = 512 }
optimizer.lr = 0.003
schedule = { shape = "cosine", warmup = { steps = 3 } }
engine.device = "cpu"
guard.skip_steps = [[8, 9]]
evaluate = { every = 4, tokens = 200 }
sources.web = { kind = "tokens", path = "web", validation = 0.2 }
sources.code = { kind = "tokens", path = "code" }
stages = [
    { name = "one", steps = 6, mixture = { web = 0.75, code = 0.25 }, seq_len = 16, batch_size = 8 },
    { name = "two", steps = 5, mixture = { code = 1.0 }, fade = { steps = 2 }, seq_len = 32, batch_size = 4 },
]
"""


def test_a_run_that_was_trained_is_shown_as_it_was(
    open_page: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("web", "code"):
        write_source(tmp_path / name, [[37] * 12])
    (tmp_path / "run.toml").write_text(CONFIG)
    Trainer("run.toml", show=False).run()
    folder = tmp_path / "runs" / "trained"
    opened = open_page(write_report([folder], tmp_path / "page.html"))
    assert opened.complaints == []
    charts, steps = opened.drawn(), steps_taken(folder / "events.jsonl")
    assert dict(charts["loss"]["loss"]) == pytest.approx({step: event["loss"] for step, event in steps.items()})
    # What was planned is what was taken.
    planned = {step: rate for step, rate in charts["plan-lr"]["learning rate"] if step in steps}
    assert planned == pytest.approx({step: steps[step]["lr"]["matrix"] for step in planned}, rel=1e-6)
    assert len(planned) >= 8
    assert opened.page.locator("#summary .status").inner_text() == "finished"
    skipped = opened.page.locator("#block-troubles-0 tbody tr").all_inner_texts()
    assert [line.split("\t")[:3] for line in skipped] == [["9", "skipped", ""]]
    assert "guard.skip_steps" in skipped[0]
    saved = opened.page.locator("#block-checkpoints-0 tbody tr").all_inner_texts()
    assert [line.split("\t")[:2] for line in saved] == [["6", "two"], ["11", "two"]]
    validation = dict(charts["validation-loss"]["overall"])
    best = min(validation.values())
    assert f"best validation loss\n{best:.4f}\n" in opened.page.locator("#summary").inner_text()
