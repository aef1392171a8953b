"""What `look` finds in a folder: sources, their estimated sizes, what is passed over and what is refused."""

import gzip
import json
from pathlib import Path
from random import Random

import numpy as np
import pytest

from tests.init.conftest import prose, talk, write_jsonl
from tests.support.texts import write_parquet
from trivium.errors import SourceError, UsageError
from trivium.init import look as module
from trivium.init.look import LookError, look


def test_a_mixed_folder_is_sorted_by_subfolder_and_kind(mixed: Path) -> None:
    found = look(mixed)
    sources = {each.name: (each.kind, len(each.files), each.column, each.estimate.documents) for each in found.sources}
    assert sources == {
        "books": ("text", 30, None, 30),
        "web": ("records", 2, "content", 80),
        "src": ("code", 30, None, 30),
        "chats": ("chat", 1, None, 50),
    }
    assert {each.name: each.paths for each in found.sources} == {
        "books": (f"{mixed}/books",),
        "web": (f"{mixed}/web-00001.jsonl", f"{mixed}/web-00002.jsonl"),
        "src": (f"{mixed}/src/*.py",),
        "chats": (f"{mixed}/chats.jsonl",),
    }
    assert {each.reason: each.files for each in found.passed_over} == {
        "binary, or not UTF-8": 1,
        "empty": 1,
        "a table: write it as JSONL or Parquet, with the text in one column": 1,
    }


def test_sizes_are_estimated_from_some_records(tmp_path: Path) -> None:
    texts = [prose(number, 50) for number in range(3000)]
    write_jsonl(tmp_path / "data" / "all.jsonl", [{"text": text} for text in texts])
    (source,) = look(tmp_path / "data").sources
    assert source.estimate.documents == pytest.approx(3000, rel=0.05)
    assert source.estimate.text_bytes == pytest.approx(sum(map(len, texts)), rel=0.05)


def test_parquet_and_compressed_files_are_looked_into(tmp_path: Path) -> None:
    write_parquet(tmp_path / "data" / "a.parquet", [prose(number) for number in range(30)])
    noise = [Random(number).randbytes(300).hex() for number in range(30)]
    packed = gzip.compress("".join(json.dumps({"text": text}) + "\n" for text in noise).encode())
    (tmp_path / "data" / "b.jsonl.gz").write_bytes(packed)
    found = {source.name: source for source in look(tmp_path / "data").sources}
    assert {name: (each.column, each.estimate.documents) for name, each in found.items()} == {
        "a": ("text", 30),
        "b": ("text", 30),
    }


def test_token_files_say_what_they_hold(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    np.save(folder / "web.npy", np.arange(1000, dtype=np.uint16) % 50)
    (folder / "raw.bin").write_bytes(bytes(100))
    found = look(folder)
    assert [(each.kind, each.estimate.tokens, each.paths) for each in found.sources] == [
        ("tokens", 1000, (f"{folder}/web.npy",))
    ]
    assert [each.example for each in found.passed_over] == ["raw.bin"]
    assert found.passed_over[0].reason.startswith("a flat file that does not say of which type its tokens are")


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"instruction": "Add.", "output": "2"}, "conversations in another form"),
        ({"conversations": [{"from": "human", "value": "Hi"}]}, "conversations in another form"),
        ({"id": 1, "score": 0.5}, "no column of text, but id, score"),
    ],
)
def test_records_that_are_no_text_are_passed_over_with_the_reason(
    record: dict[str, object], reason: str, tmp_path: Path
) -> None:
    write_jsonl(tmp_path / "data" / "odd.jsonl", [record] * 3)
    (tmp_path / "data" / "page.txt").write_text(prose(1))
    found = look(tmp_path / "data")
    assert [source.name for source in found.sources] == ["text"]
    assert found.passed_over[0].reason.startswith(reason)


def test_the_column_is_a_usual_one_or_the_longest(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "data" / "a.jsonl", [{"url": "x" * 999, "body": prose(1)}])
    write_jsonl(tmp_path / "data" / "b.jsonl", [{"url": "http://x", "abstract": prose(1)}])
    assert {source.name: source.column for source in look(tmp_path / "data").sources} == {"a": "body", "b": "abstract"}


def test_lines_without_a_document_are_counted(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "data" / "a.jsonl", [{"text": prose(1)}, {"id": 2}, {"text": prose(3)}, {"text": prose(4)}])
    (source,) = look(tmp_path / "data").sources
    assert source.estimate.bad == 0.25


def test_what_cannot_be_looked_at_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "binary").mkdir()
    (tmp_path / "binary" / "a.png").write_bytes(b"\x89PNG\0" * 9)
    for name, message in {
        "absent": "absent: does not exist. Name a folder of text, code, JSONL, Parquet, token files or conversations.",
        "empty": "empty: is empty. Put text into it: .txt, .md, source code, JSONL or Parquet.",
        "binary": (
            "binary: holds nothing that can be read as text, tokens or conversations "
            "(1 such as a.png: binary, or not UTF-8). Name another folder."
        ),
    }.items():
        with pytest.raises(UsageError) as caught:
            look(tmp_path / name)
        assert str(caught.value) == f"{tmp_path}/{message}"


def test_every_file_that_cannot_be_read_is_named_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    write_jsonl(folder / "good.jsonl", [{"text": prose(1)}])
    (folder / "cut.jsonl.gz").write_bytes(gzip.compress(prose(1, 5000).encode())[:60])
    (folder / "nowhere.txt").symlink_to(folder / "absent.txt")
    (folder / "outside.txt").symlink_to(tmp_path / "absent" / "too.txt")
    (folder / "circle.txt").symlink_to(folder / "circle.txt")
    (folder / "twice.txt").write_text(prose(1))
    (folder / "twice-too.txt").hardlink_to(folder / "twice.txt")
    with pytest.raises(LookError) as caught:
        look(folder)
    message = str(caught.value)
    assert f"{folder}/cut.jsonl.gz: cannot be read: " in message
    for name in ("nowhere.txt", "outside.txt", "circle.txt"):
        assert f"{folder}/{name}: cannot be read: it is a pipe, a device or a link that leads nowhere" in message
    assert f"{folder}/twice.txt: is the same file as {folder}/twice-too.txt, and would be read twice." in message


def test_a_link_that_leads_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "outside.txt").write_text(prose(1))
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "link.txt").symlink_to(tmp_path / "outside.txt")
    with pytest.raises(SourceError, match="leads out of"):
        look(tmp_path / "data")


def test_a_folder_of_very_many_files_is_not_listed_to_its_end(mixed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_FILES", 10)
    assert not look(mixed).is_whole


def test_very_many_folders_are_sources_by_kind(tmp_path: Path) -> None:
    for number in range(12):
        folder = tmp_path / "data" / f"part{number}"
        folder.mkdir(parents=True)
        (folder / "a.py").write_text(f"x = {number}\n" * 50)
        (folder / "a.md").write_text(prose(number, 60))
        (folder / "b.bin").write_bytes(bytes(9))
    assert {each.name: each.paths for each in look(tmp_path / "data").sources} == {
        "code": (f"{tmp_path}/data/**/*.py",),
        "text": (f"{tmp_path}/data/**/*.md",),
    }


def test_conversations_with_bad_lines_are_conversations(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "data" / "a.jsonl", [talk(1), {"messages": []}, talk(2), talk(3)])
    (source,) = look(tmp_path / "data").sources
    assert (source.kind, source.estimate.bad) == ("chat", 0.25)
