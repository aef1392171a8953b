"""`trivium init` as a whole: the config that it writes loads, plans and says why; and what it refuses."""

import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.init.conftest import prose, write_jsonl
from tests.support.tokenizers import piece_level, write_json
from trivium.config.load import load
from trivium.errors import UsageError
from trivium.forecast.forecast import CONTEXT
from trivium.init import fit
from trivium.init.choose import MOST_EPOCHS, annealed, held_out, rounded_shares
from trivium.init.init import init_run
from trivium.init.look import LookError
from trivium.init.machine import ThisMachine
from trivium.plan.make import make_plan
from trivium.text.tokenizer import ByteTokenizer
from trivium.tokenfiles.write import DsWriter


@pytest.fixture
def out(tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return Path("run.toml")


def test_a_mixed_folder_gets_three_stages_that_plan(mixed: Path, out: Path, laptop: ThisMachine) -> None:
    init_run(mixed, out, machine=laptop)
    plan = make_plan(load(out).config, prepare=True)
    assert [stage.name for stage in plan.stages] == ["general", "anneal", "talk"]
    assert not plan.gaps
    assert plan.warnings == ()
    assert {name for name, source in plan.sources.items() if source.held_out is not None} == {
        "books",
        "web",
        "src",
        "chats",
    }


def test_every_value_has_a_reason(mixed: Path, out: Path, laptop: ThisMachine) -> None:
    init_run(mixed, out, machine=laptop)
    lines = out.read_text().splitlines()
    without = [
        line
        for before, line in zip(["", *lines], lines, strict=False)
        if " = " in line and "#" not in line and not before.startswith("#") and not line.startswith("path")
    ]
    assert without == []
    assert max(map(len, lines)) <= 120
    assert tomllib.loads("\n".join(lines))["tokenizer"] == {"kind": "bytes"}


def test_enough_text_has_its_tokenizer_trained(tmp_path: Path, out: Path, laptop: ThisMachine) -> None:
    write_jsonl(tmp_path / "texts" / "all.jsonl", [{"text": prose(n, 2000)} for n in range(120)])
    choice = init_run(tmp_path / "texts", out, machine=laptop)
    tables = tomllib.loads(out.read_text())
    assert tables["tokenizer"] == {"path": "texts-tokenizer", "train": {"vocab": choice.tokenizer.vocab}}
    assert choice.tokens <= MOST_EPOCHS * 1.01 * choice.sources[0].tokens
    assert [gap.where for gap in make_plan(load(out).config).gaps] == ["sources.all", "tokenizer.path"]


def test_a_tokenizer_in_the_folder_is_taken(mixed: Path, out: Path, laptop: ThisMachine) -> None:
    write_json(mixed / "tok" / "tokenizer.json", piece_level())
    (mixed / "chats.jsonl").unlink()
    init_run(mixed, out, machine=laptop)
    assert tomllib.loads(out.read_text())["tokenizer"] == {"path": f"{mixed}/tok"}
    write_json(mixed / "other" / "tokenizer.json", piece_level())
    with pytest.raises(UsageError, match=r"has several tokenizers: .* Say which: --tokenizer "):
        init_run(mixed, Path("other.toml"), machine=laptop)


def write_tokens(folder: Path, tokenizer: str) -> None:
    folder.mkdir(parents=True)
    with DsWriter(folder / "00000", "uint16", tokenizer, with_loss=False, with_tasks=False) as writer:
        writer.add(np.repeat(np.arange(97, 137, dtype=np.uint32), 50), np.full(40, 50, np.int64))


def test_token_files_decide_the_tokenizer(tmp_path: Path, out: Path, laptop: ThisMachine) -> None:
    write_tokens(tmp_path / "data" / "a", ByteTokenizer().fingerprint)
    init_run(tmp_path / "data", out, machine=laptop)
    assert tomllib.loads(out.read_text())["tokenizer"] == {"kind": "bytes"}
    assert make_plan(load(out).config).complete().total_steps > 0
    write_tokens(tmp_path / "data" / "b", "gpt2")
    with pytest.raises(LookError) as caught:
        init_run(tmp_path / "data", Path("other.toml"), machine=laptop)
    assert str(caught.value).splitlines()[0] == (
        f"{tmp_path}/data: token files of several tokenizers cannot be one model's: an id means another text in each. "
        "Give one of these folders."
    )


def test_token_files_of_no_known_tokenizer_have_a_vocabulary(tmp_path: Path, out: Path, laptop: ThisMachine) -> None:
    (tmp_path / "data").mkdir()
    np.save(tmp_path / "data" / "web.npy", np.arange(9000, dtype=np.uint16) % 500)
    init_run(tmp_path / "data", out, machine=laptop)
    tables = tomllib.loads(out.read_text())
    assert tables["model"]["vocab"] == 500
    assert "tokenizer" not in tables
    assert make_plan(load(out).config).complete().total_steps > 0
    (tmp_path / "data" / "page.txt").write_text(prose(1, 500))
    with pytest.raises(UsageError, match="token files do not name their tokenizer, and text is text"):
        init_run(tmp_path / "data", Path("other.toml"), machine=laptop)


def test_where_a_config_may_not_be_written(mixed: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out.write_text("mine")
    with pytest.raises(UsageError, match=r"--out: run.toml exists already. Name another file, or remove it."):
        init_run(mixed, out)
    monkeypatch.chdir(mixed)
    with pytest.raises(UsageError, match="what a run writes would be read as text the next time"):
        init_run(Path(), Path("new.toml"))
    with pytest.raises(UsageError, match=r"--minutes: is -1. Give the minutes that training may take, such as 10."):
        init_run(mixed, Path("new.toml"), minutes=-1)


def test_more_time_and_text_give_a_larger_model(tmp_path: Path, out: Path) -> None:
    write_jsonl(tmp_path / "texts" / "all.jsonl", [{"text": prose(n, 4000)} for n in range(150)])
    small = init_run(tmp_path / "texts", Path("a.toml"), minutes=0.2, machine=ThisMachine(2, 10**10))
    large = init_run(tmp_path / "texts", Path("b.toml"), minutes=600, machine=ThisMachine(2, 10**10))
    assert small.spec.parameters < large.spec.parameters
    assert small.seconds <= 0.21 * 60 or small.rung.width == 64


def test_passes_are_made_smaller_until_they_fit(
    mixed: Path, out: Path, laptop: ThisMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    choice = replace(init_run(mixed, out, machine=laptop), rows=32, machine=replace(laptop, memory=1_000_000_000))
    monkeypatch.setattr(fit, "measured", lambda each, _: 300_000_000 * (each.micro_rows or each.rows))
    assert fit.fitted(choice, out).micro_rows == 2
    assert fit.fitted(replace(choice, machine=laptop), out).micro_rows is None  # arithmetic alone says that it fits


@pytest.mark.slow
def test_the_memory_of_a_choice_is_that_of_the_real_step(mixed: Path, out: Path, laptop: ThisMachine) -> None:
    choice = init_run(mixed, out, machine=laptop)
    assert 0 < fit.measured(choice, out) - CONTEXT < choice.memory  # the bound by arithmetic is above


@pytest.mark.parametrize(("documents", "expected"), [(23, None), (24, 0.2), (200, 0.03), (10**6, 0.01)])
def test_held_out_documents_are_few_and_never_none(documents: int, expected: float | None) -> None:
    assert held_out(documents, 10**6) == expected


def test_small_sources_weigh_more_in_the_end_but_are_not_read_too_often() -> None:
    sizes = {"web": 900, "code": 90, "notes": 10}
    few = annealed(sizes, read=500)
    assert few["notes"] > 0.05
    assert sum(few.values()) == pytest.approx(1)
    many = annealed(sizes, read=3400)
    assert many["notes"] * 0.2 * 3400 <= 10 * MOST_EPOCHS - 0.8 * 34 + 1e-6
    assert sum(rounded_shares({"a": 1 / 3, "b": 1 / 3, "c": 1 / 3}).values()) == 1.0


def test_a_few_words_are_too_few(tmp_path: Path, out: Path, laptop: ThisMachine) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt").write_text(prose(1, 20))
    with pytest.raises(UsageError) as caught:
        init_run(tmp_path / "data", out, machine=laptop)
    assert str(caught.value).endswith("tokens, too few to train on. Put more text into it.")
