"""Every message of the check in full: `messages.txt` has the change to a sound config, and all that is said of it."""

import ast
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.configs import BASE, base
from trivium.config import rules
from trivium.config.load import load, validate
from trivium.config.rules.view import Finding, View
from trivium.errors import ConfigError

MESSAGES = Path(__file__).with_name("messages.txt").read_text(encoding="utf-8")


def cases() -> Iterator[tuple[list[str], list[str]]]:
    """Changes stand at the margin, what is said of them is indented; a blank line ends a case."""
    for block in MESSAGES.split("\n\n"):
        lines = [line for line in block.splitlines() if line and not line.startswith("#")]
        if lines:
            changes = [line for line in lines if not line.startswith(" ")]
            yield changes, [line.strip() for line in lines if line.startswith(" ")]


CASES = list(cases())


def said_of(changes: list[str]) -> list[str]:
    """What is said of the base config with these changes, without the file's name."""
    try:
        _, warnings = validate(base(*changes), "run.toml")
    except ConfigError as error:
        return [str(problem).removeprefix("run.toml: ") for problem in error.problems]
    return ["warning: " + str(warning).removeprefix("run.toml: ") for warning in warnings] or ["sound"]


def test_the_base_config_is_sound() -> None:
    assert said_of([]) == ["sound"]


@pytest.mark.parametrize(("changes", "said"), CASES, ids=["; ".join(changes) for changes, _ in CASES])
def test_a_change_is_answered_in_full(changes: list[str], said: list[str]) -> None:
    assert said_of(changes) == said


@pytest.mark.parametrize("said", sorted({said for _, all_said in CASES for said in all_said} - {"sound"}))
def test_a_message_has_a_place_and_says_what_to_write(said: str) -> None:
    place, what = said.removeprefix("warning: ").split(": ", 1)
    assert re.fullmatch(r'([\w\[\].-]|"[^"]*")+', place)
    advice = r"Write|Did you mean|Leave|Keep|Use|Give|Take|Lower|Change|Name|Say|It must be|Each must be|Remove"
    assert re.search(rf"({advice}).*[.?]$", what), what


def places_that_report() -> set[tuple[str, int]]:
    """Where the rules call `view.problem`, `view.warning` or `self.problem`: file and line."""
    return {
        (str(path), node.lineno)
        for path in Path(str(rules.__file__)).parent.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("view.problem", "view.warning", "self.problem")
    }


def test_every_place_that_reports_is_reached_by_a_case(monkeypatch: pytest.MonkeyPatch) -> None:
    reached = set()
    for name in ("problem", "warning"):
        report = getattr(View, name)

        def noted(self: View, path: Path, what: str, report: Callable[..., Finding] = report) -> Finding:
            caller = sys._getframe(1)
            reached.add((caller.f_code.co_filename, caller.f_lineno))
            return report(self, path, what)

        monkeypatch.setattr(View, name, noted)
    for changes, _ in CASES:
        said_of(changes)
    assert places_that_report() - reached == set()


def test_problems_carry_the_name_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(BASE.replace("steps = 100", "steps = 0"))
    with pytest.raises(ConfigError) as caught:
        load(file)
    what = "is 0. It must be at least 1. Write for example steps = 4000."
    assert str(caught.value) == f"mine.toml:18: stages[0].steps: {what}"


def test_all_problems_come_at_once() -> None:
    changes = [
        'run.nmae = "x"',
        "optimizer.lr = -1",
        'sources.code.kind = "tekst"',
        "stages.0.steps = 0",
        "stages.0.mixture = { web = 0.9, code = 0.3 }",
        "stages.1.mixtrue = { web = 1 }",
    ]
    assert said_of(changes) == [
        'run.nmae: unknown key. Did you mean "name"?',
        "optimizer.lr: is -1. It must be over 0. Write for example lr = 0.0003.",
        'sources.code.kind: "tekst" is not a kind of source. Did you mean "text"?',
        "stages[0].steps: is 0. It must be at least 1. Write for example steps = 4000.",
        'stages[1].mixtrue: unknown key. Did you mean "mixture"?',
        "stages[0].mixture: adds up to 1.2, not 1. Change the shares, or write weights = { web = 0.9, code = 0.3 }.",
    ]
