"""`trivium plan --on` and `trivium check`: devices and ranks that are not here."""

import json
from pathlib import Path

import pytest

from tests.support.command_line import trivium

CONFIG = """
[run]
name = "large"
[model]
layers = 32
width = 256
heads = 4
vocab = 1024
[sources.web]
kind = "tokens"
path = "nowhere"
[engine]
micro_batch_size = 1
[[stages]]
name = "main"
steps = 1000
seq_len = 512
batch_size = 16
mixture = { web = 1.0 }
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "run.toml").write_text(CONFIG, encoding="utf-8")
    return tmp_path


def test_a_plan_on_devices_is_a_table_a_page_and_json(folder: Path) -> None:
    code, out, err = trivium(folder, "plan", "run.toml", "--on", "8xH100", "--price", "2", "--mfu", "0.25")
    assert (code, err) == (0, "")
    assert "on 8 x H100 (84.8 GB, 990 TFLOP/s, $2.00 an hour each), at 25% of the peak" in out
    assert "GB of a rank  main\n" in out
    assert "FLOPs/token" in out
    code, out, _ = trivium(folder, "plan", "run.toml", "--on", "8xH100", "--json", "--html", "plan.html")
    assert code == 0
    plan = json.loads(out)
    forecast = plan["forecast"]
    assert forecast["fits"] is True
    assert forecast["layout"] == {"replicate": 1, "shard": 8, "context": 1, "tensor": 1}
    (stage,) = forecast["stages"]
    assert stage["flops_per_token"] == plan["stages"][0]["flops_per_token"]
    assert stage["memory"]["total"] == sum(size for kind, size in stage["memory"].items() if kind != "total")
    page = (folder / "plan.html").read_text(encoding="utf-8")
    assert "Time and cost" in page
    assert "8 x H100" in page


def test_ranks_that_are_not_here_take_a_step(folder: Path) -> None:
    code, out, err = trivium(folder, "check", "run.toml", "--ranks", "16")
    assert (code, err) == (0, "")
    said = "16 ranks (replicate 1 x shard 16 x tensor 1): ranks 0, 8, 15 took a step of every stage stage rank 0"
    assert " ".join(out.split()).startswith(said)
    code, _, err = trivium(folder, "check", "run.toml", "--ranks", "24")
    assert code == 2
    assert err == "stages[0].batch_size: is 16 rows, which 24 ranks cannot share evenly. Write 24.\n"


def test_a_plan_without_devices_has_no_forecast_and_still_counts_flops(folder: Path) -> None:
    code, out, _ = trivium(folder, "plan", "run.toml", "--json")
    assert code == 0
    plan = json.loads(out)
    assert "forecast" not in plan
    assert plan["model"]["parameters"] > 0 < plan["stages"][0]["flops_per_token"]
