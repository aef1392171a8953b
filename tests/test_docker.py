"""The Dockerfile, as far as it can be checked without building it: what it copies exists, and its versions are ours."""

import re
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
STAGES = dict(re.findall(r"^FROM \S+ AS (\w+)\n(.*?)(?=^FROM |\Z)", DOCKERFILE, re.MULTILINE | re.DOTALL))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def copied() -> list[str]:
    """Every path of the checkout that the image is built from."""
    return [path for line in re.findall(r"^COPY (.*)$", DOCKERFILE, re.MULTILINE) for path in line.split()[:-1]]


def test_what_it_copies_exists_and_is_not_ignored() -> None:
    rules = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    assert rules[0] == "*"
    for path in copied():
        assert (ROOT / path).exists(), path
        assert f"!{path}" in rules
    assert {rule.removeprefix("!") for rule in rules if rule.startswith("!")} == set(copied())
    assert any(fnmatch("examples/data", rule) for rule in rules[1:])


def test_everything_that_the_wheel_is_built_of_is_copied() -> None:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]["targets"]
    needed = {PROJECT["readme"], *PROJECT["license-files"], "pyproject.toml", *wheel["wheel"]["only-include"]}
    assert needed <= set(copied())


def test_its_python_is_one_that_the_project_names() -> None:
    python = re.search(r"^ARG PYTHON=(\S+)$", DOCKERFILE, re.MULTILINE)
    assert python is not None
    assert f"Programming Language :: Python :: {python[1]}" in PROJECT["classifiers"]


@pytest.mark.parametrize("image", ["cpu", "cuda"])
def test_torch_is_the_constrained_version_and_comes_first(image: str) -> None:
    (constrained,) = re.findall(r"^torch==(\S+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    installs = re.findall(r"pip install (.*)$", STAGES[image], re.MULTILINE)
    assert f'"torch=={constrained}' in installs[0]
    assert all("--constraint /etc/trivium/constraints.txt" in line for line in installs)
    assert ("${TORCH_INDEX}" in installs[0] and "+cpu" in installs[0]) == (image == "cpu")


@pytest.mark.parametrize("image", ["cpu", "cuda"])
def test_the_user_has_no_rights_and_the_command_is_trivium(image: str) -> None:
    assert "useradd" in STAGES["base"]
    lines = [line for line in STAGES[image].splitlines() if line and not line.startswith("#")]
    assert lines[-3:] == ["USER trivium", 'ENTRYPOINT ["trivium"]', 'CMD ["--help"]']


def test_the_cpu_image_is_the_one_without_a_target() -> None:
    assert list(STAGES) == ["wheel", "base", "cuda", "cpu"]
