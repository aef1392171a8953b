"""Every tool's config is recognised as that tool's, and as no other's."""

from pathlib import Path

import pytest

from tests.support.dialects import EXAMPLES, converted_is_the_same
from trivium.config import DIALECT_NAMES, dialects
from trivium.config.dialects import dialect_of, recognised
from trivium.config.load import read_tables
from trivium.errors import ConfigError

ROOT = Path(__file__).parents[3]
FILES = {
    ROOT / "docs/data_stages/configs/data_stages_test.toml": "torchtitan",
    ROOT / "docs/data_stages/configs/data_stages_ablation_test.toml": "torchtitan",
    ROOT / "docs/data_stages/configs/data_stages_backcompat_test.toml": "torchtitan",
    EXAMPLES / "kempnerforge.toml": "kempnerforge",
    EXAMPLES / "theseus.yaml": "theseus",
    EXAMPLES / "nanotron.yaml": "nanotron",
    ROOT / "examples/small.toml": "trivium",
    ROOT / "examples/stages.toml": "trivium",
}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_config_is_one_tools_alone(file: Path) -> None:
    tables = read_tables(file)
    found = [name for name in DIALECT_NAMES if dialect_of(name).recognises(tables)]
    assert found == [FILES[file]] or FILES[file] == "trivium"
    assert recognised(tables, file.name) == FILES[file]


@pytest.mark.parametrize(
    ("tables", "name"),
    [
        ({"training": {"steps": 10}}, "torchtitan"),
        ({"training": {"tokens": [10], "dataset": []}}, "theseus"),
        ({"training/batch_size": 8}, "theseus"),
        ({"training.batch_size": 8}, "theseus"),
        ({"optimization": {"lr": 1e-3}}, "theseus"),
        ({"job": "data/tokenize_blockwise_dataset", "data": {}, "architecture": {}}, "theseus"),
        ({"job": "data/tokenize_variable_dataset", "data": {"dataset": "x"}}, "theseus"),
        ({"data": {"dataset_path": "x"}}, "kempnerforge"),
        ({"train": {"max_steps": 10}}, "kempnerforge"),
        ({"data_stages": []}, "nanotron"),
        ({"data": {}, "tokens": {}, "general": {}, "parallelism": {}}, "nanotron"),
        ({"stages": [], "training": {}, "data": {}}, "trivium"),
        ({"model": {}, "optimizer": {}, "checkpoint": {}}, "trivium"),
    ],
)
def test_a_few_tables_are_enough(tables: dict[str, object], name: str) -> None:
    assert recognised(tables, "x.toml") == name


def test_tables_of_two_tools_ask_whose_it_is() -> None:
    with pytest.raises(ConfigError) as caught:
        recognised({"training": {"steps": 10}, "data_stages": []}, "x.yaml")
    said = "x.yaml: has tables of torchtitan and nanotron. Say whose it is: --dialect torchtitan."
    assert str(caught.value) == said


def test_the_command_line_lists_every_dialect() -> None:
    with_data = {path.stem for path in Path(dialects.__file__).parent.glob("*_data.py")}
    assert {f"{name}_data" for name in DIALECT_NAMES} == with_data


@pytest.mark.parametrize("file", [file for file in FILES if FILES[file] != "trivium"], ids=lambda file: file.stem)
def test_what_is_converted_loads_as_ours_and_gives_the_same_plan(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # A GPT of theseus and bfloat16 weights of KempnerForge are refused unless ours are asked for.
    asked = {
        "theseus": ["model.layers=8", "model.width=512", "model.heads=8"],
        "kempnerforge": ["engine.precision=bfloat16", "optimizer.name=muon"],
    }.get(FILES[file], [])
    converted_is_the_same(file, tmp_path / "ours.toml", overrides=asked, world_size=2)
