"""Processes that encode: what happens when one meets a damaged file, or is ended."""

import gzip
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from tests.support.texts import BYTES, prepare_bytes, texts_in, write_lines
from trivium.errors import SourceError
from trivium.prepare import shards
from trivium.prepare.encode import Recipe
from trivium.prepare.shards import QueuedShard
from trivium.prepare.workers import Worker
from trivium.text.tokenizer import ByteTokenizer
from trivium.textfiles.inputs import find_inputs

TEXTS = [f"document {number}" * 20 for number in range(400)]


@pytest.mark.slow
def test_a_damaged_file_stops_all_workers_and_what_is_finished_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "SMALLEST", 4096)
    monkeypatch.setattr(shards, "WANTED", 1000)
    write_lines(tmp_path / "in/a.jsonl", TEXTS)
    whole = write_lines(tmp_path / "in/b.jsonl.gz", TEXTS).read_bytes()
    (tmp_path / "in/b.jsonl.gz").write_bytes(whole[:-8])
    with pytest.raises(SourceError) as error:
        prepare_bytes(tmp_path / "in", tmp_path / "out", workers=2)
    assert str(error.value) == (
        f"{tmp_path}/in/b.jsonl.gz: cannot be read: Compressed file ended before the end-of-stream marker was "
        "reached. It is truncated or damaged: copy it again, or take it out."
    )
    assert len(list((tmp_path / "out").glob(".prepare/0*.json"))) > 10
    (tmp_path / "in/b.jsonl.gz").write_bytes(gzip.compress(gzip.decompress(whole)))
    prepare_bytes(tmp_path / "in", tmp_path / "out", workers=2)
    assert texts_in(tmp_path / "out") == [*TEXTS, *TEXTS]


def test_a_worker_that_is_ended_is_an_error_that_says_so(tmp_path: Path) -> None:
    files = find_inputs([str(write_lines(tmp_path / "a.jsonl", TEXTS))])
    worker = Worker(Recipe("text", ByteTokenizer(), BYTES).job(tmp_path / "out"))
    try:
        worker._process.kill()
        (shard,) = shards.divide(files)
        assert isinstance(shard, shards.Shard)
        with pytest.raises(SourceError) as error:
            worker.encode(QueuedShard(shard), lambda *_: None)
    finally:
        worker.end()
    assert str(error.value) == (
        "a process that encodes a.jsonl was ended by signal 9, for want of memory perhaps. "
        "What is finished stays: try --workers 1."
    )


def children() -> set[int]:
    """The processes that this one has started."""
    return {int(child) for path in Path("/proc/self/task").glob("*/children") for child in path.read_text().split()}


def test_a_worker_that_is_killed_leaves_no_draft(tmp_path: Path) -> None:
    text = "a document that takes its time " * 100
    write_lines(tmp_path / "in/a.jsonl", [text] * 3000)
    write_lines(tmp_path / "in/b.jsonl", [text] * 3000)
    out, others = tmp_path / "out", children()

    def kill_workers() -> None:
        while not list(out.glob(".*.draft")):
            time.sleep(0.001)
        for worker in children() - others:
            os.kill(worker, signal.SIGKILL)

    killer = threading.Thread(target=kill_workers)
    killer.start()
    with pytest.raises(SourceError, match="was ended by signal 9"):
        prepare_bytes(tmp_path / "in", out, workers=2)
    killer.join()
    assert not list(out.rglob(".*.draft"))
