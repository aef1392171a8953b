"""Token files with masks: three arrays as torchtitan's packed_memmap has them, and padded rows."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.writers import documents_of
from trivium.errors import SourceError
from trivium.tokenfiles.manifest import manifest_of
from trivium.tokenfiles.masked import Padding
from trivium.tokenfiles.open import TokenFileSettings, open_source

TOKENS = [5, 6, 7, 8, 9, 3, 4]
DOCUMENTS = [[5, 6, 7], [8, 9], [3, 4]]
LOSS_MASK = [0, 1, 1, 0, 1, 1, 1]
LABELS = [-100, 6, 7, -100, 9, 3, 4]


def write_packed(folder: Path, index: Any, mask: Any, name: str = "chat") -> Path:
    folder.mkdir(exist_ok=True)
    np.save(folder / f"{name}_token.npy", np.array(TOKENS, np.int32))
    np.save(folder / f"{name}_index.npy", np.array(index))
    if mask is not None:
        np.save(folder / f"{name}_mask.npy", np.array(mask))
    return folder


def refusal(path: Path) -> str:
    with pytest.raises(SourceError) as error:
        open_source(path)
    return str(error.value)


@pytest.mark.parametrize(
    "index",
    [[3, 5, 7], [0, 3, 5], [0, 3, 5, 7], [[0, 3], [3, 2], [5, 2]]],
    ids=["ends", "starts", "both", "pairs"],
)
def test_an_index_may_say_documents_in_four_ways(tmp_path: Path, index: Any) -> None:
    (file,) = open_source(write_packed(tmp_path / "a", index, LABELS))
    assert (file.format, file.name, documents_of(file)) == ("packed", "chat_token.npy", DOCUMENTS)


@pytest.mark.parametrize(
    "mask",
    [LABELS, LOSS_MASK, np.array(LOSS_MASK, np.bool_), np.array(LOSS_MASK, np.uint8)],
    ids=["labels", "integers", "bools", "bytes"],
)
def test_a_mask_may_be_labels_or_say_what_is_learnt(tmp_path: Path, mask: Any) -> None:
    (file,) = open_source(write_packed(tmp_path / "a", [3, 5, 7], mask))
    assert file.loss is not None
    assert file.loss.tolist() == LOSS_MASK


def test_without_a_mask_all_is_learnt(tmp_path: Path) -> None:
    (file,) = open_source(write_packed(tmp_path / "a", [3, 5, 7], None))
    assert (documents_of(file), file.loss) == (DOCUMENTS, None)


def test_several_sets_of_arrays_are_several_files(tmp_path: Path) -> None:
    write_packed(tmp_path / "a", [3, 5, 7], LABELS, "one")
    write_packed(tmp_path / "a", [3, 5, 7], LABELS, "two")
    for path in (tmp_path / "a", tmp_path / "a" / "*.npy"):
        assert [file.name for file in open_source(str(path))] == ["one_token.npy", "two_token.npy"]


def test_an_index_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    ways = (
        "An index has each document's end, or its start, in one line, or (start, length) pairs, without gaps. "
        "Write it again."
    )
    path = tmp_path / "a" / "chat_index.npy"
    for index, what in (
        ([2, 3, 5], "does not divide the 7 tokens: 2 to 7"),
        ([[0, 3], [4, 3]], "does not divide the 7 tokens: 0 to 7"),
        ([5, 3, 7], "does not divide the 7 tokens: 0 to 7"),
        ([[0, 3, 1]], "has the shape (1, 3) of int64"),
        ([0.5], "has the shape (1,) of float64"),
        (np.empty(0, np.int64), "is empty"),
    ):
        assert refusal(write_packed(tmp_path / "a", index, LABELS)) == f"{path}: {what}. {ways}"


def test_a_mask_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a" / "chat_mask.npy"
    assert refusal(write_packed(tmp_path / "a", [3, 5, 7], LABELS[:-1])) == (
        f"{path}: has (6,) values of int64, and there are 7 tokens. A mask has one value for each: write both again."
    )
    assert refusal(write_packed(tmp_path / "a", [3, 5, 7], [-100, 6, 7, -100, 9, 4, 4])) == (
        f"{path}: value 0 is -100, and the token there is 5. "
        "A mask has 1 for what counts in the loss, or labels: the token itself, or -100. Write it again."
    )


def test_arrays_of_objects_are_never_unpickled(tmp_path: Path) -> None:
    write_packed(tmp_path / "a", [3, 5, 7], LABELS)
    np.save(tmp_path / "a" / "chat_mask.npy", np.array([print, 1], object), allow_pickle=True)
    path = tmp_path / "a" / "chat_mask.npy"
    assert refusal(tmp_path / "a") == (f"{path}: cannot be read as an array (it holds object). Write or copy it again.")


def write_padded(folder: Path, dtype: str = "uint32") -> Path:
    folder.mkdir(exist_ok=True)
    np.array([[1, 2, 3, 0], [4, 5, 0, 0], [0, 0, 0, 0], [6, 7, 8, 9]], dtype).tofile(folder / "train.bin")
    np.array([[0, 1, 1, 0], [1, 1, 0, 0], [0, 0, 0, 0], [0, 0, 1, 1]], np.bool_).tofile(folder / "train.bin.mask")
    (folder / "shape.json").write_text(json.dumps({"train": [4, 4], "val": [0, 4]}))
    return folder


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_padding_is_no_part_of_a_document(tmp_path: Path, dtype: str) -> None:
    for _ in range(2):  # the second time as it was kept
        (file,) = open_source(write_padded(tmp_path / "a", dtype))
        assert (file.format, file.dtype.name) == ("padded", dtype)
        assert documents_of(file) == [[1, 2, 3], [4, 5], [6, 7, 8, 9]]
        assert file.loss is not None
        assert file.loss.tolist() == [0, 1, 1, 1, 1, 0, 0, 1, 1]


LEFT_ROWS = [[0, 0, 1, 2], [0, 3, 4, 5], [6, 0, 7, 8], [0, 0, 0, 9]]  # a zero inside of a text is text


@pytest.mark.parametrize("config", [None, {"pad_token": 0, "assistant_only": False}], ids=["alone", "config"])
def test_padding_on_the_left_is_no_part_of_a_document(tmp_path: Path, config: dict[str, Any] | None) -> None:
    texts = [[1, 2], [3, 4, 5], [6, 0, 7, 8], [9]]
    np.array(LEFT_ROWS, np.uint32).tofile(tmp_path / "train.bin")
    np.array([[0] * (4 - len(text)) + [1] * len(text) for text in texts], np.bool_).tofile(tmp_path / "train.bin.mask")
    (tmp_path / "shape.json").write_text(json.dumps({"train": [4, 4]}))
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    (file,) = open_source(tmp_path)
    assert documents_of(file) == texts
    assert file.loss is not None
    assert file.loss.tolist() == [1] * 10


def test_a_prompt_behind_the_padding_on_the_left_is_text_without_loss(tmp_path: Path) -> None:
    np.array([[5, 5, 1, 2], [5, 3, 4, 6]], np.uint32).tofile(tmp_path / "train.bin")
    np.array([[0, 0, 0, 1], [0, 0, 1, 0]], np.bool_).tofile(tmp_path / "train.bin.mask")
    (tmp_path / "shape.json").write_text(json.dumps({"train": [2, 4]}))
    (tmp_path / "config.json").write_text(json.dumps({"pad_token": 5, "assistant_only": True}))
    (file,) = open_source(tmp_path)
    assert documents_of(file) == [[1, 2], [3, 4, 6]]
    assert file.loss is not None
    assert file.loss.tolist() == [0, 1, 0, 1, 0]


@pytest.mark.parametrize("ending", ["tokens", "ends", "loss"])
def test_padded_rows_whose_cached_files_are_truncated_are_computed_again(
    tmp_path: Path, own_cache: Path, ending: str
) -> None:
    folder = write_padded(tmp_path / "a")
    (whole,) = open_source(folder)
    (cached,) = (own_cache / "unpadded").glob(f"*.{ending}")
    content = cached.read_bytes()
    cached.unlink()  # what is mapped stays as it is
    cached.write_bytes(content[:-8])
    (again,) = open_source(folder)
    for name in ("tokens", "ends", "loss"):
        assert np.array_equal(getattr(again, name), getattr(whole, name))
    assert cached.read_bytes() == content


def test_the_config_may_give_the_side_of_the_padding(tmp_path: Path) -> None:
    """No row tells the sides apart: a zero at its start, and masked tokens at both ends."""
    np.array([[0, 3, 4, 5], [0, 0, 6, 7]], np.uint32).tofile(tmp_path / "train.bin")
    np.array([[0, 0, 1, 0], [0, 0, 1, 1]], np.bool_).tofile(tmp_path / "train.bin.mask")
    (tmp_path / "shape.json").write_text(json.dumps({"train": [2, 4]}))
    ways: dict[Padding | None, list[list[int]]] = {
        None: [[0, 3, 4], [0, 0, 6, 7]],
        "right": [[0, 3, 4], [0, 0, 6, 7]],
        "left": [[3, 4, 5], [6, 7]],
    }
    for padding, documents in ways.items():
        files = open_source(tmp_path, TokenFileSettings(padding=padding), tmp_path / "cache")
        assert documents_of(files[0]) == documents
        assert manifest_of(files, cache=tmp_path / "cache").tokens == sum(map(len, documents))
    (tmp_path / "config.json").write_text(json.dumps({"pad_token": 6}))  # which is that of the left side
    (file,) = open_source(tmp_path, TokenFileSettings(padding="right"), tmp_path / "cache")
    assert documents_of(file) == ways["right"]


def test_padded_rows_that_do_not_fit_their_shape_are_refused(tmp_path: Path) -> None:
    folder = write_padded(tmp_path / "a")
    (folder / "shape.json").write_text('{"train": [5, 4]}')
    assert refusal(folder) == (
        f"{folder}/train.bin: has 64 bytes, and shape.json gives 5 rows of 4 tokens. "
        "That is neither 2, 4 nor 8 bytes a token: write both again."
    )
    for odd in ("[4, 1e999]", "[4.5, 4]", "[4]", "4"):
        (folder / "shape.json").write_text(f'{{"train": {odd}}}')
        assert "shape.json does not give their shape" in refusal(folder)
    (folder / "shape.json").unlink()
    assert refusal(folder) == (
        f"{folder}/train.bin.mask: is a mask of padded rows, and {folder}/shape.json does not give their shape "
        f"([Errno 2] No such file or directory: '{folder}/shape.json'). "
        'Write {"train": [rows, tokens of a row]} there, or delete the mask to read a flat file.'
    )
