import contextlib
import gc
import os
from pathlib import Path

import numpy as np
import platformdirs
import pytest

from trivium.files import (
    cache_folder,
    draft,
    flushed_facts,
    hash_file,
    hash_json,
    map_file,
    parse_json,
    read_json,
    write_flushed,
)


def test_hashes_of_plain_values_never_change() -> None:
    assert hash_json([1, "a", None, {"b": [2.5], "a": "ö"}]) == "0cf3078dabe5d11782de1df1c5400ec3"
    assert hash_json({"a": 1, "b": 2}) == hash_json({"b": 2, "a": 1})


def test_a_draft_takes_its_name_when_the_block_ends(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "tokens.bin"
    with draft(path) as file:
        file.write(b"whole")
        assert not path.exists()
    assert path.read_bytes() == b"whole"
    assert os.listdir(path.parent) == ["tokens.bin"]


def test_a_draft_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "tokens.bin"
    path.write_bytes(b"old")

    def interrupted() -> None:
        with draft(path) as file:
            file.write(b"ha")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["tokens.bin"]


def test_a_draft_has_the_permissions_of_any_new_file(tmp_path: Path) -> None:
    with draft(tmp_path / "draft"):
        pass
    (tmp_path / "plain").touch()
    assert (tmp_path / "draft").stat().st_mode == (tmp_path / "plain").stat().st_mode


def open_files() -> set[Path]:
    """What this process has a descriptor of; one that is closed meanwhile is none."""
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.add(descriptor.readlink())
    return found


def test_a_mapped_file_holds_no_descriptor_and_is_freed_with_its_last_array(tmp_path: Path) -> None:
    path = tmp_path / "tokens.bin"
    path.write_bytes(b"abcd")
    if not Path("/proc/self/maps").exists():
        pytest.skip("needs /proc")
    part = np.frombuffer(map_file(path), np.uint8)[1:3]
    assert path not in open_files()
    assert bytes(part) == b"bc"
    assert str(path) in Path("/proc/self/maps").read_text()
    del part
    gc.collect()
    assert str(path) not in Path("/proc/self/maps").read_text()


def test_a_mapped_file_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "tokens.bin").write_bytes(b"abcd")
    array = np.frombuffer(map_file(tmp_path / "tokens.bin"), np.uint8)
    with pytest.raises(ValueError, match="cannot set WRITEABLE flag to True of this array"):
        array.flags.writeable = True


def test_an_empty_file_maps_to_nothing(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert len(map_file(tmp_path / "empty")) == 0


def test_the_cache_folder_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRIVIUM_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.setenv("TRIVIUM_CACHE", "")
    assert cache_folder() == Path(platformdirs.user_cache_dir("trivium", appauthor=False))


def test_a_file_written_in_parts_has_the_facts_of_what_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "parts"
    written = write_flushed(path, (part for part in (b"ab", memoryview(b"cde"), b"")))
    assert path.read_bytes() == b"abcde"
    assert written == flushed_facts(path) == {"bytes": 5, "hash": hash_file(path)}
    path.write_bytes(b"abcdf")
    assert flushed_facts(path) != written


@pytest.fixture(scope="module")
def cache_of_a_module() -> Path:
    return cache_folder()


def test_fixtures_of_a_module_do_not_use_the_users_cache(
    cache_of_a_module: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert cache_of_a_module.is_relative_to(tmp_path_factory.getbasetemp())


def test_json_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b'\xef\xbb\xbf{"name": "\xc3\xb6", "sizes": [1, 2.5, -3], "none": null}')
    assert read_json(path) == {"name": "ö", "sizes": [1, 2.5, -3], "none": None}


@pytest.mark.parametrize(("before", "after"), [("[", "]"), ('{"a":', "}")])
def test_json_may_be_nested_64_levels_deep(before: str, after: str) -> None:
    deepest = before * 63 + "[]" + after * 63
    parse_json(deepest)
    for levels in (1, 500, 100_000):
        with pytest.raises(ValueError, match="it is nested more than 64 levels deep"):
            parse_json(before * levels + deepest + after * levels)


def test_json_beyond_a_limit_is_refused_before_it_costs_anything(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('["aaaaaaaa"]')
    with pytest.raises(ValueError, match="it has more than 8 bytes"):
        read_json(path, largest=8)
    with pytest.raises(ValueError, match="it has a number of 5,000 digits"):
        parse_json("1" * 5_000)
    for torn, why in ((b"", "Expecting value"), (b'{"a": ', "Expecting value"), (b"\xff\xfe", "can't decode byte")):
        with pytest.raises(ValueError, match=why):
            parse_json(torn)


def test_json_is_not_read_from_pipes_and_devices(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises((ValueError, OSError), match=r"it is a (pipe|device|folder)"):
            read_json(path)
