"""Config files: TOML, or YAML of plain values in which every key stands once."""

from pathlib import Path

import pytest
import tomli_w

from trivium.config.load import load, read_tables
from trivium.config.read_yaml import parse_yaml
from trivium.errors import ConfigError


def refusal(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        read_tables(path)
    return str(caught.value).removeprefix(f"{path}: ")


def test_yaml_is_read_as_toml_is(tmp_path: Path) -> None:
    tables = {"a": 1, "b": {"c": [1.5, "x"], "d": True}, "e": [{"f": 3e-4}]}
    (tmp_path / "x.toml").write_text(tomli_w.dumps(tables))
    (tmp_path / "x.YML").write_text("a: 1\nb: {c: [1.5, x], d: true}\ne:\n- f: 3e-4\n")
    assert read_tables(tmp_path / "x.YML") == read_tables(tmp_path / "x.toml") == tables


@pytest.mark.parametrize(("text", "number"), [("1e-4", 1e-4), ("3.0e-4", 3e-4), ("-2E3", -2000.0), (".5e1", 5.0)])
def test_an_exponent_makes_a_number(text: str, number: float) -> None:
    assert parse_yaml(f"x: {text}") == {"x": number}


def test_null_is_absence_and_a_merge_is_no_second_key() -> None:
    assert parse_yaml("a: null\nb: {c: ~, d: 1}") == {"b": {"d": 1}}
    assert parse_yaml("a: &a {x: 1, y: 2}\nb:\n  <<: *a\n  y: 3")["b"] == {"x": 1, "y": 3}
    assert parse_yaml("") == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\nb: {c: 1}\na: 2", 'is not valid YAML: "a" is given twice (at line 3).'),
        ("b:\n  c: 1\n  c: 2", 'is not valid YAML: "c" is given twice (at line 3).'),
        ("a: [1", "is not valid YAML: expected ',' or ']', but got '<stream end>' (at line 1)."),
        (
            "a: !!python/object/apply:os.system [ls]",
            (
                "is not valid YAML: could not determine a constructor for the tag "
                "'tag:yaml.org,2002:python/object/apply:os.system' (at line 1)."
            ),
        ),
        ("- 1", "is not a table. Write keys and values, such as training: { steps: 1000 }."),
        ("a: {1: x}", "has 1 in a as a key, which is not text. Put it in quotes."),
        ("1: x", "has 1 as a key, which is not text. Put it in quotes."),
        ("a: [2024-01-01]", "has datetime.date(2024, 1, 1) in a[0], which no config takes. Put it in quotes."),
        ("a: &a [*a]", "holds itself, or too many values, through its aliases. Write it out."),
    ],
)
def test_what_is_no_plain_yaml_is_refused(tmp_path: Path, text: str, said: str) -> None:
    assert refusal(tmp_path / "x.yaml", text) == said


def test_aliases_cannot_grow_without_end(tmp_path: Path) -> None:
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    said = "holds itself, or too many values, through its aliases. Write it out."
    assert refusal(tmp_path / "x.yaml", "\n".join(lines)) == said


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_bytes(b"a: \xff")
    with pytest.raises(ConfigError) as caught:
        read_tables(tmp_path / "x.yaml")
    assert str(caught.value) == f"{tmp_path / 'x.yaml'}: is not UTF-8 text. Save it as UTF-8."
    with pytest.raises(ConfigError) as caught:
        read_tables(tmp_path / "y.yaml")
    said = f"{tmp_path / 'y.yaml'}: no such file. Did you mean {tmp_path / 'x.yaml'}? Give the path of a config."
    assert str(caught.value) == said


def test_a_config_of_ours_may_be_yaml(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(
        "run: {name: small}\nmodel: {size: tiny}\nsources: {web: {kind: tokens, path: data/web}}\n"
        "stages:\n- {name: only, steps: 10}\n"
    )
    assert load(path).config.stages[0].steps == 10


def bomb(lines: int, times: int) -> str:
    """Mappings each of which merges the one before many times over."""
    text = "a0: &a0 {x: 1, y: 2}\n"
    for number in range(1, lines):
        text += f"a{number}: &a{number}\n  <<: [{', '.join([f'*a{number - 1}'] * times)}]\n"
    return text


@pytest.mark.parametrize(
    "text",
    [
        bomb(40, 10),
        bomb(4, 3000),
        "a: &a\n  <<: *a\n" + "b: " + "[" * 3000,
        "\n".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9 if n else 'x')}]" for n in range(30)),
        "a: " + "[" * 5000 + "]" * 5000,
        "a: " + "{a: " * 80 + "1" + "}" * 80,
    ],
)
def test_a_few_lines_that_expand_without_end_are_refused(tmp_path: Path, text: str) -> None:
    assert refusal(tmp_path / "x.yaml", text) == "holds itself, or too many values, through its aliases. Write it out."


def test_a_mapping_that_is_merged_before_it_is_read_is_the_same() -> None:
    text = "a: {b: {c: &c {<<: {x: 1}, x: 2}}}\nd: {<<: [*c, {x: 3, y: 4}]}"
    assert parse_yaml(text) == {"a": {"b": {"c": {"x": 2}}}, "d": {"x": 2, "y": 4}}
