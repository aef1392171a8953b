"""Where a launch runs: hosts, devices, and the commit of the config's folder, read without starting git."""

import shutil
import subprocess
from pathlib import Path

import pytest

from trivium.run.machine import commit_of, machine_facts

COMMIT = "0123456789" * 4


def test_hosts_and_devices_are_counted(tmp_path: Path) -> None:
    one = machine_facts([("a", "cpu")], tmp_path)
    assert (one["host"], one["devices"]) == ("a", "cpu")
    many = machine_facts([("a", "H100"), ("a", "H100"), ("b", "H100")], tmp_path)
    assert (many["host"], many["devices"]) == ("a (2 ranks), b (1 rank)", "3 x H100")
    assert many["processor"].endswith(("core", "cores"))
    assert "commit" not in many


def test_the_commit_is_that_of_git(tmp_path: Path) -> None:
    if shutil.which("git") is None:
        pytest.skip("git is not installed")

    def git(*arguments: str, folder: Path = tmp_path / "repo") -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        command = ["git", *who, "-C", str(folder), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    (tmp_path / "repo" / "configs").mkdir(parents=True)
    git("init", "-q")
    assert commit_of(tmp_path / "repo") is None  # nothing is committed yet
    git("commit", "-q", "--allow-empty", "-m", "first")
    head = git("rev-parse", "HEAD")
    assert commit_of(tmp_path / "repo" / "configs") == head
    git("pack-refs", "--all")
    assert commit_of(tmp_path / "repo") == head
    git("worktree", "add", "-q", "-b", "other", str(tmp_path / "other"))
    git("commit", "-q", "--allow-empty", "-m", "second", folder=tmp_path / "other")
    assert commit_of(tmp_path / "other") == git("rev-parse", "other") != head
    git("checkout", "-q", "--detach", head)
    assert commit_of(tmp_path / "repo") == head


@pytest.mark.parametrize(
    "head", ["", "ref: refs/heads/gone", "ref: ../../../etc/passwd", "ref: refs/../../secret", "x" * 40, "\x00\xff"]
)
def test_a_broken_repository_has_no_commit(tmp_path: Path, head: str) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").write_text(head, encoding="latin-1")
    (tmp_path / ".git" / "packed-refs").write_text(f"# pack-refs\n{COMMIT} refs/heads/main\n")
    assert commit_of(tmp_path) is None
    (tmp_path / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    assert commit_of(tmp_path) == COMMIT
