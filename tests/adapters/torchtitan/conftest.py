"""Plans of a config in three stages, and torchtitan's description of a model, as far as a plan is compared with it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.titan_runs import STAGES
from tests.support.training import write_sources
from trivium.config.load import load
from trivium.plan.make import make_plan
from trivium.plan.plan import CompletePlan

SHAPE = ["model.layers=2", "model.width=64", "model.heads=4", "model.ffn=128", "model.vocab=512", "model.norm_eps=1e-5"]


@pytest.fixture
def stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with sources and run.toml; the test works there."""
    write_sources(tmp_path)
    (tmp_path / "run.toml").write_text(STAGES)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def planned(*overrides: str) -> CompletePlan:
    """The plan of run.toml."""
    return make_plan(load("run.toml", [*SHAPE, *overrides]).config).complete()


def their_model(**keys: Any) -> Any:
    """torchtitan's `Decoder.Config` of the same model: the names that it has there, and nothing else."""
    rope = {"theta": 10_000, "scaling": "none", "rope_factor": 1.0}
    attention = SimpleNamespace(n_heads=4, n_kv_heads=None, head_dim=None, rope=SimpleNamespace(**rope))
    layer = SimpleNamespace(attention=attention, feed_forward=SimpleNamespace(w1=SimpleNamespace(out_features=128)))
    known = {"dim": 64, "vocab_size": 512, "layers": [layer, layer], "first_attention": attention, "max_seq_len": 1024}
    known |= {"enable_weight_tying": False, "norm": SimpleNamespace(eps=1e-5)}
    return SimpleNamespace(**known | keys)
