"""The scripts in examples/ run, with warnings as errors, and its configs load."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.scripts import load_script
from trivium.config.load import load
from trivium.run.events import read_events
from trivium.text.train_tokenizer import train_on_texts
from trivium.train.trainer import Trainer

ROOT = Path(__file__).parent.parent
SCRIPTS = {
    "torch_loop.py": "resuming at step 6, stage general",
    "hf_trainer.py": "6 steps; stopped at 4 and resumed: the same weights",
    "midtrain_transformers.py": "trivium and transformers write the same 24 tokens",
}


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_runs_where_a_reader_would_run_it(script: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("data", "__pycache__"))
    done = subprocess.run(
        [sys.executable, "-W", "error", f"examples/{script}"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert SCRIPTS[script] in done.stdout


@pytest.mark.parametrize("config", sorted((ROOT / "examples").glob("*.toml")), ids=lambda path: path.name)
def test_a_config_loads_without_a_warning(config: Path) -> None:
    assert load(config).warnings == ()


@pytest.mark.slow
def test_a_small_twin_of_the_long_rows_is_trained_and_scored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config, data = ROOT / "examples" / "long_context.toml", Path("examples/data/long")
    load_script("examples", "make_long_texts.py").write_texts(data, short=300, long=12)
    train_on_texts([str(config)], data / "tokenizer", vocab=1024)
    small = ["model.width=16", "model.heads=1", "stages.short.steps=2", "stages.long.steps=2", "evaluate.questions=2"]
    less = [
        "engine.device=cpu",
        "evaluate.tokens=16Ki",
        "sources.texts.validation=0.3",
    ]
    warmups = [f"stages.{stage}.lr.warmup.steps=1" for stage in ("short", "long")]
    trainer = Trainer(config, [*small, *less, *warmups], show=False)
    trainer.run()
    batches = [trainer.loader.batch(step) for step in (0, 2)]
    assert [batch.tokens.shape[1] for batch in batches] == [512, 4096]
    assert all(batches[0].positions.max(axis=1) < 512)
    assert any(batches[1].positions.max(axis=1) > 3000)
    events = list(read_events(Path("runs/long-context/events.jsonl")))
    evaluated = {event["step"]: event["loss_by_position"] for event in events if event["event"] == "evaluated"}
    assert [list(by_position)[-1] for by_position in evaluated.values()] == ["2048", "2048"]
    scored = {event["step"]: list(event["scores"]) for event in events if event["event"] == "scored"}
    assert scored == {2: ["needle 512", "needle 4,096"], 4: ["needle 512", "needle 4,096"]}
