"""Credentials in addresses are used, and neither kept nor shown."""

import json
from pathlib import Path

import pytest

from tests.support.command_line import trivium
from tests.support.configs import BASE
from trivium.config.load import load_config
from trivium.config.redact import redact
from trivium.errors import ConfigError
from trivium.plan.export import plan_json
from trivium.plan.make import make_plan
from trivium.sources.stream.prefetch import described
from trivium.train.resume import raw_config

ADDRESS = "https://me:hunter2@host.org/a.jsonl?x=1&X-Amz-Signature=hunter3&y=2"
KEPT = "https://***@host.org/a.jsonl?x=1&X-Amz-Signature=***&y=2"
STREAM = f"""
[sources.far]
kind = "stream"
dataset = "{ADDRESS}"
[tokenizer]
kind = "bytes"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "run.toml"
    text = BASE.replace("web = 0.8, code = 0.2", "far = 0.5, web = 0.3, code = 0.2") + STREAM
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (ADDRESS, KEPT),
        ("error at s3://key:secret@bucket/a, and more", "error at s3://***@bucket/a, and more"),
        ("https://hf.co/a?token=abc", "https://hf.co/a?token=***"),
        ("https://host/a@b?page=2", "https://host/a@b?page=2"),
        ("me@host.org", "me@host.org"),
        ("name/on-the-hub", "name/on-the-hub"),
    ],
)
def test_credentials_are_hidden_and_the_rest_stays(text: str, shown: str) -> None:
    assert redact(text) == shown == redact(shown)


def test_nothing_that_is_kept_or_shown_has_them(file: Path) -> None:
    config = load_config(file)
    assert getattr(config.sources["far"], "dataset") == ADDRESS  # noqa: B009  the kind has it, not its base
    assert config.sources["far"].where == KEPT
    plan = make_plan(config)
    kept = json.dumps([raw_config(config), plan_json(plan), plan.record(0)])
    assert "hunter" not in kept
    assert KEPT in kept
    assert "hunter" not in described(OSError(f"{ADDRESS} did not answer"))
    _, out, err = trivium(file.parent, "plan", "run.toml", "--html", "plan.html")
    assert "hunter" not in out + err + (file.parent / "plan.html").read_text()


def test_a_config_that_was_kept_without_them_asks_for_them(file: Path) -> None:
    file.write_text(file.read_text().replace(ADDRESS, KEPT))
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    what = f"is {KEPT}, of which the credentials were not kept. Write it again, with them."
    assert str(caught.value) == f"run.toml:29: sources.far.dataset: {what}"
