"""examples/own_model, installed by pip: its two models are one, and the command line trains them as any other."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.command_line import trivium
from tests.support.scripts import ROOT, make_data
from trivium.engine import installed
from trivium.model.spec import ModelSpec
from trivium.run.events import read_events

SPEC = ModelSpec(layers=4, width=32, heads=2, kv_heads=2, head_dim=16, ffn=64, vocab=50, max_seq_len=64)
SHORT = ["engine.device=cpu", "stages.0.steps=20", "stages.1.steps=4", "stages.0.seq_len=32", "stages.1.seq_len=32"]
IN_JAX = [
    "engine.name=jax",
    "model.family=own_model.flax_hybrid:Hybrid",
    "stages.1.loss=own_model.flax_hybrid:smoothed",
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that pip has installed the example into."""
    folder = tmp_path_factory.mktemp("site")
    source = folder.with_name("own_model_source")
    shutil.copytree(ROOT / "examples" / "own_model", source, ignore=shutil.ignore_patterns("build", "*.egg-info"))
    offline = ["--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", "--quiet", *offline, "--target", str(folder), str(source)]
    subprocess.run(command, check=True, timeout=120)
    return folder


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder with the example's config and data, and a package of the same name that must not run."""
    folder = tmp_path_factory.mktemp("here")
    shutil.copy(ROOT / "examples" / "own_model" / "hybrid.toml", folder)
    make_data().write_sources(folder / "examples" / "data")
    (folder / "own_model.py").write_text("raise SystemExit('code of the working folder')")
    return folder


def printed(site: Path, here: Path, *arguments: str, code: int = 0) -> str:
    """What a command prints where the packages of a folder are installed."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "path", [*sys.path, str(site)])
        forget()
        found, out, err = trivium(here, *arguments)
        forget()
    assert found == code, out + err
    return out + err


def forget() -> None:
    """Import the package again next time."""
    installed._found.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == "own_model"]:
        del sys.modules[name]


def kill_after(checkpoint: Path, site: Path, here: Path, *arguments: str) -> None:
    """Launch a command in a process of its own, and kill that once it has written a checkpoint."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), str(ROOT)])}
    command = [sys.executable, "-m", "trivium", *arguments]
    process = subprocess.Popen(command, cwd=here, env=environment, stdout=subprocess.DEVNULL)
    while process.poll() is None and not (checkpoint / "COMPLETE").is_file():
        time.sleep(0.005)
    process.kill()
    process.wait()


def losses(run: Path) -> dict[int, float]:
    return {event["step"]: event["loss"] for event in read_events(run / "events.jsonl") if event["event"] == "step"}


@pytest.fixture
def models(site: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """The two modules as they are installed."""
    monkeypatch.syspath_prepend(str(site))
    forget()
    from own_model import flax_hybrid, torch_hybrid  # type: ignore[import-not-found]

    return torch_hybrid, flax_hybrid


def test_both_hybrids_give_the_same_of_the_same_weights(models: tuple[Any, Any]) -> None:
    import jax
    import torch
    from flax import nnx

    in_torch, in_flax = models
    torch.manual_seed(0)
    one, other = in_torch.Hybrid(SPEC), in_flax.Hybrid(SPEC)
    weights = {name: parameter.detach().numpy() for name, parameter in one.named_parameters()}
    theirs = {"kernel": "weight", "scale": "weight", "embedding": "weight"}
    for path, part in nnx.to_flat_state(nnx.state(other)):
        *owner, kind = map(str, path)
        found = weights.pop(".".join([*owner, theirs.get(kind, kind)] if owner else [kind, "weight"]))
        part[...] = found.T if kind == "kernel" else found
    assert not weights
    tokens = np.arange(2 * 24).reshape(2, 24) % SPEC.vocab
    positions = np.concatenate([np.arange(9), np.arange(15)])[None].repeat(2, 0)
    documents = np.repeat([0, 1], [9, 15])[None].repeat(2, 0)
    given = tokens, positions, documents
    hidden = one(*map(torch.from_numpy, given)).detach().numpy()
    with jax.default_matmul_precision("highest"):
        np.testing.assert_allclose(np.asarray(other(*given)), hidden, atol=1e-5)
    # The second document alone gives what it gives behind the first.
    alone = one(*(torch.from_numpy(each[:, 9:]) for each in (tokens, positions, np.zeros_like(tokens))))
    np.testing.assert_allclose(alone.detach().numpy(), hidden[:, 9:], atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["torch", "jax"])
def test_the_command_line_trains_it_and_a_killed_run_resumes_exactly(engine: str, site: Path, here: Path) -> None:
    how = ["hybrid.toml", *SHORT, *(IN_JAX if engine == "jax" else []), "checkpoint.every=3"]
    family = "own_model.torch_hybrid" if engine == "torch" else "own_model.flax_hybrid"
    whole, killed = here / "runs" / f"{engine}-whole", here / "runs" / f"{engine}-killed"
    printed(site, here, "train", *how, f"run.name={whole.name}")
    kill_after(killed / "checkpoints" / "step-00000003", site, here, "train", *how, f"run.name={killed.name}")
    assert "resumes at step" in printed(site, here, "train", *how, f"run.name={killed.name}")
    assert losses(killed) == losses(whole)
    assert len(losses(whole)) == 24
    assert losses(whole)[20] < losses(whole)[1] - 1
    began = [event for event in read_events(whole / "events.jsonl") if event["event"] == "stage"]
    assert began[1]["changes"]["loss"] == [None, f"{family}:smoothed"]
    sampled = printed(site, here, "sample", str(killed), "--prompt", "The ", "--max-new-tokens", "4", "--device", "cpu")
    assert f"step 24 of {killed}: 106,944 parameters" in sampled


@pytest.mark.slow
def test_what_the_package_was_decides_whether_a_run_may_go_on(site: Path, here: Path, tmp_path: Path) -> None:
    how = ["train", "hybrid.toml", "engine.device=cpu", "stages.0.steps=2", "stages.1.steps=1", "run.name=changed"]
    plan = printed(site, here, "plan", "hybrid.toml").replace("\n", "")
    assert "model: own_model.torch_hybrid:Hybrid, 4 layers of 64" in plan
    assert "107k parameters" in plan
    assert "smooth: loss own_model.torch_hybrid:smoothed" in plan
    printed(site, here, *how)
    other = tmp_path / "site"
    shutil.copytree(site, other)
    module = other / "own_model" / "torch_hybrid.py"
    module.write_text(module.read_text().replace("linspace(0, 4", "linspace(0, 5"))
    refused = printed(other, here, *how, "stages.1.steps=2", code=2)
    assert "cannot resume at step 3: model.family.source was" in refused
    assert 'Put the package back as it was, or start a new run from the checkpoint: model.init = "runs/changed".' in (
        refused
    )
    missing = printed(tmp_path / "empty", here, "sample", "runs/changed", code=2)
    assert missing == (
        'model.family: is "own_model.torch_hybrid:Hybrid", but own_model is not installed. Install the package that '
        "has it. (own_model.py in the working folder is not imported: pip install its package.)\n"
    )
    more = ["model.init=runs/changed", "run.name=more", "stages.0.steps=1", "stages.1.steps=1", "engine.device=cpu"]
    (here / "more.toml").write_text(
        "\n".join(line for line in (here / "hybrid.toml").read_text().splitlines() if not line.startswith(LEFT_OUT))
    )
    assert "weights from runs/changed" in printed(site, here, "train", "more.toml", *more)


LEFT_OUT = ("family", "layers", "width", "vocab")  # what a run takes from the one that it starts from
