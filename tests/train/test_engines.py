"""One run on both engines: the same rows, and from the same weights the same losses at every step."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.events import steps_taken
from tests.support.training import WEB_AND_CODE, write_sources
from trivium.engine.base import EngineSettings
from trivium.engine.make import make_engine
from trivium.model.spec import ModelSpec
from trivium.train.trainer import Trainer

VOCAB = 512
SPEC = ModelSpec(layers=2, width=32, heads=4, kv_heads=2, head_dim=8, ffn=64, vocab=VOCAB, max_seq_len=32, init_std=0.2)
CONFIG = (
    """
[model]
init = "weights"
vocab = 512
[optimizer]
lr = 0.001
grad_clip = 1.0
[schedule]
shape = "wsd"
warmup = { steps = 10 }
[engine]
device = "cpu"
[evaluate]
every = 50
tokens = 200
"""
    + WEB_AND_CODE
    + """
[[stages]]
name = "general"
steps = 40
mixture = { web = 0.75, code = 0.25 }
seq_len = 16
batch_size = 8
[[stages]]
name = "anchored"
steps = 20
mixture = { web = 0.5, code = 0.5 }
seq_len = 16
batch_size = 8
packing = "concat"
kl = { beta = 0.5 }
loss_weight = { code = 0.5 }
[[stages]]
name = "long"
steps = 20
mixture = { web = 1.0 }
seq_len = 32
batch_size = 4
rope = { theta = 50_000 }
packing = "pad"
lr = { warmup = { steps = 10 } }
z_loss = 1e-4
goldfish = { k = 4, h = 3 }
reset_optimizer = true
[[stages]]
name = "back"
steps = 20
mixture = { code = 1.0 }
seq_len = 32
batch_size = 4
document_mask = false
kl = { beta = 0.2, direction = "reverse" }
"""
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two sources, weights in Hugging Face form and a config of four stages; the tests work in it."""
    write_sources(tmp_path)
    make_engine(EngineSettings(SPEC, device="cpu")).export(tmp_path / "weights")
    (tmp_path / "run.toml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    return tmp_path


# The learning rate is one at which nothing is learnt by heart, and the reset stage warms up again. Adam divides a
# gradient by its own size: of a model that knows its rows (at three times this rate) gradients are mostly rounding, and
# the engines' losses part by 2e-4 to 5e-4 after the reset, where they differ by 1e-7 here.
def run(engine: str, *overrides: str) -> list[dict[str, Any]]:
    """Events of every step of a run on an engine."""
    said = [f"run.name={engine}", f"engine.name={engine}", *overrides]
    trainer = Trainer("run.toml", said, show=False).run()
    return list(steps_taken(trainer.folder.events).values())


@pytest.mark.slow
def test_four_stages_give_the_same_losses_at_each_of_a_hundred_steps(folder: Path) -> None:
    expected, found = run("torch"), run("jax")
    assert len(expected) == len(found) == 100
    for ours, theirs in zip(found, expected, strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-4)
        assert ours["loss_by_source"] == pytest.approx(theirs["loss_by_source"], rel=1e-4)
        assert ours["loss_tokens_by_source"] == theirs["loss_tokens_by_source"]
        assert ours["extra"] == pytest.approx(theirs["extra"], rel=1e-3, abs=1e-5)
    assert {step["step"]: step["compilations"] for step in found if step["compilations"]} == {1: 1, 41: 1, 61: 1, 81: 1}
