"""A file and overrides -> Config: what is read, what is not, and what is said when it cannot be."""

import builtins
import copy
import io
import json
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tests.support.configs import BASE
from trivium.config import DIALECT_NAMES
from trivium.config.batches import Batches
from trivium.config.load import load, load_config, validate
from trivium.config.schema import Config
from trivium.config.stages import merged_stages
from trivium.errors import ConfigError

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(BASE, encoding="utf-8")
    return path


def refusal(file: Path, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(file, overrides)
    return str(caught.value)


def test_a_sound_file_loads_with_the_schemas_defaults(file: Path) -> None:
    config = load_config(file)
    assert config.run.name == "base"
    assert config.run.seed == 1234
    assert [stage.name for stage in config.stages] == ["general", "long"]
    assert config.stages[0].packing == "bestfit"
    assert config.stages[0].document_mask
    assert config.stages[0].seq_len == 2048


def test_numbers_may_carry_endings_wherever_a_count_stands(file: Path) -> None:
    config = load_config(file, ["stages.1.tokens=2B", "stages.1.seq_len=4Ki", "stages.1.fade=50M"])
    assert config.stages[1].budget_tokens == 2_000_000_000
    assert config.stages[1].seq_len == 4_096
    assert config.stages[1].fade is not None
    assert config.stages[1].fade.tokens == 50_000_000


def test_loading_opens_the_config_file_and_nothing_else(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def watched(plain_open: Any) -> Any:
        def opens(path: Any, *arguments: Any, **settings: Any) -> Any:
            if not isinstance(path, int):  # a descriptor is of a file that is open
                opened.append(str(path))
            return plain_open(path, *arguments, **settings)

        return opens

    load_config(file)  # imports are done with
    for owner in (io, builtins, os):
        monkeypatch.setattr(owner, "open", watched(owner.open))
    load_config(file, ["sources.web.path=nowhere/*.ds", "model.max_seq_len=8192"])
    assert opened == [str(file)]


def test_loading_creates_nothing(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    load_config("run.toml")
    assert [path.name for path in file.parent.iterdir()] == ["run.toml"]


@pytest.mark.parametrize("stage", ["stages.1", "stages.long", "stages[1]"])
def test_an_override_names_a_stage_by_number_or_by_name(file: Path, stage: str) -> None:
    config = load_config(file, [f"{stage}.seq_len=8192"])
    assert [each.seq_len for each in config.stages] == [2048, 8192]


def test_an_override_without_a_value_removes_the_key(file: Path) -> None:
    kept = load_config(file, ["optimizer.grad_clip=0.5", "model.max_seq_len=8192"])
    assert (kept.optimizer.grad_clip, kept.model.max_seq_len) == (0.5, 8192)
    removed = load_config(file, ["optimizer.grad_clip=0.5", "optimizer.grad_clip=", "model.max_seq_len="])
    assert (removed.optimizer.grad_clip, removed.model.max_seq_len) == (None, None)


def test_a_count_may_be_written_with_an_exponent(file: Path) -> None:
    assert load_config(file, ["stages.1.tokens=1e12"]).stages[1].budget_tokens == 10**12
    assert ": is 1.5. It must be a whole number" in refusal(file, "stages.1.tokens=1.5")


def test_overrides_reach_every_table_and_make_those_that_are_not_there(file: Path) -> None:
    overrides = [
        "run.name=other",
        "run.seed=7",
        "optimizer.lr={ matrix = 0.02, rest = 3e-4 }",
        "schedule.warmup.steps=10",
        "sources.web.path=['a', 'b']",
        "stages.long.lr.scale=0.5",
        "checkpoint.async=false",
    ]
    config = load_config(file, overrides)
    assert config.run.name == "other"
    assert config.run.seed == 7
    assert config.optimizer.lr.matrix == 0.02
    assert config.schedule.warmup is not None
    assert config.schedule.warmup.steps == 10
    assert config.sources["web"].path == ("a", "b")  # type: ignore[union-attr]
    assert config.stages[1].lr is not None
    assert config.stages[1].lr.scale.rest == 0.5
    assert config.checkpoint.background is False


def test_a_later_override_of_a_key_wins(file: Path) -> None:
    assert load_config(file, ["run.seed=1", "run.seed=2"]).run.seed == 2


def test_an_override_of_one_way_to_say_a_thing_replaces_the_other_ways(file: Path) -> None:
    config = load_config(
        file, ["stages.0.tokens=1B", "stages.0.weights={ web = 1 }", "stages.0.batch_tokens=1Mi", "stages.1.tokens=5M"]
    )
    first, second = config.stages
    assert (first.steps, first.budget_tokens) == (None, 10**9)
    assert (first.mixture, first.weights) == (None, {"web": 1.0})
    assert first.batches == Batches.constant(512)
    assert (second.steps, second.budget_tokens) == (None, 5_000_000)


def test_two_overrides_that_say_one_thing_twice_are_refused(file: Path) -> None:
    what = "has steps and tokens, but needs exactly one of them. Keep one."
    assert refusal(file, "stages.0.tokens=1B", "stages.0.steps=5") == f"run.toml:16: stages[0]: {what}"


@pytest.mark.parametrize(
    ("override", "what"),
    [
        ("stages", '"stages": is not an override. Write key=value, for example stages.0.tokens=1B.'),
        ("=5", '"=5": is not an override. Write key=value, for example stages.0.tokens=1B.'),
        ("stages..steps=5", '"stages..steps=5": is not an override. Write key=value, for example stages.0.tokens=1B.'),
        ("stages.lnog.steps=5", '"stages.lnog.steps=5": there is no stage "lnog". Did you mean "long"?'),
        (
            "stages.7.steps=5",
            '"stages.7.steps=5": there is no stage "7". Write one of "general", "long", "0" or "1".',
        ),
        (
            "stages.0=5",
            '"stages.0=5": names a whole stage. Name one of its keys, for example stages.0.steps=10.',
        ),
        (
            "stages.0.steps.x=5",
            (
                '"stages.0.steps.x=5": stages.0.steps is 100 in the file, which has no keys. '
                "Override stages.0.steps as a whole."
            ),
        ),
        (
            "sources.web.path.0=x",
            (
                '"sources.web.path.0=x": sources.web.path is "data/web" in the file, which has no keys. '
                "Override sources.web.path as a whole."
            ),
        ),
        ("stages.0.stps=5", 'run.toml: stages[0].stps (set on the command line): unknown key. Did you mean "steps"?'),
        (
            "stages.0.steps=",
            'run.toml:16: stages[0]: has no length. Write steps, tokens or epochs, for example tokens = "2B".',
        ),
        (
            "run.name=5",
            (
                "run.toml: run.name (set on the command line): is 5. It must be text in quotes. "
                'Write for example name = "my-run".'
            ),
        ),
    ],
)
def test_an_override_that_cannot_be_is_refused(file: Path, override: str, what: str) -> None:
    assert refusal(file, override) == what


def test_all_overrides_that_cannot_be_are_named_at_once(file: Path) -> None:
    assert refusal(file, "stages", "run.seed=5", "stages.x.steps=5").splitlines() == [
        '"stages": is not an override. Write key=value, for example stages.0.tokens=1B.',
        '"stages.x.steps=5": there is no stage "x". Write one of "general", "long", "0" or "1".',
    ]


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    missing = tmp_path / "no.toml"
    assert refusal(missing) == f"{missing}: no such file. Give the path of a config."


def test_a_folder_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path) == f"{tmp_path}: cannot be read: it is a folder. Give the path of a config."


def test_a_file_that_is_no_toml_is_refused_with_the_line(file: Path) -> None:
    file.write_text("[run]\nname = small\n")
    said = f"{file}: is not valid TOML: Invalid value, in line 2."
    assert refusal(file) == f"{said}\n    name = small\n           ^"


def test_a_key_that_stands_twice_is_refused_with_the_line(file: Path) -> None:
    file.write_text('[run]\nname = "a"\nname = "b"\n')
    assert refusal(file).startswith(f"{file}: is not valid TOML: Cannot overwrite a value, in line 3.\n")


def test_a_file_that_is_no_text_is_refused(file: Path) -> None:
    file.write_bytes(b"\xff\xfe\x00")
    assert refusal(file) == f"{file}: is not UTF-8 text. Save it as UTF-8."


BEYOND = "whole number beyond 64 bits. Write a smaller one."
DEEP = "is nested more than 50 levels deep"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("a = " + "[" * 5000 + "]" * 5000, f"{DEEP}. Write it flat."),
        ("a = " + "[" * 100 + "]" * 100, f"{DEEP} in a[0][0]. Write it flat."),
        ("[" + ".".join("a" * 5000) + "]", f"{DEEP} in a.a.a. Write it flat."),
        ("seed = " + "9" * 5000, f"has a {BEYOND}"),
        ("[optimizer]\nlr = [" + "9" * 400 + "]", f"optimizer.lr[0] is a {BEYOND}"),
        ('[run]\nfolder = "a\\u0000b"', "has a NUL character in run.folder. Take it out."),
        ('[sources."a\\u0000b"]\nkind = "text"', "has a NUL character in sources. Take it out."),
    ],
)
def test_what_no_config_can_hold_is_refused(file: Path, text: str, what: str) -> None:
    file.write_text(text)
    assert refusal(file) == f"{file}: {what}"


@pytest.mark.parametrize(
    ("override", "what"),
    [
        ("seed=" + "9" * 5000, f"is a {BEYOND}"),
        ("seed=" + "9" * 40, f"value is a {BEYOND}"),
        ("run.name=" + "[" * 5000 + "]" * 5000, f"{DEEP}. Write a plain value."),
        (".".join("a" * 5000) + "=1", f"{DEEP}. Name a key of the config."),
    ],
)
def test_an_override_has_the_same_limits(file: Path, override: str, what: str) -> None:
    assert refusal(file, override) == f'"{override}": {what}'


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, kind in ((tmp_path / "pipe", "pipe"), (Path("/dev/zero"), "device")):
        assert refusal(path) == f"{path}: cannot be read: it is a {kind}. Give the path of a config."


def test_a_tilde_is_the_home_folder_wherever_a_path_may_be_written(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    keys = ["run.folder", "tokenizer.path", "tokenizer.chat_template", "checkpoint.copy_to", "sources.web.path"]
    keys += ["stages.0.kl.reference.path"]
    file.write_text(re.sub(r"size = .*", 'init = "~/a"', BASE, count=1))
    config = load_config(file, [*(f"{key}=~/a" for key in keys), "stages.0.kl.beta=1"])
    written = config.model_dump()
    assert json.dumps(written).count(f"{tmp_path}/a") == len(keys) + 1
    assert "~" not in json.dumps(written)


def test_a_byte_order_mark_is_ignored(file: Path) -> None:
    expected = load_config(file)
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert load_config(file) == expected


def test_an_empty_file_is_told_everything_that_is_needed(file: Path) -> None:
    file.write_text("")
    assert refusal(file).splitlines() == [
        'run.toml: run.name: is missing. Write name = "my-run" in [run].',
        'run.toml: model: has no size. Write size = "125m", or layers and width, or init = "path/to/checkpoint".',
        'run.toml: sources: there is none. Write [sources.web] with kind = "tokens" and path = "data/web".',
        (
            "run.toml: stages: there is none. "
            "Write [[stages]] with a name, a length (steps, tokens or epochs) and a mixture."
        ),
    ]


def test_a_config_is_frozen_all_the_way_down(file: Path) -> None:
    config = load_config(file)
    with pytest.raises(ValidationError, match="frozen"):
        config.run.seed = 5  # type: ignore[misc]
    with pytest.raises(ValidationError, match="frozen"):
        config.stages[0].steps = 5  # type: ignore[misc]
    for table in (config.sources, config.stages[0].mixture):
        for change in ("clear", "popitem"):
            with pytest.raises(TypeError, match="a config is frozen"):
                getattr(table, change)()
        with pytest.raises(TypeError, match="a config is frozen"):
            table["web"] = 1  # type: ignore[index]


def test_a_config_survives_being_copied_and_sent(file: Path) -> None:
    config = load_config(file)
    assert copy.deepcopy(config) == config
    assert pickle.loads(pickle.dumps(config)) == config
    assert isinstance(pickle.loads(pickle.dumps(config)), Config)


def test_warnings_come_with_what_was_loaded(file: Path) -> None:
    loaded = load(file, ["stages.0.mixture={ web = 1 }", "stages.1.mixture={ web = 1, code = 0 }"])
    assert [str(warning) for warning in loaded.warnings] == [
        (
            "run.toml:12: sources.code: has share 0 in every stage, so that it is never read. "
            "Give it a share, or take it out."
        )
    ]


def test_a_stage_takes_what_it_does_not_say_from_defaults_and_never_from_its_neighbour(file: Path) -> None:
    config = load_config(file, ["defaults.batch_size=8", "stages.0.seq_len=1024", "stages.0.packing=pad"])
    first, second = merged_stages(config.stages, config.defaults)
    assert (first.batches.largest, second.batches.largest) == (8, 8)
    assert (first.seq_len, second.seq_len) == (1024, 4096)
    assert (first.packing, second.packing) == ("pad", "bestfit")


def test_defaults_merge_tables_whole(file: Path) -> None:
    config = load_config(file, ["defaults.lr={ scale = 0.5, shape = 'linear', to = 0.1 }", "stages.1.lr.scale=2"])
    first, second = merged_stages(config.stages, config.defaults)
    assert first.lr is not None
    assert (first.lr.scale.rest, first.lr.shape, first.lr.to) == (0.5, "linear", 0.1)
    assert second.lr is not None
    assert (second.lr.scale.rest, second.lr.shape, second.lr.to) == (2.0, None, 0.0)


def test_a_stage_that_says_one_way_does_not_take_the_other_from_defaults(file: Path) -> None:
    config = load_config(file, ["defaults.weights={ web = 1 }", "defaults.batch_tokens=8Ki", "stages.0.batch_size=3"])
    first, second = merged_stages(config.stages, config.defaults)
    assert (first.mixture, first.weights) == ({"web": 0.8, "code": 0.2}, None)
    assert (first.batches.largest, second.batches.largest) == (3, 2)


def test_a_config_that_is_written_out_and_read_again_is_the_same() -> None:
    for path in (EXAMPLES / "stages.toml", EXAMPLES / "small.toml"):
        config = load_config(path)
        written = config.model_dump(mode="json", exclude_none=True, exclude_unset=True)
        assert validate(written, path.name)[0] == config


def test_a_config_of_ours_needs_no_yaml_and_no_other_tools_rules(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(BASE)
    script = "import sys; from trivium.config.load import load; load('run.toml'); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "trivium.config.schema" in loaded
    assert not loaded & {"yaml", *(f"trivium.config.dialects.{name}" for name in DIALECT_NAMES)}
