"""Paths -> files: what leads out of a folder, what is not a file, and what was probably meant."""

import os
from pathlib import Path

import pytest

from tests.support.texts import write_lines
from tests.support.writers import write_ds
from trivium.errors import SourceError
from trivium.paths import find_any, suggestion
from trivium.tokenfiles.find import find_files
from trivium.tokenfiles.open import open_source


def refusal(path: Path | str) -> str:
    with pytest.raises(SourceError) as caught:
        find_any([path])
    return str(caught.value)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder with a text, and another beside it."""
    write_lines(tmp_path / "source" / "a.jsonl", ["a"])
    write_lines(tmp_path / "other" / "b.jsonl", ["b"])
    return tmp_path / "source"


@pytest.mark.parametrize("pattern", ["", "*.jsonl", "**"])
def test_a_link_that_leads_out_of_the_folder_is_refused(source: Path, pattern: str) -> None:
    (source / "link.jsonl").symlink_to("../other/b.jsonl")
    other = source.parent / "other" / "b.jsonl"
    assert refusal(source / pattern) == (
        f"{source / 'link.jsonl'}: leads out of {source}, to {other}. "
        f'Take the link out, and name the other place too: path = ["{source}", "{other}"].'
    )


@pytest.mark.parametrize("pattern", ["", "*/*.jsonl", "**"])
def test_a_link_to_a_folder_elsewhere_is_refused_before_that_is_searched(source: Path, pattern: str) -> None:
    (source / "link").symlink_to("../other")
    assert refusal(source / pattern).startswith(f"{source / 'link'}: leads out of {source}, to {source.parent}/other.")


def test_a_link_is_followed_where_it_was_named_itself_or_stays_within(source: Path) -> None:
    (source / "deep").mkdir()
    (source / "deep" / "within.jsonl").symlink_to("../.hidden.jsonl")
    write_lines(source / ".hidden.jsonl", ["c"])
    (source.parent / "named").symlink_to("source")
    (source.parent / "named.jsonl").symlink_to("other/b.jsonl")
    found = find_any([source.parent / "named", source.parent / "named.jsonl"])
    assert [file.name for file in found] == ["a.jsonl", "deep/within.jsonl", "named.jsonl"]


def test_a_folder_in_the_cache_of_the_hub_is_made_of_links(tmp_path: Path) -> None:
    write_lines(tmp_path / "datasets--a--b" / "blobs" / "0f.jsonl", ["a"])
    snapshot = tmp_path / "datasets--a--b" / "snapshots" / "1234" / "data"
    snapshot.mkdir(parents=True)
    (snapshot / "train.jsonl").symlink_to("../../../blobs/0f.jsonl")
    assert [file.name for file in find_any([snapshot])] == ["train.jsonl"]


def test_token_files_have_the_same_rule(tmp_path: Path) -> None:
    write_ds(tmp_path / "other" / "a.ds", [[1, 2]])
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a.ds").symlink_to("../other/a.ds")
    with pytest.raises(SourceError, match="leads out of"):
        find_files(tmp_path / "source")


def test_pipes_and_devices_are_refused_and_not_waited_for(source: Path) -> None:
    os.mkfifo(source / "pipe.jsonl")
    what = "is a pipe or a device, which would be waited for"
    assert refusal(source) == f"{source / 'pipe.jsonl'}: {what}. Take it out of the source."
    for path in (source / "pipe.jsonl", Path("/dev/zero")):
        assert refusal(path) == f"{path}: {what}. Write the path of a file or folder, or a pattern."


@pytest.mark.parametrize("ending", ["", ".index", ".loss", ".metadata"])
def test_a_pipe_in_the_place_of_a_part_of_a_token_file_is_not_waited_for(tmp_path: Path, ending: str) -> None:
    write_ds(tmp_path / "a.ds", [[1, 2], [3]], loss=[1, 1, 0])
    Path(f"{tmp_path / 'a.ds'}{ending}").unlink()
    os.mkfifo(f"{tmp_path / 'a.ds'}{ending}")
    with pytest.raises(SourceError):
        open_source(tmp_path)


def test_a_path_that_does_not_exist_gets_the_one_that_is_like_it(source: Path) -> None:
    assert suggestion(source / "b.jsonl") == f" Did you mean {source / 'a.jsonl'}?"
    assert suggestion(source.parent / "sourcs" / "a.jsonl") == f" Did you mean {source / 'a.jsonl'}?"
    assert suggestion(source.parent / "sourcs" / "x.npy") == f" Did you mean {source}?"
    assert suggestion(source / "nothing-like-it") == suggestion(source / "a.jsonl" / "x") == suggestion(source) == ""
    what = f"does not exist. Did you mean {source / 'a.jsonl'}? Write the path of a file or folder, or a pattern."
    assert refusal(source / "a.json") == f"{source / 'a.json'}: {what}"
