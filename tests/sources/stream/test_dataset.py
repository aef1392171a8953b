"""Streaming datasets: on disk in several forms, and behind a server that fails."""

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.streams import Server, make_stream, serving, text_of, write_jsonl
from trivium.errors import SourceError, StoppedError
from trivium.sources.stream.dataset import BUILDERS, CHUNK_EXAMPLES, LanePart, LanePosition, StreamDataset
from trivium.sources.stream.lane import LaneState, read_windows
from trivium.sources.stream.prefetch import Retries

BODY_TEXTS = 3000
BODY_LENGTH = 9000


def read(stream: StreamDataset, lane: int = 0, start: LanePosition | None = None) -> list[tuple[int, int, str]]:
    chunks = stream.read(stream.part(lane), start or LanePosition())
    return [
        (chunk.file, example, text)
        for chunk in chunks
        for text, example in zip(chunk.texts, chunk.examples, strict=True)
    ]


def write_parquet(folder: Path, files: list[int]) -> Path:
    folder.mkdir()
    for number, count in enumerate(files):
        texts = [text_of(number, example, 12) for example in range(count)]
        table = pa.table({"text": texts, "number": list(range(count)), "nothing": [""] * count})
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=10)
    return folder


def test_with_more_files_than_lanes_a_lane_reads_every_nth_file(tmp_path: Path) -> None:
    stream = make_stream(write_jsonl(tmp_path / "web", [[9]] * 5), lanes=2)
    assert [stream.part(lane) for lane in range(2)] == [LanePart((0, 2, 4), 1, 0), LanePart((1, 3), 1, 0)]
    assert [text for _, _, text in read(stream, 1)] == [text_of(1, 0, 9), text_of(3, 0, 9)]


def test_with_fewer_files_lanes_share_a_file_by_examples(tmp_path: Path) -> None:
    stream = make_stream(write_jsonl(tmp_path / "web", [[9] * 7, [9] * 4]), lanes=5)
    parts = [stream.part(lane) for lane in range(5)]
    assert parts == [
        LanePart((0,), 3, 0),
        LanePart((1,), 2, 0),
        LanePart((0,), 3, 1),
        LanePart((1,), 2, 1),
        LanePart((0,), 3, 2),
    ]
    read_by = [[text for _, _, text in read(stream, lane)] for lane in range(5)]
    assert read_by[2] == [text_of(0, example, 9) for example in (1, 4)]
    everything = [text_of(file, example, 9) for file, count in ((0, 7), (1, 4)) for example in range(count)]
    assert sorted(text for texts in read_by for text in texts) == sorted(everything)


@pytest.mark.parametrize("lanes", [1, 3])
def test_from_any_position_on_the_rest_is_read(tmp_path: Path, lanes: int) -> None:
    stream = make_stream(write_parquet(tmp_path / "web", [25, CHUNK_EXAMPLES + 7]), lanes=lanes)
    for lane in range(lanes):
        whole = read(stream, lane)
        for file, example, _ in whole[::11]:
            found = read(stream, lane, LanePosition(file, example))
            assert found == [each for each in whole if each[:2] >= (file, example)]


def test_a_chunk_knows_the_position_where_the_next_one_begins(tmp_path: Path) -> None:
    stream = make_stream(write_jsonl(tmp_path / "web", [[9] * 600, [9] * 3]), lanes=1)
    chunks = list(stream.read(stream.part(0), LanePosition(0, 300)))
    assert [chunk.after for chunk in chunks] == [
        LanePosition(0, 256),
        LanePosition(0, 512),
        LanePosition(0, 600),
        LanePosition(1, 3),
    ]
    assert [len(chunk.texts) for chunk in chunks] == [0, 212, 88, 3]


def test_a_data_file_is_read_by_itself(tmp_path: Path) -> None:
    file = write_parquet(tmp_path / "web", [5]) / "0.parquet"
    assert len(read(make_stream(file, lanes=1, split="test"))) == 5
    plain = tmp_path / "notes.txt"
    plain.write_text("one\n\ntwo\n")
    assert [text for _, _, text in read(make_stream(plain, lanes=1))] == ["one", "two"]


def test_a_documents_end_is_marked(tmp_path: Path) -> None:
    stream = make_stream(tmp_path)
    assert [tokens.tolist() for tokens in stream.encode(["ab", "c"])] == [[97, 98, 256], [99, 256]]
    assert stream.encode(["ab"])[0].dtype == "uint16"


@pytest.mark.parametrize(
    ("add", "tokens"),
    [(["bos"], [257, 97]), (["eos", "bos"], [257, 97, 256]), ([], [97])],
    ids=["bos", "both", "none"],
)
def test_a_document_has_the_special_tokens_that_are_asked_for(
    tmp_path: Path, add: list[str], tokens: list[int]
) -> None:
    assert make_stream(tmp_path, add=add).encode(["a"])[0].tolist() == tokens


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("body", 'column: there is no column "body" in {folder}. It has: text, number, nothing.'),
        ("number", 'column: "number" of {folder} holds int64, not text. Name another.'),
    ],
)
def test_a_column_that_is_no_text_is_refused(tmp_path: Path, column: str, message: str) -> None:
    folder = write_parquet(tmp_path / "web", [3])
    with pytest.raises(SourceError) as error:
        read(make_stream(folder, column=column))
    assert str(error.value) == message.format(folder=folder)


def test_what_cannot_be_opened_is_said(tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    folder = write_jsonl(tmp_path / "web", [[5]])
    for stream, message in (
        (
            make_stream(nowhere),
            f"dataset: {nowhere} cannot be opened: FileNotFoundError: Couldn't find any data file at {nowhere}.",
        ),
        (
            make_stream(folder, split="test"),
            f"dataset: {folder} cannot be opened: ValueError: Bad split: test. Available splits: ['train']",
        ),
    ):
        with pytest.raises(SourceError) as error:
            read(stream)
        assert str(error.value) == message


@pytest.fixture(scope="module")
def body() -> bytes:
    lines = (json.dumps({"text": text_of(0, number, BODY_LENGTH)}) for number in range(BODY_TEXTS))
    return "".join(f"{line}\n" for line in lines).encode()


@pytest.fixture
def server(body: bytes) -> Iterator[Server]:
    with serving(body) as found:
        yield found


def examples_read(server: Server, faults: dict[int, str], retries: Retries, logged: list[str]) -> list[int]:
    stream = make_stream(server.url, retries, lanes=1, shuffle_buffer=700)
    stream.part(0)  # opened without faults
    server.requests, server.faults = 0, faults
    windows = read_windows(stream, 0, LaneState(), logged.append)
    return [example for documents in windows for example in documents.examples.tolist()]


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["500", "break", "stall"])
def test_a_remote_that_fails_for_a_while_is_waited_for(server: Server, fault: str) -> None:
    faults = {2: fault, 5: fault, 6: fault}
    pauses: list[float] = []
    logged: list[str] = []
    retries = Retries((1, 2, 4), stall_seconds=1.0, sleep=pauses.append)
    assert examples_read(server, faults, retries, logged) == list(range(BODY_TEXTS))
    assert pauses[0] == 1
    reason = "TimeoutError: nothing came for 1 s" if fault == "stall" else "ConnectionError: Server Disconnected"
    assert logged[0] == f"failed with {reason}; retries in 1 s"


def test_a_remote_that_stays_away_is_an_error_that_says_how_far_it_got(server: Server) -> None:
    faults = dict.fromkeys(range(2, 1000), "500")
    pauses: list[float] = []
    with pytest.raises(SourceError) as error:
        examples_read(server, faults, Retries((1, 2, 4), sleep=pauses.append), [])
    assert str(error.value) == (
        "lane 0, after 1,024 documents of it: failed 4 times in a row, "
        "the last time with ConnectionError: Server Disconnected"
    )
    assert pauses == [1, 2, 4]


@pytest.mark.parametrize("status", [404, 403])
def test_a_file_that_is_gone_while_it_is_read_is_not_asked_for_again(server: Server, status: int) -> None:
    pauses: list[float] = []
    server.gone = 2, status
    with pytest.raises(SourceError) as error:
        examples_read(server, {}, Retries((1, 2, 4), sleep=pauses.append), [])
    what = f"dataset: {server.url} cannot be read on: the server answers {status}."
    assert str(error.value) == f"lane 0, after 1,024 documents of it: {what}"
    assert not pauses


def test_a_file_on_disk_that_is_gone_while_it_is_read_is_not_asked_for_again(tmp_path: Path) -> None:
    folder = write_jsonl(tmp_path / "web", [[9] * 4, [9] * 4])
    pauses: list[float] = []
    stream = make_stream(folder, Retries((1, 2, 4), sleep=pauses.append), lanes=1)
    stream.part(0)  # opened while both are there
    (folder / "001.jsonl").unlink()
    with pytest.raises(SourceError) as error:
        list(read_windows(stream, 0, LaneState(), print))
    assert str(error.value).startswith(f"lane 0, after 4 documents of it: dataset: {folder} cannot be read on: ")
    assert not pauses


def test_a_remote_that_never_answers_is_an_error() -> None:
    with serving(b"") as server:
        url = server.url  # and now it is gone
    pauses: list[float] = []
    stream = make_stream(url, Retries((1, 2), sleep=pauses.append))
    with pytest.raises(SourceError) as error:
        read(stream)
    assert str(error.value) == (
        f"dataset: {url} did not answer 3 times, the last time with FileNotFoundError: Unable to find '{url}'"
    )
    assert sum(pauses) == 3


def test_a_stop_ends_the_wait_for_a_remote_that_does_not_answer() -> None:
    with serving(b"") as server:
        url = server.url  # and now it is gone
    pauses: list[float] = []
    stream = make_stream(url, Retries((64,), sleep=pauses.append))
    stream.stopping = lambda: len(pauses) == 3
    with pytest.raises(StoppedError) as error:
        read(stream)
    assert str(error.value) == f"stopped while waiting for {url}. Start the run again."
    assert pauses == [0.5] * 3


@pytest.mark.parametrize("query", ["", "?token=abc"], ids=["plain", "query"])
@pytest.mark.parametrize(("status", "tries"), [(404, 0), (403, 0), (503, 2)])
def test_an_answer_that_refuses_is_not_asked_for_again(status: int, tries: int, query: str) -> None:
    pauses: list[float] = []
    with serving(b"") as server:
        server.status = status
        stream = make_stream(server.url + query, Retries((0.5,) * 2, sleep=pauses.append))
        with pytest.raises(SourceError) as error:
            read(stream)
    shown = server.url + query.replace("abc", "***")
    if not tries:
        assert str(error.value) == f"dataset: {shown} cannot be opened: the server answers {status}."
    assert "abc" not in str(error.value)
    assert len(pauses) == tries


def test_a_presigned_address_is_read_with_its_query() -> None:
    with serving(b'{"text": "one"}\n{"text": "two"}\n') as server:
        stream = make_stream(f"{server.url}?token=a.b&X-Amz-Signature=9%2Bf", lanes=1)
        assert [text for _, _, text in read(stream)] == ["one", "two"]
    assert "/data.jsonl?token=a.b&X-Amz-Signature=9%2Bf" in server.paths


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("http://host/data.xyz?token=a.jsonl", "http://host/data.xyz?token=***"),
        ("https://me:secret@host/data", "https://***@host/data"),
    ],
)
def test_an_address_of_a_file_that_nothing_reads_is_refused_before_it_is_opened(address: str, shown: str) -> None:
    with pytest.raises(SourceError) as error:
        make_stream(address)
    known = ", ".join(BUILDERS)
    assert str(error.value) == f"dataset: {shown} is not a file that can be read. Give one of {known}."


def test_a_file_that_nothing_reads_is_refused_before_it_is_opened(tmp_path: Path) -> None:
    strange = tmp_path / "data.xyz"
    strange.touch()
    with pytest.raises(SourceError, match=r"data\.xyz is not a file that can be read"):
        make_stream(strange)
