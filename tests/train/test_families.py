"""A run that starts from a folder of another family trains it as it is, stretches it, and is exported as it was."""

from pathlib import Path

import pytest

from tests.support.training import write_sources
from trivium.ask.export import export_checkpoint
from trivium.engine.base import EngineSettings
from trivium.engine.make import make_engine
from trivium.model.folder import read_spec
from trivium.model.huggingface import read_family
from trivium.model.spec import ModelSpec, RopeSpec
from trivium.train.trainer import Trainer

SPEC = ModelSpec(
    layers=4,
    width=32,
    heads=4,
    kv_heads=2,
    head_dim=8,
    ffn=64,
    vocab=512,
    max_seq_len=32,
    qk_norm=True,
    qk_norm_joint=True,
    norm="after",
    window=8,
    sliding=(0, 1, 2),
    rope=RopeSpec(5e5),
)
CONFIG = """
[run]
name = "run"
[model]
init = "weights"
[sources.web]
kind = "tokens"
path = "web"
[optimizer]
name = "muon"
lr = 1e-3
[engine]
device = "cpu"
[[stages]]
name = "short"
steps = 2
mixture = { web = 1.0 }
seq_len = 32
batch_size = 2
[[stages]]
name = "long"
steps = 2
mixture = { web = 1.0 }
seq_len = 64
batch_size = 2
rope = { scaling = "yarn", factor = 2 }
"""


@pytest.mark.slow
def test_an_olmo3_is_trained_stretched_and_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_sources(tmp_path)
    make_engine(EngineSettings(SPEC, device="cpu")).export(tmp_path / "weights")
    assert read_family(tmp_path / "weights").name == "olmo3"
    (tmp_path / "run.toml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    trainer = Trainer("run.toml", show=False).run()
    assert trainer.plan.model == SPEC
    export_checkpoint(trainer.folder.path, Path("out"))
    found = read_spec(Path("out"))
    assert read_family(Path("out")).name == "olmo3"
    assert found.rope == RopeSpec(5e5, "yarn", 2.0, 32, sliding=RopeSpec(5e5))
    assert (found.window, found.sliding, found.max_seq_len) == (8, (0, 1, 2), 64)
