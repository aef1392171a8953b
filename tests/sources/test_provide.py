"""A tokenizer that is not on disk: a gap of a plan, and trained or fetched where preparing is allowed."""

from pathlib import Path

import pytest

from tests.support.corpus import make_config
from tests.support.prepared import TEXTS, THREE_STEPS
from tests.support.texts import write_lines
from trivium.config.schema import Config
from trivium.errors import PlanError
from trivium.plan.make import make_plan
from trivium.sources.commands import prepare_sources


@pytest.fixture
def config(tmp_path: Path, own_cache: Path) -> Config:
    write_lines(tmp_path / "web.jsonl", TEXTS)
    sources = {"web": {"kind": "text", "path": str(tmp_path / "web.jsonl")}}
    return make_config(sources, [THREE_STEPS], tokenizer={"path": str(tmp_path / "tok"), "train": {"vocab": 280}})


def test_a_plan_has_a_gap_for_a_tokenizer_that_is_to_be_trained(config: Config, tmp_path: Path) -> None:
    plan = make_plan(config)
    assert plan.model is None
    reasons = [str(gap) for gap in plan.gaps]
    assert any(reason.startswith(f"sources.web: {tmp_path}/web.jsonl is not prepared yet") for reason in reasons)
    how = "trivium prepare CONFIG trains one of 280 tokens on the config's texts."
    assert f"tokenizer.path: {tmp_path}/tok does not exist yet: {how}" in reasons
    assert not (tmp_path / "tok").exists()


def test_preparing_trains_it_once(config: Config, tmp_path: Path) -> None:
    plan = make_plan(config, prepare=True)
    assert plan.model is not None
    assert plan.model.vocab == 280
    written = (tmp_path / "tok" / "tokenizer.json").stat().st_mtime_ns
    assert [line.partition(":")[0] for line in prepare_sources(config, None, 1)] == ["web"]
    assert (tmp_path / "tok" / "tokenizer.json").stat().st_mtime_ns == written


def test_without_text_there_is_nothing_to_train_on(tmp_path: Path) -> None:
    sources = {"talk": {"kind": "chat", "task": "spelling", "size": 5}}
    asked = make_config(sources, [THREE_STEPS], tokenizer={"path": str(tmp_path / "tok"), "train": {"vocab": 280}})
    with pytest.raises(PlanError) as caught:
        make_plan(asked, prepare=True)
    assert str(caught.value) == (
        'tokenizer.train: no source of kind = "text" has anything to train it on. Name a tokenizer that exists, or '
        'write tokenizer.kind = "bytes".'
    )
