"""An average in a run: kept from stage to stage, evaluated, started from, exported, and exact after stops."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.support.training import StoppingTrainer
from trivium.ask.average import average_models
from trivium.ask.export import export_checkpoint
from trivium.ask.open import open_model
from trivium.errors import PlanError, ResumeError, UsageError
from trivium.run.events import read_events
from trivium.run.folder import RunFolder

LAST = 'stages.0.average={ last = 2, every = { steps = 2 }, weights = "1-sqrt" }'
EMA = "stages.1.average={ ema = 0.5 }"
START = 'stages.2.start_from="average"'
BOTH = 'evaluate.weights="both"'
KEEP_ALL = ("checkpoint.every=1", "checkpoint.keep=1000")
RUN = Path("runs/run")


def run(*overrides: str, stop_at: int = -1, **kinds: Any) -> StoppingTrainer:
    trainer = StoppingTrainer("run.toml", overrides, show=False, **kinds)
    trainer.stop_at = stop_at
    trainer.run()
    return trainer


def tensors(step: int, folder: Path = RUN) -> dict[str, np.ndarray[Any, Any]]:
    return load_file(folder / "checkpoints" / f"step-{step:08d}" / "engine" / "rank-00000.safetensors")


def part(saved: dict[str, np.ndarray[Any, Any]], prefix: str) -> dict[str, np.ndarray[Any, Any]]:
    return {name.removeprefix(prefix): array for name, array in saved.items() if name.startswith(prefix)}


def test_a_stopped_run_ends_with_the_bits_of_one_that_never_stopped(folder: Path) -> None:
    averages = (LAST, EMA, START, BOTH, "checkpoint.keep=100")
    run(*averages)
    whole = tensors(19)
    (folder / "runs" / "run").rename(folder / "runs" / "whole")
    for stop_at in (3, 6, 8, 11, 13):  # within stages, and where one begins
        run(*averages, stop_at=stop_at)
    run(*averages)
    again = tensors(19)
    assert whole.keys() == again.keys()
    assert all((whole[name] == again[name]).all() for name in whole)
    evaluated = [
        [
            (event["step"], event["stage"], event["averaged"], event["loss"])
            for event in read_events(folder / "runs" / name / "events.jsonl")
            if event["event"] == "evaluated"
        ]
        for name in ("whole", "run")
    ]
    assert evaluated[0] == evaluated[1]


@pytest.mark.usefixtures("folder")
def test_copies_are_those_of_the_steps_that_are_asked_for_and_a_stage_starts_from_their_mean() -> None:
    run(LAST, 'stages.1.start_from="average"', *KEEP_ALL)
    copies = [part(tensors(6), f"average/{number:03}/") for number in (0, 1)]
    for copy, step in zip(copies, (4, 6), strict=True):
        own = part(tensors(step), "weights/")
        assert all((copy[name] == own[name]).all() for name in own)
    shares = (1 - (1 - 0.5**0.5), 1 - 0.5**0.5)
    run(LAST, *KEEP_ALL, "run.name=plain", 'stages.1.start_from="average"', "stages.1.lr={ scale = 1e-30 }")
    after = part(tensors(7, Path("runs/plain")), "weights/")
    for name, array in after.items():
        mean = sum(share * copy[name] for share, copy in zip(shares, copies, strict=True))
        np.testing.assert_allclose(array, mean, rtol=1e-5, atol=1e-7)


@pytest.mark.usefixtures("folder")
def test_figures_know_which_weights_they_are_of() -> None:
    trainer = run("defaults.average={ ema = 0.9 }", BOTH)
    events = [event for event in read_events(RUN / "events.jsonl") if event["event"] == "evaluated"]
    own, averaged = ([event for event in events if event["averaged"] == each] for each in (False, True))
    assert [event["step"] for event in own] == [event["step"] for event in averaged]
    assert {event["fingerprint"] for event in own}.isdisjoint(event["fingerprint"] for event in averaged)
    assert all(one["loss"] != other["loss"] for one, other in zip(own, averaged, strict=True))
    assert {"validation loss", "validation loss of the average"} <= trainer.session.best.keys()
    assert trainer.session.last_evaluation is not None
    assert not trainer.session.last_evaluation.averaged


@pytest.mark.usefixtures("folder")
def test_an_average_changes_nothing_of_the_weights() -> None:
    run("run.name=plain")
    run("defaults.average={ ema = 0.9 }", BOTH)
    plain, averaging = (part(tensors(19, Path("runs") / name), "weights/") for name in ("plain", "run"))
    assert all((plain[name] == averaging[name]).all() for name in plain)


@pytest.mark.usefixtures("folder")
def test_the_average_of_the_past_cannot_change_and_that_of_the_future_can() -> None:
    run(LAST, stop_at=8)
    with pytest.raises(ResumeError, match=r"stages\[0\]\.average\.last was 2 and is now 3, and steps 0 to 7 have been"):
        run(LAST.replace("last = 2", "last = 3"))
    with pytest.raises(ResumeError, match=r"stages\[0\]\.average\.last was 2 and is now absent"):
        run()
    run(LAST, "stages.2.average={ ema = 0.5 }", "stages.3.end_average=true")
    assert not part(tensors(19), "average/")


@pytest.mark.usefixtures("folder")
def test_what_cannot_be_is_refused_by_the_plan() -> None:
    with pytest.raises(PlanError) as refusal:
        run("stages.0.average={ last = 2, every = { steps = 20 } }", 'stages.1.start_from="average"')
    assert str(refusal.value) == (
        "run.toml: stages[1].start_from (set on the command line): the average (last 2, every 20 steps) has no copy of "
        "the weights before step 6. Write a smaller every."
    )
    with pytest.raises(PlanError) as refusal:
        run("stages.0.average={ last = 2, every = 100 }")
    assert str(refusal.value).endswith(
        "is 100 tokens, less than the 128 of a step. Write more tokens, or { steps = 100 }."
    )


@pytest.mark.usefixtures("folder")
def test_the_average_of_a_checkpoint_is_exported_and_asked() -> None:
    run(LAST, "stages.2.end_average=true")
    shares = (0.5**0.5, 1 - 0.5**0.5)
    told = export_checkpoint(RUN, Path("out"), 11, averaged=True)
    assert told.startswith("out: the average at step 11 of runs/run, ")
    saved = tensors(11)
    name, theirs = "layers.0.feed_forward.up.weight", "model.layers.0.mlp.up_proj.weight"
    mean = sum(share * saved[f"average/{number:03}/{name}"] for number, share in enumerate(shares))
    np.testing.assert_allclose(load_file("out/model.safetensors")[theirs], mean, rtol=1e-5, atol=1e-7)
    assert open_model(RUN, 11, "bytes", averaged=True).title == "step 11 of runs/run, average"
    with pytest.raises(UsageError, match="the stage of this checkpoint keeps no average"):
        export_checkpoint(RUN, Path("other"), averaged=True)
    with pytest.raises(UsageError, match="which has no average"):
        open_model(Path("out"), None, "bytes", averaged=True)


@pytest.mark.usefixtures("folder")
def test_checkpoints_runs_and_folders_are_averaged_into_a_model_to_start_from() -> None:
    run("checkpoint.keep=100")
    export_checkpoint(RUN, Path("exported"), 9)
    told = average_models(["runs/run@12", "exported", "runs/run"], Path("soup"), [0.5, 0.25, 0.25])
    assert told.startswith("soup: 0.5 of runs/run@12, 0.25 of exported, 0.25 of runs/run; ")
    name, theirs = "layers.0.attention.query.weight", "model.layers.0.self_attn.q_proj.weight"
    each = [tensors(step)[f"weights/{name}"].astype(np.float64) for step in (12, 9, 19)]
    expected = (0.5 * each[0] + 0.25 * each[1] + 0.25 * each[2]).astype(np.float32)
    found = load_file("soup/model.safetensors")
    assert (found[theirs] == expected).all()
    assert found.keys() == load_file("exported/model.safetensors").keys()
    config = Path("run.toml").read_text()
    Path("run.toml").write_text(config.replace("layers = 1\nwidth = 32\nheads = 2\n", 'init = "soup"\n'))
    run("run.name=next", "stages.0.lr={ scale = 1e-30 }", *KEEP_ALL, stop_at=1)
    np.testing.assert_allclose(tensors(1, Path("runs/next"))[f"weights/{name}"], expected, rtol=1e-6)
    average_models(["exported", "exported", "exported"], Path("same"))
    one, other = (load_file(f"{folder}/model.safetensors") for folder in ("same", "exported"))
    assert all((one[key] == other[key]).all() for key in one)


@pytest.mark.usefixtures("folder")
def test_models_that_differ_are_not_averaged() -> None:
    run("checkpoint.keep=100")
    run("run.name=wide", "model.width=64", "stages.0.rope={ theta = 20_000 }", stop_at=1)
    cases = {
        (
            "runs/run",
            "runs/wide",
        ): "runs/wide: differs from runs/run: width is 64, head_dim is 32, ffn is 192, rope.theta "
        "is 20000.0. Average models of one shape, vocabulary and rotary positions.",
        ("runs/run", "runs/run@3"): "runs/run@3: differs from runs/run: rope.theta is 10000.0. Average models of one "
        "shape, vocabulary and rotary positions.",
        ("runs/run",): "average: one model is its own average. Give two or more.",
        (
            "runs/run",
            "runs/none",
        ): "runs/none: is not a folder. Give a run's folder, RUN@STEP, a checkpoint, or a Hugging Face folder.",
        ("runs/run", "runs/run@x"): 'runs/run@x: "x" is not a step. Write runs/run@4000, or runs/run for its last '
        "checkpoint.",
    }
    for models, message in cases.items():
        with pytest.raises(UsageError) as refusal:
            average_models(models, Path("out"))
        assert str(refusal.value) == message
    for weights, message in {
        (0.5,): "--weights: there are 1, and 2 models. Give one for each.",
        (0.5, 0.4): "--weights: are 0.5, 0.4, and add up to 0.9. Give numbers over 0 that add up to 1.",
        (1.5, -0.5): "--weights: are 1.5, -0.5. Give numbers over 0 that add up to 1.",
    }.items():
        with pytest.raises(UsageError) as refusal:
            average_models(["runs/run", "runs/run@11"], Path("out"), weights)
        assert str(refusal.value) == message
    assert not Path("out").exists()
    assert [path.name for path in Path().glob(".*.draft")] == []


@pytest.mark.usefixtures("folder")
def test_checkpoints_of_jax_keep_an_average_and_are_averaged() -> None:
    run(LAST, EMA, START, BOTH, 'engine.name="jax"', "checkpoint.keep=100")
    shutil.move("runs/run", "runs/whole")
    for stop_at in (5, 11):
        run(LAST, EMA, START, BOTH, 'engine.name="jax"', "checkpoint.keep=100", stop_at=stop_at)
    run(LAST, EMA, START, BOTH, 'engine.name="jax"', "checkpoint.keep=100")
    for name in ("whole", "run"):
        assert RunFolder(Path("runs") / name).last_step() == 19
        average_models([f"runs/{name}@18", f"runs/{name}"], Path(f"soup of {name}"), [0.9, 0.1])
        export_checkpoint(Path("runs") / name, Path(f"average of {name}"), averaged=True)
    for what in ("soup", "average"):
        one, other = (load_file(f"{what} of {name}/model.safetensors") for name in ("whole", "run"))
        assert all((one[key] == other[key]).all() for key in one)
