"""Functions that a config names by their path: those of installed packages, and no other code."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from trivium.engine import installed as module
from trivium.engine.installed import installed
from trivium.engine.own import name_of, source_hash
from trivium.errors import ConfigError

CODE = """
WIDE = 3
def helper(x): return x + WIDE
def make(spec): return helper(spec)
number = 3
"""
MADE = "their_models.made:make"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of packages with one in it, and a working folder whose modules must not run."""
    site, here = tmp_path / "site", tmp_path / "here"
    package, info = site / "their_models", site / "their_models-1.0.dist-info"
    for folder in (package, info, here):
        folder.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "made.py").write_text(CODE)
    (package / "broken.py").write_text("import nothing_like_it")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-models\nVersion: 1.0\n")
    files = ("__init__", "made", "broken")
    (info / "RECORD").write_text("".join(f"their_models/{name}.py,,\n" for name in files))
    for name in ("their_models", "here_only"):
        (here / f"{name}.py").write_text("raise SystemExit('code of the working folder')")
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys, "path", ["", *sys.path, str(site)])
    module._found.cache_clear()
    yield site
    module._found.cache_clear()
    for name in [name for name in sys.modules if name.startswith(("their_models", "in_place"))]:
        del sys.modules[name]


def refusal(path: str) -> str:
    with pytest.raises(ConfigError) as refused:
        installed(path, "model.family")
    return str(refused.value)


def test_a_function_is_known_by_its_path_and_by_the_source_of_its_package(site: Path) -> None:
    made = installed(MADE, "model.family")
    assert made(4) == 7
    assert name_of(made) == MADE
    before = source_hash(made)
    (site / "their_models" / "made.py").write_text(CODE.replace("WIDE = 3", "WIDE = 44"))
    module._found.cache_clear()
    del sys.modules["their_models.made"]
    assert source_hash(installed(MADE, "model.family")) != before


def test_a_package_among_the_libraries_is_the_users_own_where_a_config_names_it(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = installed(MADE, "model.family")
    before = source_hash(made)
    monkeypatch.setattr("trivium.engine.own.LIBRARIES", (str(site),))
    assert source_hash(made) == before
    assert source_hash(made.function) != before


def test_code_that_no_package_lists_is_not_run(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    aside = "(here_only.py in the working folder is not imported: pip install its package.)"
    assert refusal("here_only:make") == (
        f'model.family: is "here_only:make", but here_only is not installed. Install the package that has it. {aside}'
    )
    monkeypatch.setattr(sys, "path", [*sys.path[1:], str(tmp_path / "here")])  # as PYTHONPATH=. has it
    for path, where in (("here_only:make", tmp_path / "here" / "here_only.py"), ("os:system", "frozen")):
        name = path.partition(":")[0]
        assert refusal(path) == (
            f'model.family: is "{path}", but {name} ({where}) is not a file of an installed package. '
            "No other code is run: pip install the package that has it."
        )
    (site / "their_models" / "more.py").write_text("raise SystemExit('not in the list')")
    assert "is not a file of an installed package" in refusal("their_models.more:make")


def test_what_cannot_be_a_function_is_refused_by_name(site: Path) -> None:
    assert refusal("nowhere:make") == (
        'model.family: is "nowhere:make", but nowhere is not installed. Install the package that has it.'
    )
    assert refusal("their_models.gone:make") == (
        'model.family: is "their_models.gone:make", but their_models.gone is not in the package their_models. '
        "Name a module of it."
    )
    assert refusal("their_models.broken:make") == (
        'model.family: is "their_models.broken:make", but their_models.broken cannot be imported: '
        "ModuleNotFoundError: No module named 'nothing_like_it'. Repair the package."
    )
    assert "has no makes. Name a function or a class of it." in refusal(f"{MADE}s")
    assert "that is a int. Name a function or a class." in refusal("their_models.made:number")
    assert 'not the path of a function. Write "package.module:function".' in refusal("made")


def test_a_package_that_is_installed_in_place_runs_from_its_folder(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, info = tmp_path / "their checkout", site / "in_place-1.0.dist-info"
    root.mkdir()
    info.mkdir()
    (root / "in_place.py").write_text(CODE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: in-place\nVersion: 1.0\n")
    (info / "RECORD").write_text("in_place.pth,,\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(root)])
    assert "is not a file of an installed package" in refusal("in_place:make")
    (info / "direct_url.json").write_text(json.dumps({"url": root.as_uri(), "dir_info": {"editable": True}}))
    assert installed("in_place:make", "model.family")(4) == 7
