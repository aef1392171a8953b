"""The rule for all dialects: a key is honoured, refused, or known to decide nothing; and how that is told."""

import json
from collections.abc import Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from tests.support.command_line import trivium
from tests.support.dialects import EXAMPLES
from trivium.config import DIALECT_NAMES
from trivium.config.dialects import dialect_of, translate
from trivium.config.load import load, read_tables

ROOT = Path(__file__).parents[3]
FILES = {
    "torchtitan": ROOT / "docs/data_stages/configs/data_stages_test.toml",
    "kempnerforge": EXAMPLES / "kempnerforge.toml",
    "theseus": EXAMPLES / "theseus.yaml",
    "nanotron": EXAMPLES / "nanotron.yaml",
}
TITAN = """
[model]
name = "llama2"
[lr_scheduler]
warmup_steps = 2
[job]
description = "a test"
[training]
steps = 10
local_batch_size = 4
dataset_type = "nanoset"
dataset_folders = ["data/web"]
seq_len = 16
"""
RANKS = "is 4 rows on each rank: taken as 1 rank. For more, give --world-size 8, or training.global_batch_size."
IDLE = 'has no effect here (it is "a test"): it decides no number of the run.'


def inner_tables(raw: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The paths of all tables in a config, its own included."""
    if isinstance(raw, Mapping):
        yield path
    entries = raw.items() if isinstance(raw, Mapping) else enumerate(raw) if isinstance(raw, list) else ()
    for key, inner in entries:
        yield from inner_tables(inner, (*path, key))


def whole_tables(dialect: str) -> set[tuple[str, ...]]:
    """The tables of a tool of which no key decides anything."""
    known: Mapping[str, Mapping[str, str]] = getattr(dialect_of(dialect), "WITHOUT_EFFECT", {})
    return {tuple(table.split(".")) for table, reasons in known.items() if "*" in reasons}


def test_every_dialect_has_an_example() -> None:
    assert set(FILES) == set(DIALECT_NAMES)


@pytest.mark.parametrize("dialect", FILES)
def test_a_key_that_is_not_known_is_refused_in_every_table(dialect: str) -> None:
    raw = read_tables(FILES[dialect])
    assert not translate(raw, "x", dialect, world_size=8).problems
    for path in inner_tables(raw):
        changed: Any = deepcopy(raw)
        table = changed
        for part in path:
            table = table[part]
        table["odd_key"] = "odd"
        found = translate(changed, "x", dialect, world_size=8)
        if any(path[: len(idle)] == idle for idle in whole_tables(dialect)):
            assert not found.problems
            assert any("odd_key" in note.where for note in found.notes.decides_nothing), path
        else:
            assert any("odd" in str(problem) for problem in found.problems), path


def test_problems_of_all_layers_come_at_once(tmp_path: Path) -> None:
    """A wrong weight, a flavor without a shape, an unknown key, and a learning rate that only our schema refuses."""
    file = tmp_path / "their.toml"
    stage = '[[training.data_stages]]\nname = "a"\nstart_step = 0\ndataset_type = "nanoset"\nseq_len = 16\n'
    weights = 'dataset_folders = ["a", "b"]\ndataset_weights = [0.5, 0.4]\n'
    rest = "[optimizer]\nlr = -1.0\nodd_key = 1\n"
    head = TITAN.split("dataset_type")[0].replace("[model]", '[model]\nflavor = "3B"')
    file.write_text(f"{head}{stage}{weights}{rest}")
    code, out, err = trivium(tmp_path, "plan", "their.toml")
    assert (code, out) == (2, "")
    assert [line.split(": ")[1] for line in err.splitlines()] == [
        "training.data_stages[0].dataset_weights",
        "optimizer.odd_key",
        "model.flavor",
        "optimizer.lr",
    ]


def test_a_plan_tells_what_differs_and_only_on_request_what_decides_nothing(tmp_path: Path) -> None:
    (tmp_path / "their.toml").write_text(TITAN)
    short, long = (trivium(tmp_path, "plan", "their.toml", *options)[1] for options in ((), ("--verbose",)))
    plain = [" ".join(out.split()) for out in (short, long)]
    assert all(f"differs from theirs their.toml: training.local_batch_size: {RANKS}" in out for out in plain)
    assert "1 key of theirs decides nothing here: --verbose lists it." in plain[0]
    assert f"decides nothing their.toml: job.description: {IDLE}" in plain[1]
    assert IDLE not in plain[0]
    assert "--verbose" not in plain[1]


def test_a_plan_as_json_has_both_groups(tmp_path: Path) -> None:
    (tmp_path / "their.toml").write_text(TITAN)
    plan = json.loads(trivium(tmp_path, "plan", "their.toml", "--json")[1])
    assert plan["differs"] == [f"their.toml: training.local_batch_size: {RANKS}"]
    assert plan["decides_nothing"] == [f"their.toml: job.description: {IDLE}"]


def test_what_convert_prints_has_the_notes_as_comments_and_loads(tmp_path: Path) -> None:
    (tmp_path / "their.toml").write_text(TITAN)
    short, long = (trivium(tmp_path, "convert", "their.toml", *options)[1] for options in ((), ("-v",)))
    assert short.startswith(f"# differs from theirs\n#   their.toml: training.local_batch_size: {RANKS}\n[run]\n")
    assert f"# decides nothing\n#   their.toml: job.description: {IDLE}\n" in long
    assert "# decides nothing" not in short
    (tmp_path / "ours.toml").write_text(long)
    assert load(tmp_path / "ours.toml").config == load(tmp_path / "their.toml").config


def test_the_page_of_a_plan_has_both_groups(tmp_path: Path) -> None:
    (tmp_path / "their.toml").write_text(TITAN)
    trivium(tmp_path, "plan", "their.toml", "--html", "plan.html")
    page = (tmp_path / "plan.html").read_text()
    assert "taken as 1 rank" in page
    assert "it decides no number of the run" in page


def test_our_own_config_has_no_notes(tmp_path: Path) -> None:
    ours = {
        "run": {"name": "ours"},
        "model": {"size": "tiny"},
        "sources": {"web": {"kind": "tokens", "path": "web"}},
        "stages": [{"name": "only", "steps": 3}],
    }
    (tmp_path / "ours.toml").write_text(tomli_w.dumps(ours))
    assert "theirs" not in trivium(tmp_path, "plan", "ours.toml")[1]
