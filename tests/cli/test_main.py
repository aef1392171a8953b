"""The command line as people run it: exit codes, what is printed where, and what is imported."""

import json
import os
import shlex
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from typer.core import TyperGroup
from typer.main import get_command

from tests.support import command_line
from tests.support.configs import BASE
from trivium.cli.main import GROUPS, TOKENIZER, app
from trivium.config.load import load_config

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "stages.toml"
THEIRS = ROOT / "docs" / "data_stages" / "configs" / "data_stages_test.toml"


def trivium(*arguments: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the program in a folder, within this process."""
    code, out, err = command_line.trivium(folder, *map(str, arguments))
    return subprocess.CompletedProcess(arguments, code, out, err)


def piped(*arguments: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the program in a folder as a process of its own, its output piped."""
    command = [sys.executable, "-m", "trivium", *map(str, arguments)]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(folder)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "run.toml").write_text(BASE)
    return tmp_path


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*"))


@pytest.mark.parametrize("command", ["plan", "train", "rehearse", "inspect", "prepare", "verify"])
def test_what_only_the_plan_finds_has_file_and_line(folder: Path, command: str) -> None:
    text = BASE.replace('kind = "tokens"\npath = "data/web"', 'kind = "text"\npath = "."')
    text = text.replace("[sources.web]", '[tokenizer]\npath = "nowhere.json"\n\n[sources.web]')
    (folder / "run.toml").write_text(text)
    options = ["--step", "0"] if command == "inspect" else []
    line = "run.toml:9: tokenizer.path: nowhere.json does not exist."
    ran = trivium(command, "run.toml", *options, folder=folder)
    assert (ran.returncode, [each[: len(line)] for each in ran.stderr.splitlines() if "tokenizer" in each]) == (
        2,
        [line],
    )
    ran = trivium(command, "run.toml", "tokenizer.path=no.json", *options, folder=folder)
    line = "run.toml: tokenizer.path (set on the command line): no.json does not exist."
    assert (ran.returncode, [each[: len(line)] for each in ran.stderr.splitlines() if "tokenizer" in each]) == (
        2,
        [line],
    )


@pytest.mark.slow
def test_a_config_that_cannot_work_gives_every_problem_and_exit_code_2(folder: Path) -> None:
    (folder / "run.toml").write_text(BASE.replace("steps = 100", "steps = 0").replace("code = 0.5", "code = 0.6"))
    ran = piped("plan", "run.toml", folder=folder)
    assert ran.returncode == 2
    assert ran.stdout == ""
    assert ran.stderr.splitlines() == [
        "run.toml:18: stages[0].steps: is 0. It must be at least 1. Write for example steps = 4000.",
        (
            "run.toml:24: stages[1].mixture: adds up to 1.1, not 1. "
            "Change the shares, or write weights = { web = 0.5, code = 0.6 }."
        ),
    ]
    assert names_in(folder) == ["run.toml"]


def test_a_plan_that_cannot_work_gives_exit_code_2_without_a_traceback(folder: Path) -> None:
    ran = trivium("plan", "run.toml", "schedule={ shape = 'cosine', warmup = { steps = 151 } }", folder=folder)
    assert (ran.returncode, ran.stdout) == (2, "")
    what = "a warm-up of 151 steps is longer than the 150 steps there are. Shorten it."
    assert ran.stderr == f"run.toml: schedule (set on the command line): {what}\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("plan", "no.toml"), "no.toml: no such file. Did you mean run.toml? Give the path of a config."),
        (("plan", "run.toml", "stages.x.steps=5"), 'there is no stage "x"'),
        (("plan", "run.toml", "--dialect", "nanotorn"), '"nanotorn" is not known. Did you mean "nanotron"?'),
        (("plan",), "Missing argument 'config'"),
        (("paln", "run.toml"), "paln"),
    ],
)
def test_a_wrong_command_gives_exit_code_2_and_says_why(folder: Path, arguments: tuple[str, ...], said: str) -> None:
    ran = trivium(*arguments, folder=folder)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert said in ran.stderr
    assert "Traceback" not in ran.stderr
    assert names_in(folder) == ["run.toml"]


@pytest.mark.slow
def test_a_plan_is_plain_text_of_80_columns_when_piped(folder: Path) -> None:
    ran = piped("plan", EXAMPLE, folder=folder)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "\x1b" not in ran.stdout
    assert max(len(line) for line in ran.stdout.splitlines()) <= 80
    for word in ("general", "long", "chat", "[0, 3,815)", "[3,815, 4,197)", "web", "code", "256 x 2,048"):
        assert word in ran.stdout
    assert "general: 2,000,000,000 tokens requested, 2,000,158,720 planned (3,815 steps)." in ran.stdout
    assert names_in(folder) == ["run.toml"]


def test_a_plan_of_theirs_says_what_differs_and_what_decides_nothing(folder: Path) -> None:
    ran = trivium("plan", THEIRS, "--verbose", folder=folder)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "differs from theirs\n  data_stages_test.toml: training.local_batch_size: is 4 rows" in ran.stdout
    assert "decides nothing\n  data_stages_test.toml: job.description: has no effect here" in ran.stdout
    assert max(len(line) for line in ran.stdout.splitlines()) <= 80


def test_overrides_count_on_the_command_line(folder: Path) -> None:
    ran = trivium("plan", "run.toml", "stages.0.tokens=1M", "stages.long.seq_len=8192", "--json", folder=folder)
    first, second = json.loads(ran.stdout)["stages"]
    assert (first["asked"], first["steps"]) == ({"tokens": 1_000_000}, 2)
    assert second["seq_len"] == 8192


def test_a_plan_for_machines_is_json(folder: Path) -> None:
    ran = trivium("plan", "run.toml", "--json", folder=folder)
    assert (ran.returncode, ran.stderr) == (0, "")
    plan = json.loads(ran.stdout)
    assert (plan["run"], plan["total_steps"]) == ("base", 150)
    assert [(stage["name"], stage["start"], stage["end"]) for stage in plan["stages"]] == [
        ("general", 0, 100),
        ("long", 100, 150),
    ]


def test_the_schema_is_one_that_accepts_the_example(folder: Path) -> None:
    ran = trivium("schema", folder=folder)
    schema = Draft202012Validator(json.loads(ran.stdout))
    assert list(schema.iter_errors(tomllib.loads(EXAMPLE.read_text(encoding="utf-8")))) == []


@pytest.mark.parametrize("world_size", [None, 2])
def test_convert_prints_a_config_that_loads_with_its_notes_as_comments(folder: Path, world_size: int | None) -> None:
    ranks = [] if world_size is None else ["--world-size", str(world_size)]
    ran = trivium("convert", THEIRS, *ranks, folder=folder)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ("taken as 1 rank" in ran.stdout) is (world_size is None)
    ours = folder / "ours.toml"
    ours.write_text(ran.stdout)
    assert load_config(ours) == load_config(THEIRS, world_size=world_size)


HEAVY = ("torch", "jax", "flax", "datasets", "transformers")
LIGHT = (*HEAVY, "numpy", "numba", "rich", "trivium.config.schema")  # what --help need not import either


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "absent"),
    [
        (["--help"], LIGHT),
        (["train", "--help"], LIGHT),
        (["plan", str(EXAMPLE)], HEAVY),
        (["plan", str(EXAMPLE), "model.vocab=32000", "--on", "H100"], HEAVY),
        (["schema"], HEAVY),
    ],
    ids=lambda each: "-".join(each[:2]),
)
def test_what_a_command_does_not_need_is_not_imported(arguments: list[str], absent: tuple[str, ...]) -> None:
    program = f"""
import sys
sys.argv = ["trivium", *{arguments!r}]
from trivium.cli.main import main
try:
    main()
except SystemExit as ended:
    assert not ended.code, ended.code
print([name for name in {absent!r} if name in sys.modules], file=sys.stderr)
"""
    ran = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.stderr == "[]\n"
    assert ran.returncode == 0


def test_help_lists_every_command_in_its_group_with_an_example_that_parses(tmp_path: Path) -> None:
    whole = get_command(app)
    assert isinstance(whole, TyperGroup)
    grouped = [name for commands in GROUPS.values() for name in commands]
    assert sorted([*grouped, TOKENIZER]) == sorted(whole.commands)
    shown = trivium("-h", folder=tmp_path).stdout
    assert [line for line in shown.splitlines() if line in (f"{title}:" for title in GROUPS)] == [
        f"{title}:" for title in GROUPS
    ]
    for name, command in [item for commands in GROUPS.values() for item in commands.items()]:
        program, called, *arguments = shlex.split(command.example.partition(" > ")[0])
        assert (program, called) == ("trivium", name)
        assert whole.commands[name].make_context(name, arguments) is not None
    assert trivium("plan", "-h", folder=tmp_path).stdout.endswith("Example:\n    trivium plan run.toml --on 64xH100\n")


def test_the_version_is_the_packages(tmp_path: Path) -> None:
    assert trivium("--version", folder=tmp_path).stdout == f"trivium {version('trivium')}\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_printed_for_each_shell(shell: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "trivium.cli.main"],
        env={**os.environ, "_TRIVIUM_COMPLETE": f"source_{shell}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "trivium" in ran.stdout
