"""The card beside exported weights, of a run as people export it."""

import json
import os
from pathlib import Path

import pytest
import yaml

from tests.support.command_line import trivium
from tests.support.training import BYTE_RUN
from trivium.publish.card import model_card
from trivium.train.trainer import Trainer

STAGES = """
validation = 0.2
[evaluate]
every = 2
tokens = 200
tasks = ["spelling"]
tasks_every = 2
questions = 2
max_new_tokens = 4
[sources.talk]
kind = "chat"
task = "spelling"
size = 20
[[stages]]
name = "read"
steps = 2
mixture = { pages = 1.0 }
seq_len = 64
batch_size = 2
average = { ema = 0.9 }
[[stages]]
name = "talk | more"
steps = 2
mixture = { pages = 0.5, talk = 0.5 }
seq_len = 64
batch_size = 2
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("card")
    (folder / "run.toml").write_text(BYTE_RUN.replace('"pages.jsonl"', f'"{folder}/pages.jsonl"') + STAGES)
    text = json.dumps({"text": "The tide comes in and goes out. " * 20}) + "\n"
    (folder / "pages.jsonl").write_text(text * 20)
    before = Path.cwd()
    os.chdir(folder)
    try:
        Trainer("run.toml", show=False).run()
    finally:
        os.chdir(before)
    return folder


@pytest.mark.slow
def test_a_card_has_the_recipe_the_data_and_the_figures(root: Path) -> None:
    card = model_card(root / "runs/small")
    _, front, text = card.split("---\n", 2)
    assert yaml.safe_load(front) == {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["trivium"],
    }
    for title in (
        "# small",
        "## Stages",
        "## What each stage reads",
        "## Sources",
        "## Validation at step 4",
        "## Scores",
    ):
        assert f"\n{title}\n" in text, title
    assert "these are its weights at step 4 of 4, after 512 tokens" in text
    assert "| talk \\| more | [2, 4) |" in text
    assert '"pages.jsonl"' in text
    assert str(root) not in card


@pytest.mark.slow
def test_an_export_has_its_card_and_a_checkpoint_by_itself_a_short_one(root: Path) -> None:
    code, _, told = trivium(root, "export", "runs/small", "out", "--weights", "average")
    assert code == 0, told
    assert "its averaged weights at step 4" in (root / "out/README.md").read_text()
    alone = root / "elsewhere/copied/step-00000004"
    alone.parent.mkdir(parents=True)
    os.rename(root / "runs/small/checkpoints/step-00000004", alone)
    try:
        card = model_card(alone)
    finally:
        os.rename(alone, root / "runs/small/checkpoints/step-00000004")
    assert "## Stages" not in card
    assert "## Config" in card


@pytest.mark.slow
def test_a_run_is_exported_as_gguf(root: Path) -> None:
    out = root / "small.gguf"
    code, printed, told = trivium(root, "export", "runs/small", "small.gguf", "--gguf-type", "f16")
    assert code == 0, told
    assert printed.startswith("small.gguf: step 4 of ")
    assert out.read_bytes().startswith(b"GGUF")
    assert [path.name for path in root.iterdir() if path.name.startswith(".")] == []
    code, _, told = trivium(root, "export", "runs/small", "small.gguf")
    assert (code, told) == (2, "small.gguf: exists. Name a file that does not exist yet.\n")
    code, _, told = trivium(root, "export", "runs/small", "folder", "--gguf-type", "f16")
    assert code == 2
    assert "does not end with .gguf" in told
