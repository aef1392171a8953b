"""`trivium push` against a Hub on this machine, as people run it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.hub_server import TOKEN, Hub, running_hub
from tests.support.models import BYTES, byte_model
from trivium.ask.export import write_tokenizer

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    with running_hub() as hub:
        yield hub


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("push") / "hf"
    byte_model().export(folder)
    write_tokenizer(BYTES, folder, ())
    (folder / "README.md").write_text("# small\n")
    return folder


def push(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "trivium", "push", str(folder), *arguments]
    given = {**os.environ, "HF_HUB_DISABLE_XET": "1", "HF_HOME": str(folder.parent / "home"), **environment}
    given.pop("HF_HUB_OFFLINE", None) if "HF_HUB_OFFLINE" not in environment else None
    return subprocess.run(command, env=given, capture_output=True, text=True, timeout=300)


def test_all_files_arrive_and_a_second_push_changes_them(folder: Path, hub: Hub) -> None:
    access = {"HF_ENDPOINT": hub.address, "HF_TOKEN": TOKEN}
    done = push(folder, "me/small", "--private", **access)
    assert done.returncode == 0, done.stderr
    expected = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert hub.files["me/small"] == expected
    assert hub.private == {"me/small"}
    assert f"{hub.address}/me/small" in done.stdout
    assert f"{len(expected)} files" in done.stdout
    assert hub.messages == ["Upload"]
    assert TOKEN not in done.stdout + done.stderr
    (folder / "README.md").write_text("# other\n")
    assert push(folder, "me/small", **access).returncode == 0
    assert hub.files["me/small"]["README.md"] == b"# other\n"


@pytest.mark.parametrize(
    ("repository", "environment", "told"),
    [
        ("small", {}, '"small" is not the name of a repository. Write owner/name, such as me/small.'),
        ("me/small", {"HF_HUB_OFFLINE": "1"}, "me/small: HF_HUB_OFFLINE is set, so that nothing is uploaded."),
        (
            "me/small",
            {"HF_TOKEN": "hf_wrong"},
            "me/small: the Hub refused it (401): no valid token of the Hub was found.",
        ),
        ("me/small", {"HF_ENDPOINT": "http://127.0.0.1:9"}, "the Hub at http://127.0.0.1:9 cannot be reached"),
    ],
    ids=["name", "offline", "token", "unreachable"],
)
def test_what_cannot_be_pushed_is_one_line(
    repository: str, environment: dict[str, str], told: str, folder: Path, hub: Hub
) -> None:
    done = push(folder, repository, **{"HF_ENDPOINT": hub.address, "HF_TOKEN": TOKEN, **environment})
    assert done.returncode == 2
    assert told in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
