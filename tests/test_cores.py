"""Cores by affinity and by the quotas of containers, in both forms that Linux has."""

import os
from pathlib import Path

import pytest

from trivium import cores
from trivium.cores import available_cores


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cores, "CGROUPS", tmp_path)
    monkeypatch.setattr(cores, "OWN_CGROUP", tmp_path / "own")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    return tmp_path


def test_without_groups_the_mask_decides(groups: Path) -> None:
    assert available_cores() == 8


def test_the_tightest_quota_on_the_way_up_decides(groups: Path) -> None:
    (groups / "own").write_text("0::/pod/box\n")
    (groups / "pod" / "box").mkdir(parents=True)
    (groups / "pod" / "box" / "cpu.max").write_text("max 100000\n")
    assert available_cores() == 8
    (groups / "pod" / "cpu.max").write_text("250000 100000\n")
    assert available_cores() == 3
    (groups / "pod" / "box" / "cpu.max").write_text("10000 100000\n")
    assert available_cores() == 1


def test_the_older_form_is_read_too(groups: Path) -> None:
    (groups / "own").write_text("5:memory:/box\n4:cpu,cpuacct:/box\n")
    folder = groups / "cpu,cpuacct" / "box"
    folder.mkdir(parents=True)
    (folder / "cpu.cfs_quota_us").write_text("-1\n")
    (folder / "cpu.cfs_period_us").write_text("100000\n")
    assert available_cores() == 8
    (folder / "cpu.cfs_quota_us").write_text("200000\n")
    assert available_cores() == 2
