"""Steps taken again: the recorded ones bit for bit; without a document no spike; and the run stays as it is."""

from pathlib import Path

import pytest

from tests.support.command_line import trivium
from tests.support.spikes import SPIKE, spiked_run
from tests.support.training import losses
from trivium.errors import ResumeError, UsageError
from trivium.screen import terminal
from trivium.train.fork import fork_run
from trivium.train.trainer import Trainer
from trivium.why.compare import bisect_steps, rerun_steps
from trivium.why.recorded import recorded_steps
from trivium.why.rerun import chosen_documents, open_rerun
from trivium.why.rows import run_config


def test_steps_taken_again_give_the_recorded_losses_bit_for_bit(spiked: Path) -> None:
    found = rerun_steps(spiked, 44, 50, [], terminal())
    assert (found["checkpoint"], found["same_bits"]) == (40, True)
    assert [each["step"] for each in found["steps"]] == list(range(44, 51))
    assert all(each["recorded"]["loss"] == each["again"]["loss"] for each in found["steps"])
    assert [each["step"] for each in found["steps"] if each["again"]["spike"]] == [SPIKE]
    from_the_first = rerun_steps(spiked, 2, 3, [], terminal())
    assert (from_the_first["checkpoint"], from_the_first["same_bits"]) == (0, True)


def test_without_the_document_the_spike_is_gone(spiked: Path) -> None:
    code, out, err = trivium(Path(), "rerun", str(spiked), "--from", "46", "--to", "49", "--without", "dice:329")
    assert (code, err) == (0, "")
    lines = [line.rstrip() for line in out.splitlines()]
    assert lines[0] == "runs/dice: steps 46 to 49 again, without dice:329, from checkpoint 40"
    assert lines[-1] == "The spike is gone."
    same = "steps 40 to 45, of which nothing was left out, gave the recorded losses and norms, bit for bit."
    assert lines[-2] == same
    of_spike = next(line.split() for line in lines if line.startswith("  47"))
    assert float(of_spike[1]) > 2.5
    assert float(of_spike[2]) < 1.0
    assert of_spike[-1] == "spiked"
    assert all(len(line) <= 80 for line in lines if line != same)


def test_halving_finds_the_document_in_as_many_reruns_as_said(spiked: Path) -> None:
    code, out, err = trivium(Path(), "rerun", str(spiked), "--from", "46", "--to", "48", "--bisect")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[1] == (
        "16 documents were read up to it: 6 reruns at the most for one of them, 5 more for each further one."
    )
    assert sum(line.startswith("rerun ") for line in lines) <= 6
    assert lines[-3:] == [
        "dice:329 causes the spike: without it the loss does not spike.",
        "  [sources.dice]",
        "  without = [329]",
    ]


def test_a_step_that_does_not_spike_needs_a_limit(spiked: Path) -> None:
    with pytest.raises(UsageError, match="none of them spikes when it is taken again"):
        bisect_steps(spiked, 43, 44, None, terminal())
    found = bisect_steps(spiked, SPIKE, SPIKE, 1.5, terminal())
    assert found["documents"] == ["dice:329"]


def test_a_place_that_was_kept_gives_the_same_bits_again(spiked: Path) -> None:
    with open_rerun(spiked, 45) as rerun:
        rerun.keep_place()
        first = rerun.take(48, {})
        rerun.take(48, {"dice": [329]})
        assert rerun.take(48, {}) == first


def test_a_fork_before_it_goes_on_without_the_document(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trained)
    overrides = ["run.name=without", "sources.dice.without=[329]"]
    fork_run(Path("runs/dice"), 40, Path("runs/dice/config.toml"), overrides)
    Trainer("runs/dice/config.toml", overrides, show=False).run()
    again = rerun_steps(Path("runs/dice"), SPIKE, 59, ["dice:329"], terminal())
    expected = {each["step"] + 1: each["again"]["loss"] for each in again["steps"]}
    assert {step: loss for step, loss in losses("without").items() if step > SPIKE} == expected
    with pytest.raises(ResumeError) as error:
        Trainer("runs/dice/config.toml", ["sources.dice.without=[329]", "stages.0.steps=61"], show=False).run()
    assert "sources.dice.without was absent and is now [329], and steps 0 to 59 have been taken" in str(error.value)


def test_what_cannot_be_left_out_is_said(spiked: Path) -> None:
    config = run_config(spiked)
    assert chosen_documents(config, ["dice:3", "dice:5"]) == {"dice": [3, 5]}
    assert chosen_documents(config, ["dice"]) == {"dice": None}
    with pytest.raises(UsageError) as error:
        chosen_documents(config, ["wbe:3"])
    what = '--without: "wbe:3" is neither a source nor a document. Write web:1234 or web; the sources are dice.'
    assert str(error.value) == what
    with pytest.raises(UsageError, match="there is no step 60: the run has 60"):
        rerun_steps(spiked, 60, 61, [], terminal())
    with pytest.raises(UsageError, match="there is no step 60: the run has 60"):
        rerun_steps(spiked, 58, 60, [], terminal())
    with pytest.raises(UsageError) as error:
        rerun_steps(spiked, 5, 6, ["dice:99999999999"], terminal())
    assert str(error.value) == "--without: dice has no document 99,999,999,999. Give one from 0 to 499."
    with pytest.raises(UsageError, match="--to: is 4, before --from 5"):
        rerun_steps(spiked, 5, 4, [], terminal())


@pytest.mark.slow
def test_jax_takes_them_again_to_the_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = spiked_run(tmp_path, "engine.name=jax")
    assert recorded_steps(run)[SPIKE].is_trouble
    assert rerun_steps(run, 45, 48, [], terminal())["same_bits"]
    assert bisect_steps(run, SPIKE, SPIKE + 1, None, terminal())["documents"] == ["dice:329"]
