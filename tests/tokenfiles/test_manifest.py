import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.writers import write_bin, write_ds, write_megatron, write_npy
from trivium.errors import Problem, SourceError
from trivium.tokenfiles import manifest as manifest_module
from trivium.tokenfiles.manifest import (
    Manifest,
    TokenFileFacts,
    check_vocab,
    manifest_of,
    measure,
    read_manifest,
    verify,
    write_manifest,
)
from trivium.tokenfiles.open import TokenFileSettings, open_source

FIRST = [[7, 1, 0], [2, 0], [3, 3, 3, 0]]
SECOND = [[9, 0], [], [4, 50_256, 6, 0]]
EITHER_WAY = "Delete it to have the files measured, or prepare the source again."


@pytest.fixture
def web(tmp_path: Path) -> Path:
    """A source of two files, the second with a loss."""
    write_ds(tmp_path / "web" / "0.ds", FIRST)
    write_ds(tmp_path / "web" / "a" / "1.ds", SECOND, loss=[1, 0, 1, 1, 0, 0])
    return tmp_path / "web"


@pytest.fixture
def prepared(web: Path, cache: Path) -> Path:
    write_manifest(measure(open_source(web, cache=cache)), web / "manifest.json")
    return web


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(SourceError) as caught:
        call()
    return str(caught.value)


def test_a_manifest_says_what_is_in_each_file_and_in_all(web: Path, cache: Path) -> None:
    manifest = manifest_of(open_source(web), cache=cache)
    # Golden: a fingerprint that changes by accident would refuse every run that is under way.
    assert manifest == Manifest(
        (
            TokenFileFacts("0.ds", 18 + 24, 3, 9, "uint16", 7, "3247e237c829db6181ea60f96a9f0704"),
            TokenFileFacts("a/1.ds", 12 + 24 + 6, 3, 6, "uint16", 50_256, "dc5b66ebb4706a3e0b7817d78508ed7e"),
        ),
        "gpt2",
    )
    assert (manifest.documents, manifest.tokens, manifest.largest_id) == (6, 15, 50_256)
    assert manifest.fingerprint == "bfb883f405336d30441450b3b6d32ec5"


def test_a_fingerprint_is_of_content_and_names_not_of_place_or_format(tmp_path: Path, cache: Path) -> None:
    def fingerprint(path: Path, settings: TokenFileSettings | None = None) -> str:
        return measure(open_source(path, settings, cache)).fingerprint

    here = fingerprint(write_ds(tmp_path / "here" / "x.ds", FIRST))
    assert fingerprint(write_ds(tmp_path / "there" / "x.ds", FIRST)) == here
    assert fingerprint(write_ds(tmp_path / "y.ds", FIRST)) != here
    assert fingerprint(write_ds(tmp_path / "loss" / "x.ds", FIRST, loss=[1] * 9)) != here
    assert fingerprint(write_ds(tmp_path / "other" / "x.ds", [[7, 1], [0, 2, 0], [3, 3, 3, 0]])) != here
    flat = fingerprint(write_bin(tmp_path / "flat" / "x.bin", FIRST), TokenFileSettings("uint16", eos=0))
    assert fingerprint(write_megatron(tmp_path / "megatron" / "x.bin", [[document] for document in FIRST])) == flat


def test_the_hash_does_not_depend_on_how_much_is_read_at_a_time(
    web: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = open_source(web, cache=cache)
    whole = measure(files)
    monkeypatch.setattr(manifest_module, "SLICE_BYTES", 8)
    assert measure(files) == whole


def test_progress_counts_every_token(web: Path, cache: Path) -> None:
    told: list[int] = []
    measure(open_source(web, cache=cache), told.append)
    assert sum(told) == 15


def test_a_source_is_measured_once_until_a_file_or_the_layout_changes(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_npy(tmp_path / "a.npy", FIRST)
    first = manifest_of(open_source(path, TokenFileSettings(eos=0), cache), cache=cache)
    with monkeypatch.context() as patch:
        patch.setattr(manifest_module, "measure", None)
        assert manifest_of(open_source(path, TokenFileSettings(eos=0), cache), cache=cache) == first
    assert manifest_of(open_source(path, TokenFileSettings(eos=3), cache), cache=cache).documents == 4
    os.utime(write_npy(path, [[*FIRST[0], 8, 0], *FIRST[1:]]), ns=(1, 1))
    assert manifest_of(open_source(path, TokenFileSettings(eos=0), cache), cache=cache).tokens == 11


def test_a_prepared_manifest_is_believed_without_reading_the_files(
    prepared: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = measure(open_source(prepared, cache=cache))
    monkeypatch.setattr(manifest_module, "measure", None)
    assert manifest_of(open_source(prepared, cache=cache), prepared, cache) == expected
    assert not (cache / "manifests").exists()


def test_a_written_manifest_is_read_back(prepared: Path) -> None:
    manifest = read_manifest(prepared / "manifest.json")
    write_manifest(replace(manifest, tokenizer=None), prepared / "manifest.json")
    assert read_manifest(prepared / "manifest.json") == replace(manifest, tokenizer=None)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (
            lambda web: write_ds(web / "0.ds", FIRST[:-1]),
            "0.ds: was 42 bytes, is 26; was 3 documents, is 2; was 9 tokens, is 5.",
        ),
        (
            lambda web: write_ds(web / "0.ds", [[7, 1], [0, 2, 0, 3, 3, 3, 0]]),
            "0.ds: was 42 bytes, is 34; was 3 documents, is 2.",
        ),
        (lambda web: os.unlink(web / "a" / "1.ds.loss"), "a/1.ds: was 42 bytes, is 36."),
        (lambda web: write_ds(web / "2.ds", FIRST), "2.ds: exists and is not listed."),
        (lambda web: [path.unlink() for path in web.glob("0.ds*")], "0.ds: is listed and does not exist."),
    ],
)
def test_a_manifest_of_other_files_is_refused(
    prepared: Path, cache: Path, change: Callable[[Path], object], what: str
) -> None:
    change(prepared)
    assert refusal(lambda: manifest_of(open_source(prepared, cache=cache), prepared, cache)) == (
        f"{prepared}/manifest.json: does not describe these files: {what} "
        "Restore the files, or delete manifest.json to have the files measured."
    )


def test_a_manifest_in_another_order_is_refused(prepared: Path, cache: Path) -> None:
    manifest = read_manifest(prepared / "manifest.json")
    write_manifest(replace(manifest, files=manifest.files[::-1]), prepared / "manifest.json")
    assert refusal(lambda: manifest_of(open_source(prepared, cache=cache), prepared, cache)) == (
        f"{prepared}/manifest.json: does not describe these files: a/1.ds: is read in another order than listed. "
        "Restore the files, or delete manifest.json to have the files measured."
    )


def test_verify_finds_nothing_wrong_with_untouched_files(prepared: Path, cache: Path) -> None:
    assert verify(read_manifest(prepared / "manifest.json"), open_source(prepared, cache=cache)) == ()


def test_verify_names_each_file_that_differs(prepared: Path, cache: Path) -> None:
    manifest = read_manifest(prepared / "manifest.json")
    write_ds(prepared / "0.ds", [[7, 1, 0], [5, 0], [3, 3, 3, 0]])  # same sizes, another token
    write_ds(prepared / "a" / "1.ds", [[9, 0], [50_257, 6, 0, 0]], loss=[1, 0, 1, 1, 0, 0])
    write_ds(prepared / "b.ds", FIRST)
    changed = open_source(prepared, cache=cache)
    new = measure(changed).files[0].hash
    assert verify(manifest, changed) == (
        Problem("b.ds", "exists and is not listed."),
        Problem("0.ds", f"hash was {manifest.files[0].hash}, is {new}."),
        Problem(
            "a/1.ds",
            "was 42 bytes, is 34; was 3 documents, is 2; largest id was 50256, is 50257.",
        ),
    )


def test_verify_goes_on_after_a_damaged_file(prepared: Path, cache: Path) -> None:
    manifest = read_manifest(prepared / "manifest.json")
    index = prepared / "0.ds.index"
    index.write_bytes(np.array([5, 3, 9], "<u8").tobytes())
    os.unlink(prepared / "a" / "1.ds.loss")
    problems = verify(manifest, open_source(prepared, cache=cache))
    assert problems == (
        Problem(
            "",
            f"{index}: document 1 ends at token 3, before the one ahead of it, at 5. "
            "The index is damaged: copy or write it again.",
        ),
        Problem("a/1.ds", "was 42 bytes, is 36."),
    )


@pytest.mark.parametrize("slice_bytes", [8, 1 << 20])
@pytest.mark.parametrize(
    ("ends", "number", "end", "before"),
    [([3, 2, 9], 1, 2, 3), ([12, 3, 9], 1, 3, 12), ([-1, 3, 9], 0, -1, 0)],
)
def test_an_index_that_falls_is_refused(
    web: Path,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    slice_bytes: int,
    ends: list[int],
    number: int,
    end: int,
    before: int,
) -> None:
    monkeypatch.setattr(manifest_module, "SLICE_BYTES", slice_bytes)
    index = web / "0.ds.index"
    index.write_bytes(np.array(ends, "<i8").tobytes())
    assert refusal(lambda: measure(open_source(web, cache=cache))) == (
        f"{index}: document {number} ends at token {end}, before the one ahead of it, at {before}. "
        "The index is damaged: copy or write it again."
    )


def test_a_negative_id_is_refused(tmp_path: Path, cache: Path) -> None:
    path = write_npy(tmp_path / "a.npy", [[5, -100, 3]], "int32")
    assert refusal(lambda: measure(open_source(path, cache=cache))) == (
        f"{path}: holds the token id -100, and ids start at 0. It is damaged, or was written as another "
        "dtype than int32: write it again."
    )


def test_an_id_beyond_int32_is_refused(tmp_path: Path, cache: Path) -> None:
    path = write_npy(tmp_path / "a.npy", [[5, 2**31]], "uint32")
    assert refusal(lambda: measure(open_source(path, cache=cache))) == (
        f"{path}: holds the token id 2,147,483,648, over the limit of 2,147,483,647. It is damaged, or was "
        "written as another dtype than uint32: write it again."
    )


def test_ids_beyond_the_vocabulary_are_refused(web: Path, cache: Path) -> None:
    files = open_source(web)
    manifest = manifest_of(files, cache=cache)
    check_vocab(manifest, files, 50_257)
    assert refusal(lambda: check_vocab(manifest, files, 50_256)) == (
        f"{web / 'a/1.ds'}: holds the token id 50,256, the model knows 0 to 50,255. "
        "Write model.vocab = 50257 or more, or tokenise with the model's tokenizer."
    )


def edited(key: str, value: object) -> Callable[[dict[str, Any]], object]:
    return lambda content: content.update({key: value})


def edited_file(key: str, value: object) -> Callable[[dict[str, Any]], object]:
    return lambda content: content["files"][0].update({key: value})


@pytest.mark.parametrize(
    ("edit", "what"),
    [
        (edited("version", 2), "has version 2, and 1 is known"),
        (edited("extra", 2), "extra is not a known key"),
        (lambda content: content.pop("tokens"), "tokens is missing"),
        (edited("tokens", "15"), "tokens is '15'"),
        (edited("tokens", True), "tokens is True"),
        (edited("tokens", 16), "tokens is 16, and its files give 15"),
        (edited("documents", 5), "documents is 5, and its files give 6"),
        (edited("fingerprint", "0"), "fingerprint is 0, and its files give bfb883f405336d30441450b3b6d32ec5"),
        (edited("tokenizer", 5), "tokenizer is 5"),
        (edited("files", {}), "files is {}"),
        (edited("files", [5]), "files[0] is not a table"),
        (edited("files", []), "lists no files"),
        (edited_file("bytes", -1), "files[0].bytes is -1"),
        (edited_file("size", 1), "files[0].size is not a known key"),
        (lambda content: content["files"][1].pop("hash"), "files[1].hash is missing"),
        (edited_file("name", "a/1.ds"), "lists a name twice"),
        *(
            (
                edited_file("name", name),
                f"files[0].name is {name!r}, which is not a plain path within the folder",
            )
            for name in ("../0.ds", "/0.ds", "a/../../0.ds", "a//0.ds", "./0.ds", ".", "")
        ),
    ],
)
def test_a_manifest_that_was_tampered_with_is_refused(
    prepared: Path, edit: Callable[[dict[str, Any]], object], what: str
) -> None:
    path = prepared / "manifest.json"
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))
    assert refusal(lambda: read_manifest(path)) == f"{path}: {what}. {EITHER_WAY}"


def test_a_manifest_that_is_no_json_is_refused(prepared: Path) -> None:
    path = prepared / "manifest.json"
    path.write_text("[1]")
    assert refusal(lambda: read_manifest(path)) == f"{path}: has version None, and 1 is known. {EITHER_WAY}"
    path.write_text("{")
    assert refusal(lambda: read_manifest(path)) == (
        f"{path}: cannot be read (Expecting property name enclosed in double quotes: line 1 column 2 "
        f"(char 1)). {EITHER_WAY}"
    )


def test_a_cache_that_cannot_be_written_is_refused(web: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file, no folder")
    assert refusal(lambda: manifest_of(open_source(web), cache=tmp_path / "cache")) == (
        f"{tmp_path}/cache/manifests: nothing can be kept here: Not a directory. "
        "Set TRIVIUM_CACHE to a folder with room that you may write to."
    )
