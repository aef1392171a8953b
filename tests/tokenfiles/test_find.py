import os
from pathlib import Path

import pytest

from tests.support.writers import write_bin, write_ds, write_megatron, write_npy
from trivium.errors import SourceError
from trivium.tokenfiles.find import exists, find_files

DOCUMENTS = [[1, 2, 3], [4]]


def refusal(paths: object) -> str:
    with pytest.raises(SourceError) as caught:
        find_files(paths)  # type: ignore[arg-type]
    return str(caught.value)


def names(paths: str | Path | list[str | Path]) -> list[str]:
    return [file.name for file in find_files(paths)]


def test_a_folder_is_searched_to_its_depth_and_sorted_by_name(tmp_path: Path) -> None:
    for name in ("b.ds", "a/z.ds", "a/10.ds", "a/9.ds"):
        write_ds(tmp_path / name, DOCUMENTS)
    assert names(tmp_path) == ["a/10.ds", "a/9.ds", "a/z.ds", "b.ds"]


def test_hidden_files_and_folders_are_passed_over(tmp_path: Path) -> None:
    write_bin(tmp_path / "a.bin", DOCUMENTS)
    write_bin(tmp_path / "._a.bin", DOCUMENTS)
    write_bin(tmp_path / ".trash" / "b.bin", DOCUMENTS)
    assert names(tmp_path) == ["a.bin"]


def test_a_linked_folder_within_is_followed_and_a_circle_of_links_ends(tmp_path: Path) -> None:
    write_bin(tmp_path / "source" / ".disk" / "a.bin", DOCUMENTS)
    os.symlink(tmp_path / "source" / ".disk", tmp_path / "source" / "linked")
    os.symlink(tmp_path / "source", tmp_path / "source" / ".disk" / "back")
    assert names(tmp_path / "source") == ["linked/a.bin"]


def test_one_file_goes_by_its_own_name(tmp_path: Path) -> None:
    assert names(write_npy(tmp_path / "a" / "x.npy", DOCUMENTS)) == ["x.npy"]


def test_a_megatron_prefix_stands_for_its_bin(tmp_path: Path) -> None:
    write_megatron(tmp_path / "web_text_document.bin", [DOCUMENTS])
    assert find_files(str(tmp_path / "web_text_document"))[0].path == tmp_path / "web_text_document.bin"


@pytest.mark.parametrize(("lost", "there"), [("idx", "bin"), ("bin", "idx")])
def test_half_of_a_megatron_prefix_is_refused(tmp_path: Path, lost: str, there: str) -> None:
    write_megatron(tmp_path / "mega.bin", [DOCUMENTS])
    (tmp_path / f"mega.{lost}").unlink()
    prefix = str(tmp_path / "mega")
    assert exists(prefix)
    assert refusal(prefix) == f"{prefix}.{lost}: does not exist, and {prefix}.{there} needs it beside it. Copy it too."


def test_a_path_exists_where_it_names_anything(tmp_path: Path) -> None:
    write_megatron(tmp_path / "mega.bin", [DOCUMENTS])
    write_bin(tmp_path / "deep/deeper/a.bin", DOCUMENTS)
    for name in ("", "mega", "mega.bin", "m*", "**/a.bin"):
        assert exists(str(tmp_path / name))
    for name in ("meg", "mega.ds", "x*"):
        assert not exists(str(tmp_path / name))


@pytest.mark.parametrize("pattern", ["a-*/*.bin", "a-*", "a-*/", "a-**/*.bin"])
def test_a_pattern_names_files_below_its_fixed_part(tmp_path: Path, pattern: str) -> None:
    for name in ("a-1/x.bin", "a-2/x.bin", "b-1/x.bin"):
        write_bin(tmp_path / name, DOCUMENTS)
    assert names(str(tmp_path / pattern)) == ["a-1/x.bin", "a-2/x.bin"]


def test_two_stars_go_to_any_depth_and_find_each_file_once(tmp_path: Path) -> None:
    for name in ("x.bin", "a/x.bin", "a/b/x.bin"):
        write_bin(tmp_path / name, DOCUMENTS)
    for pattern in ("**", "**/*.bin", "**/"):
        assert names(f"{tmp_path}/{pattern}") == ["a/b/x.bin", "a/x.bin", "x.bin"]


def test_a_list_keeps_its_order_and_a_further_path_renames_no_earlier_file(tmp_path: Path) -> None:
    for folder in ("b/web", "a/web", "c/web"):
        write_ds(tmp_path / folder / "0.ds", DOCUMENTS)
    one, two, three = (tmp_path / folder / "web" for folder in "bac")
    assert names([one]) == ["0.ds"]
    assert names([one, two]) == ["0.ds", "web/0.ds"]
    assert names([one, two, three]) == ["0.ds", "web/0.ds", "c/web/0.ds"]


def test_a_missing_path_is_refused() -> None:
    assert refusal("data/wbe") == ("data/wbe: does not exist. Write the path of a file or folder, or a pattern.")


def test_no_path_is_refused() -> None:
    assert refusal([]) == "path: is an empty list. Name at least one file or folder."


@pytest.mark.parametrize("path", ["", "*.ds"])
def test_a_path_without_token_files_is_refused(tmp_path: Path, path: str) -> None:
    (tmp_path / "notes.txt").touch()
    assert refusal(str(tmp_path / path)) == (
        f"{tmp_path / path}: holds no token files: nothing ends in .ds, .npy, .bin. "
        "Name the folder that holds them, or prepare the text first."
    )


def test_a_file_with_another_ending_is_refused(tmp_path: Path) -> None:
    (tmp_path / "web.jsonl").touch()
    assert refusal(tmp_path / "web.jsonl") == (
        f"{tmp_path}/web.jsonl: is not a token file: those end in .ds, .npy, .bin. Name one of those."
    )


@pytest.mark.parametrize(
    ("companion", "owner"), [("web.idx", "web.bin"), ("web.ds.index", "web.ds"), ("web.ds.loss", "web.ds")]
)
def test_an_index_without_its_tokens_is_refused(tmp_path: Path, companion: str, owner: str) -> None:
    write_bin(tmp_path / "other.bin", DOCUMENTS)
    (tmp_path / companion).touch()
    assert refusal(tmp_path) == (
        f"{tmp_path}/{companion}: belongs to {owner}, which does not exist. Copy {owner} too, or delete {companion}."
    )


@pytest.mark.parametrize("second", ["", "a.bin", "*.bin", "link.bin"])
def test_a_file_found_twice_is_refused(tmp_path: Path, second: str) -> None:
    write_bin(tmp_path / "web" / "a.bin", DOCUMENTS)
    os.symlink(tmp_path / "web" / "a.bin", tmp_path / "link.bin")
    again = tmp_path / "link.bin" if second == "link.bin" else tmp_path / "web" / second
    shown = again if second == "link.bin" else tmp_path / "web" / "a.bin"
    assert refusal([tmp_path / "web", again]) == (
        f"{shown}: is found a second time, the first as {tmp_path}/web/a.bin: it would be read "
        "twice an epoch. Name it once; to read a source more often, write repeat = 2."
    )


def test_a_link_that_leads_nowhere_is_refused(tmp_path: Path) -> None:
    write_bin(tmp_path / "b.bin", DOCUMENTS)
    os.symlink(tmp_path / "nowhere.bin", tmp_path / "a.bin")
    assert refusal(tmp_path) == (
        f"{tmp_path}/a.bin: cannot be read: No such file or directory. Fix it, or take it out of the source."
    )


def test_a_folder_that_may_not_be_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_bin(tmp_path / "a" / "a.bin", DOCUMENTS)
    write_bin(tmp_path / "b" / "b.bin", DOCUMENTS)
    scandir = os.scandir

    def locked(path: str) -> object:
        if path == str(tmp_path / "b"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", locked)
    assert refusal(tmp_path) == (
        f"{tmp_path}/b: cannot be read: Permission denied. Fix it, or take it out of the source."
    )
