import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.writers import TEN, write_bin, write_ds, write_megatron, write_npy
from trivium.tokenfiles.open import TokenFileSettings


def test_a_bin_without_dtype_asks_for_it(tmp_path: Path, refusal: Callable[..., str]) -> None:
    path = write_bin(tmp_path / "a.bin", TEN)
    (tmp_path / "meta.pkl").write_bytes(b"never loaded")
    assert refusal(path, TokenFileSettings(eos=0)) == (
        f"{path}: its dtype is not known: no metadata declares it, and the file's size does not show it. "
        'Write dtype = "uint16" (or what the file was written with) in the source.'
    )


@pytest.mark.parametrize("metadata", [None, "gpt2\n25\n25 T"])
def test_a_ds_without_token_size_asks_for_it(tmp_path: Path, refusal: Callable[..., str], metadata: str | None) -> None:
    path = write_ds(tmp_path / "a.ds", TEN, tokenizer=None)
    if metadata is not None:
        Path(f"{path}.metadata").write_text(metadata)
    assert refusal(path) == (
        f"{path}: its dtype is not known: no metadata declares it, and the file's size does not show it. "
        'Write dtype = "uint16" (or what the file was written with) in the source.'
    )


def test_a_dtype_of_no_integers_is_refused(tmp_path: Path, refusal: Callable[..., str]) -> None:
    path = write_bin(tmp_path / "a.bin", TEN)
    assert refusal(path, TokenFileSettings("float32")) == (
        'the config: dtype "float32" is not a dtype of tokens. Write one of "uint8", "int8", "uint16", "int16", '
        '"uint32", "int32", "uint64", "int64".'
    )


def test_config_and_file_must_agree_on_the_dtype(tmp_path: Path, refusal: Callable[..., str]) -> None:
    path = write_ds(tmp_path / "a.ds", TEN, "uint32")
    assert refusal(path, TokenFileSettings("uint16")) == (
        f"{path}: the config has uint16, {path}.metadata has uint32. Tokens have one dtype. Fix the one that is wrong."
    )


def test_an_unknown_token_size_in_metadata_is_refused(tmp_path: Path, refusal: Callable[..., str]) -> None:
    path = write_ds(tmp_path / "a.ds", TEN)
    Path(f"{path}.metadata").write_text("org/tokenizer|3\n25\n25 T")
    assert refusal(path) == (
        f'{path}.metadata: has "3" bytes a token. Known are 2 and 4: write "org/tokenizer|2" or "|4".'
    )


def test_metadata_that_is_no_json_is_refused(tmp_path: Path, refusal: Callable[..., str]) -> None:
    path = write_bin(tmp_path / "a.bin", TEN)
    (tmp_path / "metadata.json").write_text("{")
    assert refusal(path) == (
        f"{tmp_path}/metadata.json: is not JSON (Expecting property name enclosed in double quotes: line 1 "
        "column 2 (char 1)). Fix it, or write dtype in the source."
    )


def test_a_file_cut_within_a_token_is_refused(tmp_path: Path, refusal: Callable[..., str]) -> None:
    path = write_bin(tmp_path / "a.bin", TEN)
    path.write_bytes(path.read_bytes()[:-1])
    assert refusal(path, TokenFileSettings("uint16")) == (
        f"{path}: has 49 bytes of tokens, which is not a multiple of uint16's 2. "
        "It is cut short, or its dtype is another: copy it again, or fix dtype."
    )


@pytest.mark.parametrize("change", [-2, 2, -50])
def test_a_ds_that_does_not_fit_its_index_is_refused(tmp_path: Path, refusal: Callable[..., str], change: int) -> None:
    path = write_ds(tmp_path / "a.ds", TEN)
    path.write_bytes(path.read_bytes()[:change] if change < 0 else path.read_bytes() + b"\0" * change)
    assert refusal(path) == (
        f"{path}: holds {25 + change // 2} uint16 tokens, a.ds.index declares 25. "
        "One of the two is cut short or of another version: copy both again."
    )


def test_a_cut_ds_without_index_is_found_by_its_metadata(tmp_path: Path, refusal: Callable[..., str]) -> None:
    path = write_ds(tmp_path / "a.ds", TEN)
    os.unlink(f"{path}.index")
    path.write_bytes(path.read_bytes()[:-2])
    assert refusal(path, TokenFileSettings(eos=0)) == (
        f"{path}: holds 24 uint16 tokens, a.ds.metadata declares 25. "
        "One of the two is cut short or of another version: copy both again."
    )


def test_a_ds_without_index_is_refused(tmp_path: Path, refusal: Callable[..., str]) -> None:
    path = write_ds(tmp_path / "a.ds", TEN)
    os.unlink(f"{path}.index")
    assert refusal(path) == (
        f"{path}: has no .ds.index beside it, so that the ends of its documents are not known. "
        "Copy the index too, or write eos = <the id that ends a document>."
    )


def test_an_index_cut_within_an_end_is_refused(tmp_path: Path, refusal: Callable[..., str]) -> None:
    path = write_ds(tmp_path / "a.ds", TEN)
    os.truncate(f"{path}.index", 77)
    assert refusal(path) == (
        f"{path}.index: has 77 bytes, not a multiple of the 8 that a document end takes. "
        "It is cut short: copy it again."
    )


def test_a_loss_file_of_another_length_is_refused(tmp_path: Path, refusal: Callable[..., str]) -> None:
    path = write_ds(tmp_path / "a.ds", TEN, loss=[1] * 24)
    assert refusal(path) == (
        f"{path}.loss: has 24 bytes, and a.ds has 25 tokens, one byte each. "
        "Copy both again, or delete it to count all tokens in the loss."
    )


def test_a_cut_megatron_bin_is_refused(tmp_path: Path, refusal: Callable[..., str]) -> None:
    path = write_megatron(tmp_path / "a.bin", [TEN])
    os.truncate(path, 40)
    assert refusal(path) == (
        f"{path}: holds 20 uint16 tokens, a.idx declares 25. "
        "One of the two is cut short or of another version: copy both again."
    )


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"magic": b"TNTIDX\0\0\0"},
            (
                "is not an index of Megatron: it starts with b'TNTIDX\\x00\\x00\\x00'. "
                "Write it again, or delete it to read the .bin as a flat file."
            ),
        ),
        ({"version": 2}, "has version 2, and 1 is known. Write it with Megatron-LM as of 2019."),
        (
            {"code": 7},
            (
                "has dtype code 7, and tokens are integers: 1 (uint8), 2 (int8), 3 (int16), 4 (int32), "
                "5 (int64), 8 (uint16). Write it again."
            ),
        ),
        (
            {"marks": [0, 9]},
            (
                "its documents cover sequences 0 to 9, and it has 10. "
                "Each sequence belongs to a document. End the last document and write the index again."
            ),
        ),
        (
            {"marks": []},
            (
                "its documents cover sequences none, and it has 10. "
                "Each sequence belongs to a document. End the last document and write the index again."
            ),
        ),
        (
            {"marks": [0, 4, 3, 10]},
            "its documents are out of order. The index is damaged: write it again.",
        ),
    ],
)
def test_a_wrong_megatron_index_is_refused(
    tmp_path: Path, refusal: Callable[..., str], wrong: dict[str, Any], message: str
) -> None:
    path = write_megatron(tmp_path / "a.bin", [TEN], **wrong)
    assert refusal(path) == f"{tmp_path}/a.idx: {message}"


def test_a_cut_megatron_index_is_refused(tmp_path: Path, refusal: Callable[..., str]) -> None:
    path = write_megatron(tmp_path / "a.bin", [TEN])
    os.truncate(tmp_path / "a.idx", 100)
    assert refusal(path) == (
        f"{tmp_path}/a.idx: has 100 bytes, and 10 sequences with 2 document marks need 170. "
        "It is cut short, or holds more than text: copy or write it again."
    )


def test_megatron_sequences_that_do_not_follow_each_other_are_refused(
    tmp_path: Path, refusal: Callable[..., str]
) -> None:
    path = write_megatron(tmp_path / "a.bin", [TEN])
    index = bytearray((tmp_path / "a.idx").read_bytes())
    index[34 + 4 * 10 + 8 * 2] += 2  # the place of the third sequence
    (tmp_path / "a.idx").write_bytes(index)
    assert refusal(path) == (
        f"{tmp_path}/a.idx: sequence 2 has 4 tokens at byte 12, and byte 10 is where it should be. "
        "Sequences lie one after the other, so the index is damaged: write it again."
    )


def test_an_npy_that_is_no_line_of_tokens_is_refused(tmp_path: Path, refusal: Callable[..., str]) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.zeros((2, 3), np.uint16))
    assert refusal(path) == (
        f"{path}: has the shape (2, 3), and tokens are one-dimensional. Save array.reshape(-1) instead."
    )


@pytest.mark.parametrize(
    ("array", "kind"),
    [
        (np.array([[1], None], dtype=object), "|O"),
        (np.zeros(3, np.float32), "<f4"),
        (np.zeros(3, ">u2"), ">u2"),
        (np.zeros(3, bool), "|b1"),
    ],
)
def test_an_npy_of_anything_but_integers_is_refused_and_never_unpickled(
    tmp_path: Path, refusal: Callable[..., str], array: np.ndarray[Any, Any], kind: str
) -> None:
    path = tmp_path / "a.npy"
    np.save(path, array, allow_pickle=True)
    assert refusal(path) == (
        f'{path}: holds {kind}, and tokens are little-endian integers. Save array.astype("uint16") or "uint32" instead.'
    )


def test_a_cut_npy_is_refused(tmp_path: Path, refusal: Callable[..., str]) -> None:
    path = write_npy(tmp_path / "a.npy", TEN)
    os.truncate(path, path.stat().st_size - 2)
    assert refusal(path) == (
        f"{path}: holds 24 uint16 tokens, a.npy declares 25. "
        "One of the two is cut short or of another version: copy both again."
    )


def test_an_npy_with_a_damaged_header_is_refused(tmp_path: Path, refusal: Callable[..., str]) -> None:
    path = write_npy(tmp_path / "a.npy", TEN)
    os.truncate(path, 20)
    assert refusal(path) == (
        f"{path}: its header cannot be read (EOF: reading array header, expected 118 bytes got 10). "
        "It is damaged: copy or save it again."
    )


def test_a_flat_file_of_no_bytes_is_refused(tmp_path: Path, refusal: Callable[..., str]) -> None:
    path = write_bin(tmp_path / "a.bin", [])
    assert refusal(path, TokenFileSettings("uint16")) == (
        f"{path}: has 0 bytes, like a copy that was broken off. Copy it again, or delete it."
    )


@pytest.mark.parametrize(
    ("code", "reason", "advice"),
    [
        (13, "Permission denied", "Check that it exists and that you may read it."),
        (
            12,
            "Cannot allocate memory",
            "The system's limit on mapped files is reached: raise vm.max_map_count, or merge files.",
        ),
    ],
)
def test_a_file_that_cannot_be_mapped_is_refused(
    tmp_path: Path,
    refusal: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    reason: str,
    advice: str,
) -> None:
    def fail(path: Path) -> memoryview:
        raise OSError(code, reason, str(path))

    path = write_bin(tmp_path / "a.bin", TEN)
    monkeypatch.setattr("trivium.tokenfiles.open.map_file", fail)
    assert refusal(path, TokenFileSettings("uint16")) == f"{path}: cannot be opened: {reason}. {advice}"


def test_metadata_that_says_nothing_of_tokens_is_no_metadata(tmp_path: Path, refusal: Callable[..., str]) -> None:
    path = write_bin(tmp_path / "a.bin", TEN)
    for text in ("[]", '{"tokenized_info": null}', '{"dtype": 2}'):
        (tmp_path / "metadata.json").write_text(text)
        assert refusal(path).startswith(f"{path}: its dtype is not known")
