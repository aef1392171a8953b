"""A look at a run: state, progress and best figures, of files that grow, shrink and break."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.runs import WrittenRun
from trivium.run.events import Evaluated, Failed
from trivium.run.folder import RunFolder
from trivium.run.glance import RunGlance

EVALUATED = Evaluated.without_validation(0, "general")


@pytest.fixture
def run(tmp_path: Path) -> WrittenRun:
    run = WrittenRun(tmp_path / "run")
    run.start()
    run.take(0, 20)
    return run


def test_a_look_reads_what_is_new(run: WrittenRun) -> None:
    glance = RunGlance(run.folder)
    glance.update()
    assert (glance.state, glance.step, glance.total_steps, glance.stage) == ("broken off", 20, 300, "general")
    assert glance.last is not None
    assert glance.last.step == 20
    run.take(20, 25)
    with open(run.folder / "events.jsonl", "ab") as file:
        file.write(b'{"event": "step", "st')  # still being written
    glance.update()
    assert glance.step == 25
    with Training(run.folder):
        assert glance.state == "running"
    run.tell(Failed(step=25, why="memory"))
    glance.update()
    assert (glance.state, glance.why) == ("failed", "memory")
    run.start(20)
    run.end(300)
    glance.update()
    assert (glance.state, glance.step, glance.why) == ("finished", 300, "")


class Training:
    """A launch that trains."""

    def __init__(self, path: Path) -> None:
        self.folder = RunFolder(path)

    def __enter__(self) -> None:
        self.folder.lock()

    def __exit__(self, *_: object) -> None:
        self.folder.unlock()


def test_the_best_is_of_the_last_rows_and_of_what_led_to_the_present(run: WrittenRun) -> None:
    def evaluated(step: int, loss: float, rows: str = "rows", *, averaged: bool = False) -> Evaluated:
        return replace(EVALUATED, step=step, loss=loss, fingerprint=rows, averaged=averaged)

    run.tell(evaluated(5, 1.0, "other"), evaluated(10, 3.0), evaluated(15, 2.5), evaluated(20, 2.0))
    run.tell(evaluated(20, 0.5, averaged=True))
    glance = RunGlance(run.folder)
    glance.update()
    assert glance.best is not None
    assert (glance.best.step, glance.best.loss) == (20, 2.0)
    run.start(15)
    glance.update()
    assert glance.best is not None
    assert (glance.best.step, glance.best.loss) == (15, 2.5)


def test_another_run_in_the_same_folder_starts_over(run: WrittenRun) -> None:
    glance = RunGlance(run.folder)
    glance.update()
    (run.folder / "events.jsonl").write_text("")
    glance.update()
    assert (glance.step, glance.total_steps, glance.state) == (0, None, "new")
    (run.folder / "events.jsonl").unlink()
    glance.update()
    assert glance.state == "new"
