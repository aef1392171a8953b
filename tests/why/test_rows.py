"""Why a loss was high: the garbage is named first, with its text and the key that leaves it out."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.support.command_line import trivium
from tests.support.spikes import GARBAGE, SPIKE, garbage
from trivium.loader.trace import places_of
from trivium.why.recorded import recorded_steps
from trivium.why.rows import explain_step, outlying, run_config, run_plan


def test_the_garbage_is_named_first(spiked: Path) -> None:
    steps = recorded_steps(spiked)
    assert [step for step, each in steps.items() if each.is_trouble] == [SPIKE]
    explained = explain_step(spiked, SPIKE, steps[SPIKE])
    first = explained.rows[0]
    assert [piece.document for piece in first.pieces] == [GARBAGE]
    assert first.loss > 3 * explained.rows[1].loss
    assert first.pieces[0].text == garbage()[:64]
    assert first.pieces[0].where == f"examples/data/dice.jsonl line {GARBAGE + 1}"
    assert explained.suspects == {"dice": [GARBAGE]}
    (place,) = places_of(run_plan(spiked, run_config(spiked)), "dice", GARBAGE)
    assert (place.step, place.row) == (SPIKE, first.row)


def test_rows_weigh_up_to_the_steps_loss(spiked: Path) -> None:
    steps = recorded_steps(spiked)
    for step in (0, 17, SPIKE, 59):
        explained = explain_step(spiked, step, steps[step])
        tokens = [sum(piece.stop - piece.start - 1 for piece in row.pieces) for row in explained.rows]
        mean = np.average([row.loss for row in explained.rows], weights=tokens)
        assert mean == pytest.approx(steps[step].loss, rel=1e-5)


def test_the_command_shows_the_last_spike_at_80_columns(spiked: Path) -> None:
    code, out, err = trivium(Path(), "why", str(spiked))
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "step 47 of runs/dice: stage rolls, update 48"
    assert "8 rows by loss; 1 stands out" in lines
    assert "  dice:329, tokens 0 to 80, examples/data/dice.jsonl line 330" in lines
    assert "  without = [329]" in lines
    fork = "  trivium fork runs/dice --at 40 runs/dice/config.toml run.name=dice-without 'sources.dice.without=[329]'"
    assert lines[-1] == fork
    assert all(len(line) <= 80 for line in lines if not line.startswith("  trivium"))
    found = json.loads(trivium(Path(), "why", str(spiked), "--rows", "1", "--json")[1])
    assert (len(found["rows"]), found["suspects"]) == (1, {"dice": [329]})


def test_what_was_kept_beside_a_spike_is_enough(spiked: Path, tmp_path: Path) -> None:
    """Where the sources are gone, and the losses of recent steps too."""
    other = tmp_path / "runs/dice"
    shutil.copytree(spiked, other)
    (other / "config.toml").write_text((other / "config.toml").read_text().replace("dice.jsonl", "gone.jsonl"))
    (other / "rows/recent.bin").unlink()
    steps = recorded_steps(other)
    explained = explain_step(other, SPIKE, steps[SPIKE])
    assert explained.suspects == {"dice": [GARBAGE]}
    assert explained.rows[0].pieces[0].text == garbage()[:64]
    code, _, err = trivium(Path(), "why", str(other), "--step", "52")
    assert code == 2
    kept = "A run keeps those of its last 1,000 steps, and of every spike: give one of these, or take the step again"
    assert err == (
        f"{other}: the losses of the rows of step 52 are not kept. {kept}: trivium rerun {other} --from 52 --to 52.\n"
    )


def test_mistakes_are_answered_in_words(spiked: Path, tmp_path: Path) -> None:
    assert trivium(Path(), "why", str(spiked), "--step", "60") == (
        2,
        "",
        "runs/dice: step 60 has not been taken. It has 0 to 59.\n",
    )
    message = f"{tmp_path}: has no events.jsonl. Give the folder of a run that has begun, such as runs/base.\n"
    assert trivium(Path(), "why", str(tmp_path)) == (2, "", message)


def test_rows_stand_out_by_the_others() -> None:
    assert outlying(np.array([9.0, 1.1, 1.0, 1.0, 0.9], np.float32)) == 1
    assert outlying(np.array([9.0, 8.0, 1.0, 1.05, 0.9], np.float32)) == 2
    assert outlying(np.array([1.01, 1.0, 1.0], np.float32)) == 1
    assert outlying(np.array([np.nan, np.inf, 1.0, 1.0, 1.0], np.float32)) == 2
    assert outlying(np.array([np.nan], np.float32)) == 1
