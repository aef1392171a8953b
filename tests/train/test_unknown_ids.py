"""A manifest that lies about a source's ids: one line and exit code 2 on both engines, training or evaluating."""

from pathlib import Path

import pytest

from tests.support.command_line import trivium
from tests.support.corpus import change_token, write_source
from trivium.run.events import read_events

CONFIG = """
[run]
name = "run"
[model]
layers = 1
width = 32
heads = 2
vocab = 500
[engine]
device = "cpu"
[sources.web]
kind = "tokens"
path = "web"
[sources.held]
kind = "tokens"
path = "held"
validation_only = true
[evaluate]
every = 1
[[stages]]
name = "one"
steps = 3
mixture = { web = 1.0 }
seq_len = 16
batch_size = 4
"""


@pytest.mark.parametrize("engine", ["torch", "jax"])
@pytest.mark.parametrize("source", ["web", "held"])
def test_a_run_ends_with_one_line_that_names_the_document(tmp_path: Path, engine: str, source: str) -> None:
    """The engines' padded embeddings have the id 500, and the vocabulary does not: no engine notices."""
    for name in ("web", "held"):
        write_source(tmp_path / name, [[10] * 8], "uint16")
    change_token(tmp_path / source, 37, 500, "uint16")
    (tmp_path / "run.toml").write_text(CONFIG)
    code, _, err = trivium(tmp_path, "train", "run.toml", f"engine.name={engine}")
    what = (
        f"source {source}: {source}/000.ds: document 3 has the token id 500 (its token 7), the vocabulary is 0 to 499"
    )
    assert code == 2
    assert err.count("\n") == 1
    assert what in err
    told = {event["event"] for event in read_events(tmp_path / "runs/run/events.jsonl")}
    assert "ended" not in told
    assert "evaluated" not in told or source == "web"
