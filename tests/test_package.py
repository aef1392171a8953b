"""The wheel: built from the checkout, installed elsewhere, and used where the checkout cannot be seen."""

import os
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

import trivium

ROOT = Path(__file__).parent.parent


def run(*command: str | Path, cwd: Path, **env: str) -> str:
    """What a command prints; it must succeed."""
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env={**os.environ, **env}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with sdist and wheel; the wheel is built from the sdist, and nothing is fetched."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (found,) = built.glob("*.whl")
    return found


@pytest.mark.slow
def test_the_wheel_has_the_package_and_the_examples_alone(wheel: Path, built: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {"trivium", f"trivium-{trivium.__version__}.dist-info"}
    assert {"trivium/py.typed", "trivium/demo/demo.toml", "trivium/report/page.html"} <= set(names)
    assert {"trivium/examples/tour.toml", "trivium/examples/make_data.py"} <= set(names)
    assert [name for name in names if "__pycache__" in name or "/data/" in name or "test_" in name] == []
    assert len(list(built.glob("*.tar.gz"))) == 1


@pytest.mark.slow
def test_the_metadata_says_for_whom_it_is(wheel: Path) -> None:
    (name,) = [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith("METADATA")]
    found = Parser().parsestr(zipfile.ZipFile(wheel).read(name).decode())
    assert (found["Name"], found["Version"], found["License-Expression"]) == (
        "trivium",
        trivium.__version__,
        "Apache-2.0",
    )
    assert found["Requires-Python"] == ">=3.11"
    classifiers = found.get_all("Classifier") or []
    pythons = [each for each in classifiers if each.startswith("Programming Language :: Python :: 3.")]
    assert [each.rpartition(" ")[2] for each in pythons] == ["3.11", "3.12", "3.13"]
    assert "Typing :: Typed" in classifiers


@pytest.mark.slow
def test_the_wheel_works_without_the_repository(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    pip = (sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--quiet", "--disable-pip-version-check")
    run(*pip, "--target", site, wheel, cwd=tmp_path)
    # The packages that trivium needs are this environment's; its editable install is hidden behind the wheel's.
    env = {"PYTHONPATH": str(site), "TRIVIUM_CACHE": str(tmp_path / "cache"), "COLUMNS": "80"}
    shown = "import trivium; print(trivium.__file__, trivium.__version__)"
    assert run(sys.executable, "-W", "error", "-c", shown, cwd=tmp_path, **env).split() == [
        str(site / "trivium" / "__init__.py"),
        trivium.__version__,
    ]
    command = (sys.executable, "-W", "error", "-m", "trivium")
    assert run(*command, "--version", cwd=tmp_path, **env) == f"trivium {trivium.__version__}\n"
    loaded = "import sys, trivium.cli.main, trivium.init.quickstart, trivium.train.trainer; "
    loaded += "print(*(each.__file__ for name, each in sys.modules.items() if name.split('.')[0] == 'trivium'))"
    modules = run(sys.executable, "-c", loaded, cwd=tmp_path, **env).split()
    assert {Path(module).is_relative_to(site) for module in modules} == {True}
    run(*command, "examples", "mine", cwd=tmp_path, **env)
    assert (tmp_path / "mine" / "recipes" / "smollm3-3b.toml").is_file()
    assert not (tmp_path / "mine" / "data").exists()
    texts = tmp_path / "texts"
    texts.mkdir()
    for number in range(30):
        (texts / f"{number}.md").write_text(f"# Page {number}\n\n" + f"The river moved {number} mills. " * 40)
    assert "written: run.toml" in run(*command, "init", "texts", cwd=tmp_path, **env)
    assert "texts: 2 stages" in run(*command, "plan", "run.toml", "--prepare", cwd=tmp_path, **env)
