"""Steps that the config names are traced into the run's folder."""

import gzip
import json
from pathlib import Path

import pytest

from tests.support.training import events, train, write_four_stages
from trivium.engine.torch.measure.profile import TRACE


def test_steps_are_traced_once_and_it_is_told_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_four_stages(tmp_path)
    train("engine.profile.steps=[2, 4]", "evaluate.every=100")
    folder = Path("runs/run/profile/step-00000002")
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    assert {path.name for path in folder.iterdir()} == {TRACE}  # a CPU has no snapshot
    names = [event.get("name") for event in json.loads(gzip.decompress((folder / TRACE).read_bytes()))["traceEvents"]]
    assert names.count("Optimizer.step#AdamW.step") == 2
    assert "aten::mm" in names
    (notice,) = [event for event in events("notice") if "traced" in event["text"]]
    assert (notice["step"], notice["text"]) == (4, f"steps 2 to 3 are traced: {folder}")


def test_a_run_that_ends_within_the_span_leaves_its_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_four_stages(tmp_path)
    train("engine.profile.steps=[17, 1000]", "evaluate.every=100")
    assert Path("runs/run/profile/step-00000017", TRACE).is_file()
    (notice,) = [event for event in events("notice") if "traced" in event["text"]]
    assert notice["text"].startswith("steps 17 to 18 are traced: ")


def test_a_trace_that_cannot_be_written_ends_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_four_stages(tmp_path)
    Path("runs/run").mkdir(parents=True)
    Path("runs/run/profile").write_text("in the way")
    assert train("engine.profile.steps=[2, 3]", "evaluate.every=100").finished
    (notice,) = [event for event in events("notice") if "traced" in event["text"]]
    assert notice["text"].startswith("steps 2 to 2 are not traced: ")
