import gzip
from pathlib import Path

import pytest

from tests.support.texts import lines_of, prepare_bytes, texts_in, write_lines, write_parquet
from trivium.errors import SourceError
from trivium.textfiles.read import (
    InputRecords,
    lines_before,
    read_lines,
    read_parquet,
    read_sent_lines,
    read_text,
    texts_of,
)

TEXTS = ["one", "two two", "zwölf Boxkämpfer", "", "line\nbreak", "x" * 300]
DAMAGED = "It is truncated or damaged: copy it again, or take it out."


def records(path: Path, start: int = 0, stop: int | None = None) -> list[tuple[int, str]]:
    found = read_lines(path, start, path.stat().st_size if stop is None else stop)
    return [
        (number, record["text"]) for each in found for number, record in zip(each.numbers, each.records, strict=True)
    ]


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.jsonl.zst"])
def test_every_line_is_a_record(tmp_path: Path, name: str) -> None:
    path = write_lines(tmp_path / name, TEXTS)
    assert records(path) == [(number, text) for number, text in enumerate(TEXTS, 1)]


@pytest.mark.parametrize("size", [1, 7, 40, 41, 100, 10_000])
def test_pieces_of_a_file_have_every_line_once(tmp_path: Path, size: int) -> None:
    path = write_lines(tmp_path / "a.jsonl", TEXTS)
    total = path.stat().st_size
    found = []
    for start in range(0, total, size):
        before = lines_before(path, "jsonl", start)
        found += [(before + number, text) for number, text in records(path, start, min(start + size, total))]
    assert found == [(number, text) for number, text in enumerate(TEXTS, 1)]


def test_a_last_line_without_an_end_is_a_record(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(lines_of(["a", "b"]).rstrip())
    assert records(tmp_path / "a.jsonl") == [(1, "a"), (2, "b")]


def test_broken_lines_are_found_one_by_one(tmp_path: Path) -> None:
    lines = [
        b'{"text": "good"}',
        b'{"text": "cut',
        b"",
        b'{"text": "\xff"}',
        b'{"text": "half \\ud800"}',
        b'{"text": "good", "score": NaN}',
        b"[" * 100_000,
    ]
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines))
    (found,) = read_lines(tmp_path / "a.jsonl", 0, 10**9)
    assert found.numbers == [1, 6]
    assert found.bad == [(2, "broken JSON"), (4, "invalid UTF-8"), (5, "broken JSON"), (7, "broken JSON")]


def test_a_line_over_the_limit_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trivium.textfiles.read.MOST_BYTES", 100)
    path = write_lines(tmp_path / "a.jsonl", ["short", "x" * 500, "after"])
    (found,) = read_lines(path, 0, path.stat().st_size)
    assert ([record["text"] for record in found.records], found.bad) == (["short", "after"], [(2, "over 200 MB")])
    assert found.numbers == [1, 3]


def test_several_frames_and_members_are_read_as_one(tmp_path: Path) -> None:
    for name in ("a.jsonl.gz", "a.jsonl.zst"):
        first = write_lines(tmp_path / name, ["a"]).read_bytes()
        (tmp_path / name).write_bytes(first + write_lines(tmp_path / name, ["b"]).read_bytes())
        assert [text for _, text in records(tmp_path / name)] == ["a", "b"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("a.jsonl.gz", "Compressed file ended before the end-of-stream marker was reached"),
        ("a.jsonl.zst", "it ends within a frame"),
    ],
)
def test_a_truncated_stream_is_an_error_that_names_the_file(tmp_path: Path, name: str, reason: str) -> None:
    path = write_lines(tmp_path / name, [str(number) * 50 for number in range(5000)])
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(SourceError) as error:
        records(path)
    assert str(error.value) == f"{path}: cannot be read: {reason}. {DAMAGED}"


def test_what_is_no_gzip_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(b"plain text")
    with pytest.raises(SourceError, match="Not a gzipped file") as error:
        records(path)
    assert str(error.value).startswith(f"{path}: cannot be read: ")


def test_rows_of_parquet_are_read_group_by_group(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", ["a", "b", None, "d", "e"], row_group=2)
    found = [each for start in range(3) for each in read_parquet(path, start, start + 1, "text")]
    assert [each.records for each in found] == [["a", "b"], [None, "d"], ["e"]]
    assert lines_before(path, "parquet", 2) == 4


def test_parquet_says_which_columns_there_are(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", ["a"])
    with pytest.raises(SourceError) as error:
        list(read_parquet(path, 0, 1, "content"))
    assert str(error.value) == (f'{path}: has no column "content". It has id, text: write column = "id" or another.')
    with pytest.raises(SourceError) as error:
        list(read_parquet(path, 0, 1, "id"))
    assert str(error.value) == f'{path}: column "id" holds int64, and text is needed. Name another column.'


def test_a_corrupt_parquet_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", [str(number) * 99 for number in range(999)])
    whole = path.read_bytes()
    for content in (whole[:-10], b"", whole[:4] + bytes(len(whole) // 2) + whole[4 + len(whole) // 2 :]):
        path.write_bytes(content)
        with pytest.raises(SourceError) as error:
            list(read_parquet(path, 0, 1, "text"))
        assert str(error.value).startswith(f"{path}: cannot be read: ")
        assert str(error.value).endswith(DAMAGED)


def test_texts_of_parquet_that_are_no_utf8_are_bad(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    column = pyarrow.array([b"a", b"\xff", b"c"], pyarrow.binary()).view(pyarrow.string())
    pyarrow.parquet.write_table(pyarrow.table({"text": column}), tmp_path / "a.parquet")
    (found,) = read_parquet(tmp_path / "a.parquet", 0, 1, "text")
    assert (found.records, found.numbers, found.bad) == (["a", "c"], [1, 3], [(2, "invalid UTF-8")])


def test_a_text_is_one_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.py").write_text("print('é')\n")
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"packed"))
    (tmp_path / "c.png").write_bytes(b"\x89PNG\0")
    (tmp_path / "d.txt").write_bytes(b"caf\xe9")
    found = [next(iter(read_text(path))) for path in sorted(tmp_path.iterdir())]
    assert [each.records for each in found] == [["print('é')\n"], ["packed"], [], []]
    assert [each.bad for each in found] == [[], [], [(1, "a binary file")], [(1, "invalid UTF-8")]]
    monkeypatch.setattr("trivium.textfiles.read.MOST_BYTES", 5)
    assert next(iter(read_text(tmp_path / "a.py"))).bad == [(1, "over 200 MB")]


def test_lines_that_were_sent_are_read_alike() -> None:
    (found,) = read_sent_lines(lines_of(TEXTS))
    assert [record["text"] for record in found.records] == TEXTS


def test_a_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    mark = b"\xef\xbb\xbf"
    (tmp_path / "a.json").write_bytes(mark + lines_of(["a", "b"]))
    (tmp_path / "b.txt").write_bytes(mark + b"c")
    assert prepare_bytes(tmp_path, tmp_path / "out").bad.counts == {}
    assert texts_in(tmp_path / "out") == ["a", "b", "c"]


def test_a_record_without_the_column_names_those_that_it_has() -> None:
    columns = {"id": 1, "body": "x", "n" * 50: 0}
    found = InputRecords([columns, {"other": 1}, {}, {"text": 5}, [], {"text": "a"}], [1, 2, 3, 4, 5, 6])
    assert texts_of(found, "text") == {6: "a"}
    absent = 'no "text", but id, body'
    assert found.bad[:3] == [(1, absent), (2, absent), (3, absent)]
    assert found.bad[3:] == [(4, '"text" is not text'), (5, "not a JSON object")]
    many = InputRecords([{str(number): 0 for number in range(20)}], [1])
    texts_of(many, "text")
    assert many.bad == [(1, 'no "text", but 0, 1, 2, 3, 4, 5, 6, 7, ...')]
