"""`trivium train` prints as much as it is asked to, and ends with what to type next."""

from pathlib import Path

import pytest

from tests.support.command_line import trivium
from tests.support.training import write_four_stages
from trivium.cli.train import next_lines

FEW = ("stages.0.steps=4", "schedule={}", "track.every=3", "--until", "4")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_four_stages(tmp_path)
    return tmp_path


def steps_of(out: str) -> list[int]:
    return [int(line.split()[1]) for line in out.splitlines() if line.startswith("step ") and "tokens/s" in line]


def test_a_quiet_command_prints_the_end_alone(folder: Path) -> None:
    code, out, err = trivium(folder, "train", "run.toml", *FEW, "-q")
    assert (code, err) == (0, "")
    (line,) = out.splitlines()
    assert line.startswith("stopped: 4 steps, ")
    assert (folder / "runs/run/log.txt").read_text().count("tokens/s") == 1


def test_a_verbose_command_prints_every_step(folder: Path) -> None:
    code, out, _ = trivium(folder, "train", "run.toml", *FEW)
    assert (code, steps_of(out)) == (0, [3])
    assert out.splitlines()[-3:] == [
        "  the same command         goes on from the last checkpoint",
        "  trivium report runs/run  writes a page that shows the run",
        "  trivium sample runs/run  writes a text by the model",
    ]
    code, out, _ = trivium(folder, "train", "run.toml", *FEW, "run.name=other", "-v")
    assert (code, steps_of(out)) == (0, [1, 2, 3, 4])


def test_quiet_and_verbose_at_once_are_refused(folder: Path) -> None:
    code, out, err = trivium(folder, "train", "run.toml", "-q", "-v")
    assert (code, out, err) == (2, "", "-q and -v: print less, and more. Give one of them.\n")


def test_what_comes_next_depends_on_how_it_ended(tmp_path: Path) -> None:
    stopped = next_lines(Path("my runs/a"), finished=False, talks=True)
    assert stopped[:2] == ["next:", "  the same command            goes on from the last checkpoint"]
    assert "  trivium chat 'my runs/a'    talks to it" in stopped
    finished = next_lines(Path("runs/a"), finished=True, talks=False)
    assert [line.split("  ")[1] for line in finished[1:]] == [
        "trivium report runs/a",
        "trivium sample runs/a",
        "trivium export runs/a exported",
    ]
