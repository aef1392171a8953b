"""What the program starts, opens and writes: no shell, no pickle, no path outside, no code from the working folder."""

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.configs import two_steps
from tests.support.texts import prepare_bytes, write_lines

ROOT = Path(__file__).parent.parent
MODULES = sorted((ROOT / "trivium").rglob("*.py"))
# Libraries that every command imports, and some of Python's own.
HOSTILE = ("json", "numpy", "orjson", "pydantic", "random", "rich", "string", "tokenizers", "typing_extensions", "yaml")
STARTS_PROCESSES = ("trivium/prepare/workers.py", "trivium/engine/memory.py", "trivium/prove/launch.py")


def calls(source: str) -> Iterator[tuple[int, str]]:
    """Every call by a dotted name, with its line: `os.system`, `eval`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute | ast.Name):
            yield node.lineno, ast.unparse(node.func)


def named(names: tuple[str, ...]) -> set[str]:
    """Modules that import one of these packages, at the top or in a function."""
    found = set()
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            imported = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            imported += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            if any(each.split(".")[0] in names for each in imported):
                found.add(path.relative_to(ROOT).as_posix())
    return found


def test_processes_are_started_in_two_modules_and_never_through_a_shell() -> None:
    assert named(("subprocess", "multiprocessing", "pty", "concurrent.futures.process")) == set(STARTS_PROCESSES)
    forbidden = {"os.system", "os.popen", "os.fork", "os.forkpty", "eval", "exec", "compile", "__import__"}
    forbidden |= {f"os.{kind}{way}" for kind in ("exec", "spawn") for way in ("l", "le", "lp", "v", "ve", "vp", "vpe")}
    for path in MODULES:
        source = path.read_text(encoding="utf-8")
        assert "shell=True" not in source, path
        assert [(line, call) for line, call in calls(source) if call in forbidden] == [], path


def test_every_process_that_is_started_keeps_the_working_folder_out_of_its_path() -> None:
    for name in STARTS_PROCESSES:
        source = (ROOT / name).read_text(encoding="utf-8")
        starts = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.List)]
        commands = [ast.unparse(node) for node in starts if "sys.executable" in ast.unparse(node)]
        assert commands, name
        assert all(command.startswith("[sys.executable, '-P',") for command in commands), name


@pytest.mark.parametrize("python_path", ["", os.pathsep])
def test_a_file_in_the_working_folder_that_is_named_as_a_library_is_never_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, python_path: str
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    for name in HOSTILE:
        (work / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write('{name} ')\n")
    for number in range(4):
        write_lines(tmp_path / "texts" / f"{number}.jsonl", ["x" * 600_000] * 3)
    monkeypatch.chdir(work)
    monkeypatch.setenv("PYTHONPATH", python_path)
    prepare_bytes(tmp_path / "texts", tmp_path / "out", workers=2)
    assert not (tmp_path / "ran").exists(), (tmp_path / "ran").read_text()


def test_everything_that_is_printed_goes_through_one_module() -> None:
    printed = {"print", "typer.echo", "typer.secho", "Console", "sys.stdout.write", "sys.stderr.write", "click.echo"}
    allowed = {"trivium/screen.py": {"Console"}, "trivium/train/screens/live.py": {"print"}}  # a line
    for path in MODULES:
        name = path.relative_to(ROOT).as_posix()
        found = {call for _, call in calls(path.read_text(encoding="utf-8"))} & printed
        assert found <= allowed.get(name, set()), name


def test_nothing_reads_pickles() -> None:
    forbidden = {
        "np.load",
        "torch.load",
        "pickle.load",
        "pickle.loads",
        "yaml.unsafe_load",
        "yaml.full_load",
        "joblib.load",
    }
    for path in MODULES:
        assert {call for _, call in calls(path.read_text(encoding="utf-8"))} & forbidden == set(), path


@pytest.mark.slow
def test_a_run_writes_within_its_folder_and_the_cache_and_starts_nothing_but_its_workers(
    tmp_path: Path, own_cache: Path
) -> None:
    work = tmp_path / "work"
    for number in range(3):
        write_lines(work / "data" / f"{number}.jsonl", ["x" * 600_000] * 2)
    (work / "run.toml").write_text(two_steps("text"))
    for name in HOSTILE:
        (work / f"{name}.py").write_text("raise SystemExit(9)\n")
    commands = [
        ["plan", "run.toml"],
        ["prepare", "run.toml", "--workers", "2"],
        ["train", "run.toml"],
        ["report", "runs/run"],
        ["runs", "runs"],
        ["export", "runs/run", "exported"],
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1", "TMPDIR": str(tmp_path / "tmp")}
    (tmp_path / "tmp").mkdir()
    command = [sys.executable, "-m", "tests.support.audited", str(tmp_path / "seen.json"), json.dumps(commands)]
    ran = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert (work / "exported" / "model.safetensors").is_file(), ran.stderr[-2000:]
    seen = json.loads((tmp_path / "seen.json").read_text())
    places = (work, own_cache, tmp_path / "tmp")
    outside = [path for path in map(Path, seen["written"]) if not any(path.is_relative_to(place) for place in places)]
    assert [path for path in outside if "__pycache__" not in path.parts and path != Path("/dev/null")] == []
    assert [path for path in seen["loaded"] if Path(path).is_relative_to(work)] == []
    workers = [started for started in seen["started"] if "'-P', '-m', 'trivium.prepare.workers'" in started]
    assert workers
    others = [started for started in seen["started"] if started not in workers]
    assert [started for started in others if "/sbin/ldconfig" not in started] == []  # how Python finds C libraries
    assert seen["unpickled"] == []
