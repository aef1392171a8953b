"""Text to token files: every form, any number of workers, killed at any time, bad lines, no-ops."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from tests.support.plans import config_of
from tests.support.texts import (
    BYTES,
    content_of,
    lines_of,
    prepare_bytes,
    texts_in,
    write_lines,
    write_parquet,
)
from trivium.errors import SourceError
from trivium.plan.make import make_plan
from trivium.prepare import shards
from trivium.prepare.encode import Form, Recipe
from trivium.prepare.prepare import prepare
from trivium.prepare.shards import FilesWork
from trivium.text.tokenizer import ByteTokenizer
from trivium.textfiles.inputs import find_inputs
from trivium.tokenfiles.manifest import read_manifest, verify
from trivium.tokenfiles.open import open_source

ROOT = Path(__file__).parents[2]
TEXTS = [f"document {number}: " + "words and more words " * (number % 7) for number in range(1, 400)]


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards of a few kilobytes, so that a small corpus has many."""
    monkeypatch.setattr(shards, "SMALLEST", 4096)
    monkeypatch.setattr(shards, "WANTED", 1000)


def write_corpus(folder: Path) -> Path:
    """One of each form, large and small."""
    write_lines(folder / "a-large.jsonl", TEXTS)
    write_lines(folder / "b-stream.jsonl.gz", TEXTS[:300])
    write_lines(folder / "b-stream.jsonl.zst", TEXTS[100:])
    write_parquet(folder / "c-rows.parquet", TEXTS[:90], row_group=20)
    for number in range(20):
        (folder / f"code/{number:02d}.py").parent.mkdir(exist_ok=True)
        (folder / f"code/{number:02d}.py").write_text(f"print({number})\n" * number or "pass\n")
    write_lines(folder / "d-small.json", TEXTS[:3])
    return folder


def expected_texts() -> list[str]:
    code = [f"print({number})\n" * number or "pass\n" for number in range(20)]
    return [*TEXTS, *TEXTS[:300], *TEXTS[100:], *TEXTS[:90], *code, *TEXTS[:3]]


@pytest.mark.usefixtures("small_shards")
def test_every_document_of_every_form_comes_out_once_and_in_order(tmp_path: Path) -> None:
    made = prepare_bytes(write_corpus(tmp_path / "in"), tmp_path / "out")
    assert texts_in(tmp_path / "out") == expected_texts()
    assert made.manifest.documents == len(expected_texts())
    assert len(made.manifest.files) > 20
    assert not [path.name for path in (tmp_path / "out").iterdir() if path.name.startswith(".") and path.is_dir()]


def test_a_folder_of_another_version_is_refused(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", TEXTS)
    prepare_bytes(tmp_path / "a.jsonl", tmp_path / "out")
    summary = json.loads((tmp_path / "out" / "prepared.json").read_text())
    summary["left_out"] = summary.pop("skipped")
    (tmp_path / "out" / "prepared.json").write_text(json.dumps(summary | {"version": 1}))
    with pytest.raises(SourceError) as error:
        prepare_bytes(tmp_path / "a.jsonl", tmp_path / "out")
    assert str(error.value) == (
        f"{tmp_path}/out/prepared.json: is of version 1, and this trivium writes version 3. "
        "Delete the folder, or give another."
    )


@pytest.mark.usefixtures("small_shards")
def test_the_manifest_is_of_these_files(tmp_path: Path) -> None:
    prepare_bytes(write_corpus(tmp_path / "in"), tmp_path / "out")
    assert verify(read_manifest(tmp_path / "out/manifest.json"), open_source(tmp_path / "out")) == ()


SLICED = """
import sys
from pathlib import Path
from tests.support.texts import prepare_bytes
from trivium.prepare import shards
shards.SMALLEST, shards.WANTED = 4096, 1000
prepare_bytes(Path(sys.argv[1]), Path(sys.argv[2]), workers=int(sys.argv[3]), written=sys.argv[4])
"""


def start(source: Path, out: Path, workers: int, written: str = "ds") -> subprocess.Popen[bytes]:
    """Prepare in a process of its own, with small shards."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", SLICED, str(source), str(out), str(workers), written]
    return subprocess.Popen(command, env=environment, cwd=ROOT)


@pytest.mark.slow
def test_any_number_of_workers_writes_the_same_files(tmp_path: Path) -> None:
    source = write_corpus(tmp_path / "in")
    for workers in (1, 2, 3):
        assert start(source, tmp_path / f"out-{workers}", workers).wait(120) == 0
    first = content_of(tmp_path / "out-1")
    assert len(first) > 60
    assert content_of(tmp_path / "out-2") == first
    assert content_of(tmp_path / "out-3") == first


@pytest.mark.slow
@pytest.mark.parametrize(("written", "kills"), [("ds", 15), ("megatron", 6)])
def test_killed_at_any_time_it_goes_on_and_writes_the_same_files(tmp_path: Path, written: str, kills: int) -> None:
    source = write_corpus(tmp_path / "in")
    assert start(source, tmp_path / "whole", 1, written).wait(120) == 0
    chance = random.Random(7)
    killed = 0
    for _ in range(kills):
        process = start(source, tmp_path / "out", 2, written)
        # From before the first shard to about the end, whatever a start costs here.
        wanted, deadline = chance.randrange(0, 40), time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline:
            records = len(list((tmp_path / "out").glob(".prepare/*.json")))
            if records >= wanted:
                time.sleep(chance.random() * 0.05)
                break
            time.sleep(0.001)
        killed += process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.wait()
        if (tmp_path / "out/manifest.json").is_file():
            assert content_of(tmp_path / "out") == content_of(tmp_path / "whole")
            for path in sorted((tmp_path / "out").glob("0000*")):
                path.unlink()
            (tmp_path / "out/manifest.json").unlink()
            (tmp_path / "out/.prepare").mkdir(exist_ok=True)
        else:
            with pytest.raises(SourceError, match=r"is not whole|does not exist"):
                open_source(tmp_path / "out")
    assert killed >= kills // 2
    assert start(source, tmp_path / "out", 2, written).wait(120) == 0
    assert content_of(tmp_path / "out") == content_of(tmp_path / "whole")
    assert not list((tmp_path / "out").glob(".*.draft"))


@pytest.mark.usefixtures("small_shards")
def test_megatron_files_hold_the_same_documents_under_the_same_promises(tmp_path: Path) -> None:
    source = write_corpus(tmp_path / "in")
    prepare_bytes(source, tmp_path / "out", written="megatron")
    assert texts_in(tmp_path / "out") == expected_texts()
    assert verify(read_manifest(tmp_path / "out/manifest.json"), open_source(tmp_path / "out")) == ()
    assert {path.suffix for path in (tmp_path / "out").iterdir() if path.name != ".lock"} == {".bin", ".idx", ".json"}
    with pytest.raises(SourceError, match="with another tokenizer, column or format"):
        prepare_bytes(source, tmp_path / "out")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("small_shards")
def test_megatron_reads_the_files_of_every_shard_document_for_document(tmp_path: Path) -> None:
    megatron = import_module("megatron.core.datasets.indexed_dataset")
    prepare_bytes(write_corpus(tmp_path / "in"), tmp_path / "out", written="megatron")
    prefixes = [str(path.with_suffix("")) for path in sorted((tmp_path / "out").glob("*.bin"))]
    assert len(prefixes) > 20
    files = [megatron.IndexedDataset(prefix) for prefix in prefixes]
    tokens = [file[number].tolist() for file in files for number in range(len(file))]
    assert [bytes(each[:-1]).decode() for each in tokens] == expected_texts()
    assert all(file.document_indices.tolist() == list(range(len(file) + 1)) for file in files)


@pytest.mark.usefixtures("small_shards")
def test_another_format_after_a_broken_try_leaves_one_format(tmp_path: Path) -> None:
    source = write_corpus(tmp_path / "in")
    (source / "e-last.jsonl.gz").write_bytes(b"no gzip")
    with pytest.raises(SourceError, match=r"e-last\.jsonl\.gz: cannot be read"):
        prepare_bytes(source, tmp_path / "out")
    assert list((tmp_path / "out").glob("*.ds"))
    (source / "e-last.jsonl.gz").unlink()
    prepare_bytes(source, tmp_path / "out", written="megatron")
    assert texts_in(tmp_path / "out") == expected_texts()
    assert not list((tmp_path / "out").glob("*.ds*"))


@pytest.mark.usefixtures("small_shards")
def test_a_damaged_shard_of_a_compressed_file_is_written_again_from_its_own_lines(tmp_path: Path) -> None:
    source = write_corpus(tmp_path / "in")
    (source / "e-last.jsonl.gz").write_bytes(b"no gzip")
    with pytest.raises(SourceError, match=r"e-last\.jsonl\.gz: cannot be read"):
        prepare_bytes(source, tmp_path / "out")
    (source / "e-last.jsonl.gz").unlink()
    (part, *_) = sorted((tmp_path / "out").glob("*-00001.ds"))
    part.write_bytes(b"")  # as a power cut may leave it
    prepare_bytes(source, tmp_path / "out")
    assert texts_in(tmp_path / "out") == expected_texts()


@pytest.mark.parametrize("form", ["chat", "tasks", "tokenised"])
def test_loss_masks_are_refused_for_megatron_files(form: Form) -> None:
    with pytest.raises(SourceError) as error:
        Recipe(form, ByteTokenizer(), BYTES, format="megatron")
    assert str(error.value) == (
        "has tokens that do not count in the loss, and Megatron's files cannot hold loss masks. "
        "Prepare it as datatrove's files, which is the default."
    )


@pytest.mark.usefixtures("small_shards")
def test_finished_shards_are_not_encoded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_corpus(tmp_path / "in")
    (source / "e-last.jsonl.gz").write_bytes(b"no gzip")
    with pytest.raises(SourceError, match=r"e-last\.jsonl\.gz: cannot be read: Not a gzipped file"):
        prepare_bytes(source, tmp_path / "out")
    (source / "e-last.jsonl.gz").unlink()
    write_lines(source / "e-last.jsonl", ["mended"])
    encoded: list[str] = []
    from trivium.prepare import encode

    genuine = encode.ShardEncoder.encode

    def counted(self: encode.ShardEncoder, queued: shards.QueuedShard, report: encode.Report) -> encode.Outcome:
        encoded.append(queued.shard.name)
        return genuine(self, queued, report)

    monkeypatch.setattr(encode.ShardEncoder, "encode", counted)
    prepare_bytes(source, tmp_path / "out")
    assert len(encoded) == 1
    assert texts_in(tmp_path / "out") == [*expected_texts(), "mended"]
    prepare_bytes(source, tmp_path / "out")
    assert len(encoded) == 1


def test_a_folder_with_other_content_is_refused(tmp_path: Path) -> None:
    source, out = write_lines(tmp_path / "a.jsonl", TEXTS), tmp_path / "out"
    prepare_bytes(source, out)
    write_lines(source, TEXTS[:-1])
    with pytest.raises(SourceError) as error:
        prepare_bytes(source, out)
    assert str(error.value) == (
        f"{out}: was prepared from other text, or with another tokenizer, column or format. "
        "Give another folder, or delete this one."
    )
    (out / "prepared.json").unlink()
    with pytest.raises(SourceError) as error:
        prepare_bytes(source, out)
    assert str(error.value) == (
        f"{out}: holds token files that were not prepared here. Give a folder that does not exist yet."
    )


def test_the_same_text_under_another_time_of_change_is_the_same(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", TEXTS)
    prepare_bytes(source, tmp_path / "out")
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}
    os.utime(source, ns=(1, 1))
    prepare_bytes(source, tmp_path / "out")
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()} == before


def test_bad_lines_are_counted_shown_and_skipped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = lines_of(["good", ""]) + b'{"text": 3}\n{"other": "x"}\n{"text": "cut\n[1]\n' + lines_of(["last"])
    (tmp_path / "a.jsonl").write_bytes(lines)
    with pytest.raises(SourceError) as error:
        prepare_bytes(tmp_path / "a.jsonl", tmp_path / "out", most_bad=0.5)
    listed = [
        '1 "text" is not text: a.jsonl line 3',
        "1 broken JSON: a.jsonl line 5",
        "1 empty: a.jsonl line 2",
        '1 no "text", but other: a.jsonl line 4',
        "1 not a JSON object: a.jsonl line 6",
    ]
    assert str(error.value) == (
        "web: 4 of 7 lines hold no document, 57.14%: over the limit of 0.5. "
        "Fix them, or allow 1 with --bad-lines, or with bad_lines in the source.\n  " + "\n  ".join(listed)
    )
    prepare_bytes(tmp_path / "a.jsonl", tmp_path / "out", most_bad=1.0)
    assert texts_in(tmp_path / "out") == ["good", "last"]
    assert capsys.readouterr().err.splitlines() == [f"web: skipped {line}" for line in listed]
    said = json.loads((tmp_path / "out/prepared.json").read_text())
    assert (said["documents"], said["lines"], said["skipped"]["counts"]["broken JSON"]) == (2, 7, 1)


@pytest.mark.usefixtures("small_shards")
def test_bad_lines_are_named_by_their_line_in_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = lines_of(TEXTS).splitlines(keepends=True)
    lines[349] = b'{"text": 7}\n'
    for name in ("a.jsonl", "a.jsonl.gz"):
        path = write_lines(tmp_path / name, [])
        path.write_bytes(b"".join(lines) if name == "a.jsonl" else import_module("gzip").compress(b"".join(lines)))
        prepare_bytes(path, tmp_path / f"out-{name}", most_bad=0.01)
        assert capsys.readouterr().err == f'web: skipped 1 "text" is not text: {name} line 350\n'


@pytest.mark.usefixtures("small_shards")
def test_very_many_bad_lines_stop_it_early(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"{}\n" * 20_000)
    with pytest.raises(SourceError, match=r"lines hold no document, 100\.00%") as error:
        prepare_bytes(tmp_path / "a.jsonl", tmp_path / "out")
    assert "of 20,000 lines" not in str(error.value)


def test_nothing_to_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"text": ""}\n')
    with pytest.raises(SourceError) as error:
        prepare_bytes(tmp_path / "a.jsonl", tmp_path / "out")
    assert str(error.value) == (
        "no document was found in 1 lines (1 empty: a.jsonl line 1). Look at its path and column."
    )


@pytest.mark.parametrize(
    ("add", "tokens"),
    [(None, [97, 256]), (("bos",), [257, 97]), (("eos", "bos"), [257, 97, 256]), ((), [97])],
    ids=["default", "bos", "both", "none"],
)
def test_documents_have_what_is_asked_for_around_them(tmp_path: Path, add: object, tokens: list[int]) -> None:
    files = FilesWork(find_inputs([str(write_lines(tmp_path / "a.jsonl", ["a"]))]))
    recipe = Recipe("text", ByteTokenizer(), BYTES, add=add)  # type: ignore[arg-type]
    prepare(files, recipe, tmp_path / "out", title="web")
    (file,) = open_source(tmp_path / "out")
    assert (file.tokens.tolist(), file.dtype.name, file.tokenizer) == (tokens, "uint16", "bytes")


def test_a_token_that_the_tokenizer_does_not_have_is_refused(tmp_path: Path) -> None:
    class Bare(ByteTokenizer):
        def special(self, role: object) -> int | None:
            return None

    files = FilesWork(find_inputs([str(write_lines(tmp_path / "a.jsonl", ["a"]))]))
    with pytest.raises(SourceError) as error:
        prepare(files, Recipe("text", Bare(), BYTES, add=("bos",)), tmp_path / "out", title="web")
    assert str(error.value) == ('add = ["bos"]: the tokenizer has no such token. Write add = [], or another token.')
    assert Recipe("text", Bare(), BYTES).added == ()


@pytest.mark.filterwarnings("ignore")
def test_datatrove_reads_what_was_prepared(tmp_path: Path) -> None:
    prepare_bytes(write_lines(tmp_path / "a.jsonl", TEXTS), tmp_path / "out")
    (file,) = open_source(tmp_path / "out")
    dataset = import_module("datatrove.utils.dataset")
    rows = dataset.DatatroveFolderDataset(str(tmp_path / "out"), seq_len=15, recursive=False, return_positions=True)
    read = np.concatenate([row["input_ids"].numpy() for row in rows])
    assert read.tolist() == file.tokens[: len(read)].tolist()
    assert len(read) > len(file.tokens) - 16


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own, which can be made read-only."""
    path = tmp_path / "disk"
    path.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(path)], capture_output=True).returncode:
        pytest.skip("a disk can be mounted by root only")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


def test_what_is_prepared_can_be_used_from_a_disk_that_cannot_be_written_to(
    disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRIVIUM_CACHE", str(disk))
    write_lines(tmp_path / "in/a.jsonl", ["one", "two"])

    def documents(seq_len: int) -> int:
        tables = {"tokenizer": {"kind": "bytes"}, "sources": {"web": {"kind": "text", "path": str(tmp_path / "in")}}}
        config = config_of([{"steps": 2, "seq_len": seq_len, "batch_size": 1}], **tables)
        return make_plan(config, prepare=True).complete().sources["web"].documents

    assert documents(seq_len=8) == 2
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    assert documents(seq_len=16) == 2  # another reading, of which nothing can be kept
    what = "may only be read, so that what is computed is not kept, and is computed again next time"
    assert capsys.readouterr().err.endswith(f"{disk}: {what}.\n")
