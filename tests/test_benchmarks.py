"""The benchmarks run from start to end at a small size; what they measure is not asserted."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def run(script: str, *options: str) -> str:
    """What a benchmark prints."""
    command = [sys.executable, str(ROOT / "benchmarks" / script), *options]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_loader_compares_trivium_with_the_copy_of_rows_and_names_every_peer() -> None:
    printed = run("loader.py", "--small", "--seconds", "0.05", "--tokens", "200_000")
    for name in ("trivium, in sequence", "trivium, at random steps", "NumPy row copy", "Megatron-core", "grain"):
        assert f"\n{name}" in printed
    assert "simulated, step 10" in printed


@pytest.mark.slow
def test_kl_measures_every_direction_beside_plain_steps() -> None:
    printed = run("kl.py", "--small")
    for name in ("plain", "forward", "reverse", "nll_gap"):
        assert f"\n  {name}" in printed


@pytest.mark.slow
def test_generate_compares_with_transformers_greedily_and_sampled() -> None:
    printed = run("generate.py", "--small")
    for name in (" 2 x 8    greedy", " 2 x 8    sampled"):
        assert f"\n  {name}" in printed


@pytest.mark.slow
def test_checkpoint_measures_saves_beside_a_copy_in_memory() -> None:
    printed = run("checkpoint.py", "--small")
    for name in (
        "copy of the state in memory",
        "stands still, in the background",
        "stands still, in the foreground",
        "load",
    ):
        assert f"\n  {name}" in printed


@pytest.mark.slow
def test_scale_measures_every_size() -> None:
    printed = run("scale.py", "--small")
    assert "1,000,000 documents" in printed
    assert "20 x 10,000, 6 stages" in printed


@pytest.mark.slow
def test_step_measures_loops_documents_resumes_and_memory() -> None:
    printed = run("step.py", "--small")
    for part in ("(a) tokens/s", "(b) model FLOP/s", "(c) seconds", "(d) seconds", "(e) peak memory"):
        assert f"\n{part}" in printed
    for name in ("trivium, Trainer", "trivium, bare loop", "nanoGPT-style", "transformers Llama"):
        assert f"\n  {name}" in printed


@pytest.mark.slow
def test_step_measures_an_average_a_goldfish_mask_and_loss_weights() -> None:
    printed = run("step.py", "--extras", "--small")
    for name in ("plain, a second time", "average (ema)", "goldfish mask", "loss weights"):
        assert f"\n  {name}" in printed


@pytest.mark.slow
def test_step_measures_both_engines_and_what_was_compiled() -> None:
    printed = run("step.py", "--engines", "--small")
    for name in ("torch, Trainer", "torch, bare loop", "jax, Trainer", "jax, bare jitted loop", "jax beside torch"):
        assert f"\n  {name}" in printed
    assert "\n  compiled at the first step: 1 in " in printed
    assert printed.splitlines()[-1].endswith("; at later ones: 0")


@pytest.mark.slow
def test_prepare_is_compared_with_every_other_way() -> None:
    printed = run("prepare.py", "--small", "--mb", "0.5")
    for name in ("trivium prepare", "datatrove", "datasets.map", "bare loop"):
        assert f"\n{name}" in printed


@pytest.mark.slow
def test_ranks_compares_two_ranks_with_a_bare_loop() -> None:
    printed = run("ranks.py", "--small")
    for name in ("trivium, Trainer", "bare FSDP2 loop", "ratio"):
        assert f"\n  {name}" in printed


@pytest.mark.slow
def test_context_compares_ranks_that_share_rows_with_ranks_that_do_not() -> None:
    printed = run("context.py", "--small")
    for name in ("rows of their own: ", "gather, seconds over", "ulysses, MB over"):
        assert f"\n  {name}" in printed


@pytest.mark.slow
def test_save_plan_measures_a_layout() -> None:
    assert "\n  256 ranks: 4 x 8 x 8" in run("save_plan.py", "--small")
