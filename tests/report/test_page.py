"""A page's data are what the run's files have."""

import json
import re
import resource
import subprocess
import sys
from bisect import bisect_left
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from tests.support.command_line import trivium
from tests.support.corpus import write_source
from tests.support.pages import charts_of, data_in, points, table, texts_of
from tests.support.runs import BREAKS_OUT, SCORED, WrittenRun, row_of
from trivium.config.load import load_config
from trivium.errors import UsageError
from trivium.plan.export import plan_json
from trivium.plan.make import make_plan
from trivium.plan.show import show_plan
from trivium.report.page import page_data, page_html, write_plan, write_report
from trivium.report.parts.plan import share_points
from trivium.report.read import RunFiles
from trivium.report.run import ShownRun, shown_runs
from trivium.run.decisions import BatchResized
from trivium.run.events import Sampled, Skipped
from trivium.run.folder import RunFolder

CONFIG = """
run.name = "small"
model = { layers = 1, width = 32, heads = 2, vocab = 9000 }
optimizer.lr = 0.01
schedule = { shape = "cosine", warmup = { steps = 10 } }
sources.web = { kind = "tokens", path = "web" }
sources.code = { kind = "tokens", path = "code" }
stages = [
    { name = "one", steps = 40, mixture = { web = 0.75, code = 0.25 }, seq_len = 16, batch_size = 8 },
    { name = "two", steps = 30, mixture = { code = 1.0 }, fade = { steps = 12 }, seq_len = 32, batch_size = 5 },
]
"""


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    for name in ("web", "code"):
        write_source(tmp_path / name, [[40] * 100])
    (tmp_path / "run.toml").write_text(CONFIG)
    return make_plan(load_config(tmp_path / "run.toml"))


def test_the_planned_pictures_are_the_plan(plan: Any) -> None:
    exported = json.loads(json.dumps(plan_json(plan)))
    charts = charts_of(page_data([ShownRun("small", exported)]))
    rates = points(charts["plan-lr"], "learning rate")
    assert len(rates) > 40  # a cosine is no line
    for taken, rate in rates.items():
        assert rate == pytest.approx(plan.settings_at(taken - 1).lr["matrix"], rel=1e-6)
    assert points(charts["plan-rows"], "row length") == {1: 16, 40: 16, 41: 32, 70: 32}
    assert points(charts["plan-batch"], "batch size") == {1: 8, 40: 8, 41: 5, 70: 5}


def test_groups_with_a_curve_of_their_own_are_drawn_beside_the_matrices(plan: Any) -> None:
    scaled = [
        "stages.1.lr={ from = 'here', shape = 'linear', scale = { embedding = 0.1 } }",
        "optimizer.lr={ rest = 0.01, embedding = 1 }",
    ]
    other = make_plan(load_config("run.toml", scaled))
    page = page_data([ShownRun("small", json.loads(json.dumps(plan_json(other))))])
    charts = charts_of(page)
    labels = [series["label"] for series in charts["plan-lr"]["series"]]
    assert labels == ["learning rate", "learning rate of embedding"]
    for label, group in (("learning rate", "matrix"), ("learning rate of embedding", "embedding")):
        for taken, rate in points(charts["plan-lr"], label).items():
            assert rate == pytest.approx(other.settings_at(taken - 1).lr[group], rel=1e-6)
    told = "two: learning rate linear, from where it stands, matrix x 1, embedding x 0.1, unembedding x 1, rest x 1"
    assert told in json.dumps(page)


@pytest.mark.parametrize("shape", ["linear", "cosine", "sigmoid"])
def test_planned_shares_follow_the_mixture_row_by_row(plan: Any, shape: str) -> None:
    faded = make_plan(load_config("run.toml", [f"stages.1.fade.shape={shape}"]))
    points = share_points(json.loads(json.dumps(plan_json(faded))))
    steps = [step for step, _ in points]
    assert steps == [0, 40, *range(41, 53), 70]  # a stage without a fade is one step of the stairs
    mixture, rows, batch = faded.stages[1].mixture, 0.0, faded.stages[1].batch_size
    assert mixture is not None
    for taken in range(41, 71):
        rows += batch * points[bisect_left(steps, taken)][1].get("web", 0.0)
        given = mixture.count((taken - 40) * batch)[mixture.names.index("web")]
        assert abs(rows - given) < 1  # a wrong fade of 12 steps would be off by several rows


RAMPS = [f"stages.{number}.batch_size={{ from = 2, to = 8, over = 1920, by = 2 }}" for number in (0, 1)]


def test_a_planned_batch_size_is_drawn_with_its_changes(plan: Any) -> None:
    ramp = make_plan(load_config("run.toml", [RAMPS[0]]), decisions=[BatchResized(step=50, size=3)])
    page = page_data([ShownRun("small", json.loads(json.dumps(plan_json(ramp))))])
    drawn = points(charts_of(page)["plan-batch"], "batch size")
    sizes = [ramp.settings_at(step).batch_size for step in range(ramp.known_steps)]
    changes = [step for step in range(1, len(sizes)) if sizes[step] != sizes[step - 1] or step == 40]
    assert drawn == {
        edge: sizes[edge - 1]
        for step in [0, *changes, len(sizes)]
        for edge in (step, step + 1)
        if 0 < edge <= len(sizes)
    }


@pytest.mark.parametrize("ramps", [[], RAMPS], ids=["one size", "ramps"])
@pytest.mark.parametrize("shape", ["linear", "cosine", "sigmoid"])
def test_planned_shares_of_a_centred_fade_begin_in_the_stage_before(plan: Any, shape: str, ramps: list[str]) -> None:
    faded = make_plan(load_config("run.toml", [f"stages.1.fade.shape={shape}", "stages.1.fade.center=true", *ramps]))
    points = share_points(json.loads(json.dumps(plan_json(faded))))
    steps = [step for step, _ in points]
    assert ramps or steps == [0, *range(34, 47), 70]
    rows = {"web": 0.0, "code": 0.0}
    for stage in faded.stages:
        assert stage.mixture is not None
        counted = dict.fromkeys(rows, 0.0)
        for taken in range(stage.steps or 0):
            shares = points[bisect_left(steps, (stage.start or 0) + taken + 1)][1]
            size = stage.batches.size_at(taken)
            counted = {name: rows + size * shares.get(name, 0.0) for name, rows in counted.items()}
            counts = stage.mixture.count(stage.batches.rows_before(taken + 1)).tolist()
            given = dict(zip(stage.mixture.names, counts, strict=True))
            assert all(abs(given.get(name, 0) - rows) < 1 for name, rows in counted.items())


def test_what_the_plan_warns_of_and_does_not_know_is_on_its_page(tmp_path: Path) -> None:
    written = WrittenRun(tmp_path / "run").plan
    written["warnings"], written["unknown"] = ["sources.web: is read 5.0 times."], ["sources.code: is not there."]
    page = write_plan(written, "[run]\nname = 'x'\n", tmp_path / "plan.html")
    texts = {
        block["id"]: block["text"]
        for section in data_in(page)["sections"]
        for block in section["blocks"]
        if block["type"] == "text"
    }
    assert texts["plan-warnings"] == "sources.web: is read 5.0 times."
    assert texts["plan-unknown"] == "sources.code: is not there."
    assert texts["config-0"] == "[run]\nname = 'x'\n"


@pytest.mark.parametrize("packing", ["crop", "crop-first"])
def test_rows_that_crop_have_one_slot_more_on_the_page_and_in_the_plan(plan: Any, packing: str) -> None:
    made = make_plan(load_config("run.toml", [f"stages.0.packing={packing}"]))
    figures = made.stages[0].uses["web"].figures
    assert figures is not None
    assert figures.tokens == figures.rows * 17  # no row of 16 and one token more has any padding
    data = page_data([ShownRun("small", json.loads(json.dumps(plan_json(made))))])
    assert next(row for row in table(data, "reads") if row[1] == "web")[7] == "0%"
    text = StringIO()
    show_plan(made, Console(file=text, width=100))
    assert next(line.split() for line in text.getvalue().splitlines() if " web " in line)[-3] == "0%"


def test_the_tasks_of_a_source_are_listed_below_it(plan: Any) -> None:
    exported = json.loads(json.dumps(plan_json(plan)))
    exported["sources"]["web"]["tasks"] = [{"task": "gsm8k", "documents": 30, "tokens": 1200}]
    rows = table(page_data([ShownRun("small", exported)]), "sources")
    assert rows == [
        ["web", "tokens", "100", "4,000"],
        ["web", "task gsm8k", "30", "1,200"],
        ["code", "tokens", "100", "4,000"],
    ]


def test_a_stage_of_unknown_length_leaves_the_known_ones_drawn(tmp_path: Path) -> None:
    written = WrittenRun(tmp_path / "run").plan
    last = written["stages"][-1]
    last.update(end=None, steps=None, tokens=None, shares=None, given={}, lr_multiplier={"first": None, "last": None})
    written.update(total_steps=None, total_tokens=None, lr_curve=None)
    data = page_data([ShownRun("made", written)])
    assert max(points(charts_of(data)["plan-shares-0"], "web")) == 240
    assert "plan-lr" not in charts_of(data)
    assert table(data, "stages")[-1] == ["talk", "[240, ?)", "?", "16 x 256", "bestfit", "?"]


def test_shares_read_are_those_of_the_loss_tokens(run_folder: Path) -> None:
    files = RunFiles(run_folder)
    data = page_data(shown_runs([files]))
    loss_tokens = {name: files.log.steps.column(f"loss_tokens_by_source/{name}") for name in ("web", "code")}
    rows = {(row[0], row[1]): row for row in table(data, "read-0")}
    web, code = (float(np.nansum(loss_tokens[name][:150])) for name in ("web", "code"))
    assert rows[("general", "web")][3] == f"{100 * web / (web + code):.3g}%"
    assert rows[("general", "web")][5] == f"{web:,.0f}"
    drawn = points(charts_of(data)["shares-read"], "web")
    assert drawn[2] == pytest.approx(
        100 * loss_tokens["web"][:2].sum() / (loss_tokens["web"][:2].sum() + loss_tokens["code"][:2].sum())
    )


def test_no_text_ends_the_element_that_holds_the_data(page_file: Path) -> None:
    text = page_file.read_text()
    data = re.search(r'<script type="application/json"[^>]*>(.*)', text)
    assert data is not None
    assert "<" not in data[1].removesuffix("</script>")
    assert text.count("</script>") == 6  # the library, the data, the page's own three, that of spikes
    texts = texts_of(data_in(page_file)).values()
    assert f"The cat sat on {BREAKS_OUT}" in texts


def test_runs_are_compared_key_by_key_and_by_where_they_part(tmp_path: Path) -> None:
    first, second = WrittenRun(tmp_path / "a", name="a"), WrittenRun(tmp_path / "b", name="b", lr=0.01)
    for run in (first, second):
        run.start()
        run.take(0, 10)
    second.random.random()
    for run in (first, second):
        run.take(10, 20)
    data = page_data(shown_runs([RunFiles(first.folder), RunFiles(second.folder)]))
    assert table(data, "differing-keys") == [["optimizer.lr", "0.001", "0.01"], ["run.name", "a", "b"]]
    assert data["sections"][0]["lead"] == "b: the same losses as a up to step 10."
    final = {row[0]: row[1:] for row in table(data, "final-figures")}
    assert final["steps"] == ["20", "20"]
    assert final["status"] == ["open", "open"]
    assert final["validation loss, last"] == ["", ""]
    assert [series["run"] for series in charts_of(data)["loss"]["series"]] == [0, 0, 1, 1]


def test_runs_of_one_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    folders = [WrittenRun(tmp_path / name).folder for name in ("a", "b")]
    labels = [run.label for run in shown_runs([RunFiles(folder) for folder in folders])]
    assert labels == [str(tmp_path / "a"), str(tmp_path / "b")]


def test_a_text_of_blank_lines_makes_no_long_page(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "run")
    run.start()
    run.tell(Sampled(step=0, prompt="", text="\n" * 500))
    run.tell(Sampled(step=0, prompt="The", text=" cat\n\n" + " \n" * 80 + "sat\n\nstill\n\n\n"))
    texts = texts_of(page_data(shown_runs([RunFiles(run.folder)])))
    assert texts["texts-0-0"] == "(only white space)"
    assert texts["texts-1-0"] == "The cat\n\nsat\n\nstill"


def test_a_fork_names_its_parent(tmp_path: Path) -> None:
    parent, run = WrittenRun(tmp_path / "first", name="first"), WrittenRun(tmp_path / "run")
    (run.folder / "lineage.json").write_text(json.dumps({"run": "runs/first", "step": 10}))
    for each, step in ((parent, 0), (run, 10)):
        each.start(step)
        each.take(step, 20)
    data = page_data(shown_runs([RunFiles(parent.folder), RunFiles(run.folder)]))
    assert table(data, "lineage-1") == [["run", "runs/first"], ["step", "10"]]
    assert data["sections"][0]["lead"] == "made: forked from runs/first at step 10."


def test_a_fork_beside_its_parent_shares_its_past(tmp_path: Path) -> None:
    parent, run = WrittenRun(tmp_path / "first", name="first"), WrittenRun(tmp_path / "run", seed=2)
    (run.folder / "lineage.json").write_text(json.dumps({"run": "runs/first", "step": 10}))
    for each, step in ((parent, 0), (run, 10)):
        each.start(step)
        each.take(step, 20)
        each.evaluate(20)
    for step in (5, 10, 15):
        parent.evaluate(step)
    charts = charts_of(page_data(shown_runs([RunFiles(parent.folder), RunFiles(run.folder)])))
    theirs, ours = points(charts["loss"], "loss, first"), points(charts["loss"], "loss, made")
    assert list(ours) == list(range(1, 21))
    assert [step for step in ours if ours[step] == theirs[step]] == list(range(1, 11))
    assert list(points(charts["validation-loss"], "overall, made")) == [5, 10, 20]
    alone = charts_of(page_data(shown_runs([RunFiles(run.folder)])))
    assert list(points(alone["loss"], "loss")) == list(range(11, 21))


def test_a_run_of_the_parent_s_name_in_another_place_is_not_its_parent(tmp_path: Path) -> None:
    parent, run = WrittenRun(tmp_path / "a" / "runs" / "first"), WrittenRun(tmp_path / "b" / "runs" / "run", seed=2)
    (run.folder / "lineage.json").write_text(json.dumps({"run": "runs/first", "step": 10}))
    for each, step in ((parent, 0), (run, 10)):
        each.start(step)
        each.take(step, 20)
    _, fork = shown_runs([RunFiles(parent.folder), RunFiles(run.folder)])
    assert fork.log.steps.steps.tolist() == list(range(11, 21))
    own = WrittenRun(tmp_path / "b" / "runs" / "first")
    own.start()
    own.take(0, 20)
    _, _, fork = shown_runs([RunFiles(parent.folder), RunFiles(own.folder), RunFiles(run.folder)])
    assert fork.log.steps.steps.tolist() == list(range(1, 21))


def test_a_run_that_is_given_twice_is_refused(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "run")
    with pytest.raises(UsageError) as caught:
        shown_runs([RunFiles(run.folder), RunFiles(run.folder)])
    assert str(caught.value) == f"{run.folder}: is given twice. Give it once."


def test_stages_that_were_not_evaluated_where_they_meet_have_one_line(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "run")
    run.start()
    run.take(0, 300)
    for step in (100, 200, 300):
        run.evaluate(step)
    charts = charts_of(page_data(shown_runs([RunFiles(run.folder)])))
    assert [series["label"] for series in charts["validation-loss"]["series"]] == ["overall", "web", "code"]
    assert list(points(charts["validation-loss"], "overall")) == [100, 200, 300]


def test_the_best_is_of_the_last_rows_and_a_line_breaks_where_they_change(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "run")
    run.start()
    run.take(0, 300)
    run.evaluate(100)
    run.evaluate(200)
    run.evaluate(240, begins=True)  # on other rows, with a higher loss
    data = page_data(shown_runs([RunFiles(run.folder)]))
    lines = [series for series in charts_of(data)["validation-loss"]["series"] if series["label"] == "overall"]
    assert [series["all"] for series in lines] == [2, 1]
    (best,) = [card for card in data["runs"][0]["cards"] if card[0] == "best validation loss"]
    assert best[2] == "step 240, of those since step 240"


def test_runs_that_read_other_rows_are_not_compared(tmp_path: Path) -> None:
    runs = [WrittenRun(tmp_path / name, name=name) for name in ("one", "two")]
    for run in runs:
        run.start()
        run.take(0, 20)
        run.evaluate(20)
    folders = [RunFiles(run.folder) for run in runs]
    compared = page_data(shown_runs(folders))
    assert "validation loss, best" in [row[0] for row in table(compared, "final-figures")]
    runs[1].measured_on = "others"
    runs[1].evaluate(20)
    apart = page_data(shown_runs([RunFiles(run.folder) for run in runs]))
    assert "validation loss, best" not in [row[0] for row in table(apart, "final-figures")]
    leads = [section["lead"] for section in apart["sections"] if section["id"] in ("comparison", "validation")]
    assert all("Validation of two cannot be compared with one's: other rows were read." in lead for lead in leads)


def test_a_line_of_scores_breaks_where_other_questions_are_asked(tmp_path: Path) -> None:
    runs = [WrittenRun(tmp_path / name, name=name) for name in ("one", "two")]
    for run, questions in zip(runs, (("a", "a", "b"), ("a", "a", "a")), strict=True):
        run.start()
        run.take(0, 30)
        for step, asked in zip((10, 20, 30), questions, strict=True):
            run.score(step, asked)
    data = page_data(shown_runs([RunFiles(run.folder) for run in runs]))
    lines = charts_of(data)["scores"]["series"]
    for name in ("spelling", "counting", "mean, centred"):
        assert [line["all"] for line in lines if line["label"].startswith(name)] == [2, 1, 3]
    (lead,) = [section["lead"] for section in data["sections"] if section["id"] == "validation"]
    both = [f"Scores in {task} of two cannot be compared with one's: other questions were asked." for task in SCORED]
    assert lead == " ".join(both)
    assert [row[2:4] for row in table(data, "score-changes-0")] == [["", "0.5000"]] * 3


def test_the_documents_of_a_step_that_went_wrong_are_named_and_no_other_file_is_read(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "run")
    run.start()
    run.take(0, 3)
    (tmp_path / "secret.json").write_text(json.dumps([row_of("web", 1)]))
    rows = RunFolder(run.folder).write_rows(3, [row_of("web", *range(1_000, 1_014))])
    run.tell(Skipped(step=4, stage="general", why="the loss is nan", rows=rows))
    run.tell(Skipped(step=5, stage="general", why="asked", rows="rows/../../secret.json"))
    data = page_data(shown_runs([RunFiles(run.folder)]))
    numbers = ", ".join(f"{number:,}" for number in range(1_000, 1_012))
    assert table(data, "troubles-0") == [
        ["4", "skipped", "", "the loss is nan", f"web: {numbers} and 2 more"],
        ["5", "skipped", "", "asked", ""],
    ]
    assert data["runs"][0]["cards"][0][1] == "5"  # a step without an update is a step


def test_losses_that_are_not_finite_are_listed(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "run")
    run.start()
    run.take(0, 3)
    run.tell_raw("step", 4, loss=float("nan"), grad_norm=float("inf"), loss_by_source={"web": float("nan")})
    data = page_data(shown_runs([RunFiles(run.folder)]))
    assert table(data, "troubles-0") == [["4", "update", "nan", "not finite", ""]]
    page_html(data)


def test_what_an_engine_and_the_users_own_code_add_to_a_step_is_drawn(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "run")
    run.start()
    run.take(0, 3)
    run.tell_raw("step", 4, loss=2.0, extra={"kl": 0.25}, figures={"gate_entropy": 0.5})
    charts = charts_of(page_data(shown_runs([RunFiles(run.folder)])))
    assert charts["extra-0"]["title"] == "KL to the reference"
    assert points(charts["extra-0"], "kl") == {4: 0.25}
    assert charts["extra-1"]["title"] == "gate entropy"
    assert points(charts["extra-1"], "gate_entropy") == {4: 0.5}


def test_a_page_that_finds_no_room_is_one_line_and_leaves_nothing(run_folder: Path, tmp_path: Path) -> None:
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, usual[1]))
    try:
        code, out, err = trivium(tmp_path, "report", str(run_folder), "--out", "page.html")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    assert (code, out, err) == (2, "", "writing: File too large\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_page_of_8_000_steps_is_thinned_and_small(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "run", 8_000)
    run.start()
    run.take(0, 8_000)
    page = write_report([run.folder], tmp_path / "page.html")
    data = data_in(page)
    loss = points(charts_of(data)["loss"], "loss")
    assert 1_000 < len(loss) <= data["points"] + 4
    truth = RunFiles(run.folder).log.steps.column("loss")
    assert max(loss.values()) == pytest.approx(truth.max())
    assert min(loss.values()) == pytest.approx(truth.min())
    assert page.stat().st_size < 2_000_000


def test_the_room_reads_files_only(run_folder: Path) -> None:
    code = (
        "import sys; from pathlib import Path; import trivium.report.watch;"
        "from trivium.report.page import write_report;"
        f"write_report([Path({str(run_folder)!r})], Path({str(run_folder / 'other.html')!r}));"
        "print([name for name in ('torch', 'jax', 'numba') if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"
