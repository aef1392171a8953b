"""Messages name the line of their key: in TOML, in YAML, and where an override has the value."""

import tomllib
from pathlib import Path

import pytest

from trivium.config.lines import KeyPlaces, overridden_keys, toml_lines, yaml_lines
from trivium.config.load import load
from trivium.errors import ConfigError, Problem

TOML = '''# a comment
[run]
name = "a"

[sources]
web = { kind = "tokens", path = "web" }

[sources."odd name"]
path = [
  "a",  # [not.a.table]
  "b",
]

[[stages]]
name = """
x = 1
"""
lr.scale = 2

[[stages]]
name = "last"
steps = 10

[stages.kl]
beta = 0.1
'''
YAML = """base: &base
  lr: 1
training/batch_size: 8
stages:
  - name: a
    opt: *base
  - name: b
again: *base
"""


WARNED = """[run]
name = "a"
[model]
size = "tiny"
vocab = 256
[sources.web]
kind = "tokens"
path = "web"

[sources.code]
kind = "tokens"
path = "code"

[[stages]]
name = "one"
steps = 10
mixture = { web = 1.0 }
"""


def test_every_key_of_a_toml_file_has_its_line() -> None:
    lines = toml_lines(TOML)
    assert lines["run", "name"] == 3
    assert lines["sources", "web"] == 6
    assert lines["sources", "odd name"] == 8
    assert lines["sources", "odd name", "path"] == 9
    assert lines["stages", 0, "name"] == 15
    assert lines["stages", 0, "lr", "scale"] == 18
    assert lines["stages", 1] == 20
    assert lines["stages", 1, "kl", "beta"] == 25
    assert not any("x" in path or "not" in path for path in lines)


def test_every_key_of_a_yaml_file_has_its_line_and_aliases_end() -> None:
    lines = yaml_lines(YAML)
    assert lines["base", "lr"] == 2
    assert lines["training/batch_size",] == 3
    assert lines["stages", 1, "name"] == 7
    assert lines["again",] == 8
    assert yaml_lines("a: &a [*a]\n")["a",] == 1


def test_a_problem_gets_the_line_of_its_key_or_of_the_table_around_it() -> None:
    def told(where: str, *overrides: str) -> str:
        places = KeyPlaces("f", TOML, overridden=overridden_keys(overrides, tomllib.loads(TOML)))
        named = places.name(Problem(where, "x"))
        assert places.name(named) == named
        return named.where

    assert told("f: stages[0].lr.scale") == "f:18: stages[0].lr.scale"
    assert told("f: stages[1].kl.direction") == "f:24: stages[1].kl.direction"
    assert told('f: sources."odd name".path[1]') == 'f:9: sources."odd name".path[1]'
    assert told("f: optimizer.lr") == "f: optimizer.lr"
    overridden = "f: stages[0].lr.scale (set on the command line)"
    for override in ("stages.0.lr.scale=3", "stages[0].lr.scale=3", "stages.0.lr={ scale = 3 }"):
        assert told("f: stages[0].lr.scale", override) == overridden
    assert told("f: stages[1].steps", "stages.last.steps=3") == "f: stages[1].steps (set on the command line)"
    assert told("f: stages[1].steps", "stages.1.lr.scale=3") == "f:22: stages[1].steps"
    assert told("f") == "f"
    slashes = KeyPlaces("f", YAML, is_yaml=True).name(Problem("f: training/batch_size", "x"))
    assert slashes.where == "f:3: training/batch_size"


def test_a_problem_without_the_file_gets_both_where_it_is_a_keys() -> None:
    def told(where: str) -> str:
        return KeyPlaces("run.toml", TOML).name(Problem(where, "x")).where

    assert told("stages[0].lr.scale") == "run.toml:18: stages[0].lr.scale"
    assert told("stages[1]: web") == "run.toml:20: stages[1]: web"
    assert told("sources.web") == "run.toml:6: sources.web"
    assert told("engine.parallel.tensor") == "run.toml: engine.parallel.tensor"
    for other in ("", "sources/web.jsonl", "model.safetensors", "run.json", "run.toml:3: run.name", "--dialect"):
        assert told(other) == other


def test_a_message_of_a_file_has_the_line(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('[run]\nname = "a"\n\n[[stages]]\nname = "one"\nstepz = 10\n')
    with pytest.raises(ConfigError) as caught:
        load(file)
    assert any(str(problem).startswith("run.toml:6: stages[0].stepz: unknown key") for problem in caught.value.problems)


def test_a_warning_has_the_line_too(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(WARNED)
    assert [warning.where for warning in load(file).warnings] == ["run.toml:10: sources.code"]
    overridden = load(file, ["sources.code.path=data/code"]).warnings
    assert [warning.where for warning in overridden] == ["run.toml:10: sources.code"]


def test_a_text_that_is_not_toml_is_shown_with_a_caret(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('[run]\nname "a"\n')
    with pytest.raises(ConfigError) as caught:
        load(file)
    said = str(caught.value)
    assert "is not valid TOML" in said
    assert said.endswith('in line 2.\n    name "a"\n         ^')


def test_a_text_that_is_not_yaml_is_one_problem(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("[run]\nname = a\n")
    with pytest.raises(ConfigError, match="is not valid YAML"):
        load(file)


def test_a_key_of_odd_signs_ends_the_search_for_its_line() -> None:
    places = KeyPlaces("run.toml", "a = 1")
    assert places.name(Problem("run.toml: a..]b[.", "is odd.")).where == "run.toml:1: a..]b[."
