"""Token files as we write them, read back by their own tools."""

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.writers import TEN, documents_of, write_megatron
from trivium.tokenfiles.open import open_source
from trivium.tokenfiles.write import DsWriter, MegatronWriter, TokenWriter, dtype_for

TWO_BATCHES = (TEN[:4], TEN[4:])


def add_documents(writer: TokenWriter, documents: list[list[int]], **labels: Any) -> None:
    tokens = np.array([token for document in documents for token in document], np.uint32)
    writer.add(tokens, np.array([len(document) for document in documents], np.int64), **labels)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", ["uint16", "int32"])
def test_megatron_reads_what_we_wrote_document_for_document(tmp_path: Path, dtype: str) -> None:
    with MegatronWriter(tmp_path / "mega", dtype) as writer:
        for batch in TWO_BATCHES:
            add_documents(writer, batch)
    theirs = import_module("megatron.core.datasets.indexed_dataset").IndexedDataset(str(tmp_path / "mega"))
    assert [theirs[number].tolist() for number in range(len(theirs))] == TEN
    assert theirs.document_indices.tolist() == list(range(len(TEN) + 1))
    assert theirs[0].dtype == np.dtype(dtype)
    (ours,) = open_source(str(tmp_path / "mega"))
    assert documents_of(ours) == TEN


def test_the_files_are_those_of_a_plain_writer_byte_for_byte(tmp_path: Path) -> None:
    plain = write_megatron(tmp_path / "plain.bin", [[document] for document in TEN])
    with MegatronWriter(tmp_path / "mega", "uint16") as writer:
        for batch in TWO_BATCHES:
            add_documents(writer, batch)
    for ending in (".bin", ".idx"):
        assert (tmp_path / f"mega{ending}").read_bytes() == plain.with_suffix(ending).read_bytes()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("vocab", [256, 65_499, 65_500, 65_536, 100_000])
def test_ids_have_the_dtype_that_megatron_would_choose(vocab: int) -> None:
    theirs = import_module("megatron.core.datasets.indexed_dataset").DType.optimal_dtype(vocab)
    assert np.dtype(dtype_for(vocab, "megatron")) == np.dtype(theirs)


def test_no_file_is_there_before_all_is_written(tmp_path: Path) -> None:
    writers = (
        MegatronWriter(tmp_path / "mega", "uint16"),
        DsWriter(tmp_path / "web", "uint16", "gpt2", with_loss=False, with_tasks=False),
    )
    for writer in writers:
        with pytest.raises(RuntimeError, match="broken off"):
            write_and_fail(writer, tmp_path)
    assert not list(tmp_path.iterdir())


def write_and_fail(writer: TokenWriter, folder: Path) -> None:
    with writer:
        add_documents(writer, TEN)
        assert all(path.name.startswith(".") for path in folder.iterdir())
        raise RuntimeError("broken off")


def test_a_task_is_kept_for_each_document(tmp_path: Path) -> None:
    with DsWriter(tmp_path / "talk", "uint16", "gpt2", with_loss=True, with_tasks=True) as writer:
        loss = np.ones(sum(map(len, TEN)), np.uint8)
        add_documents(writer, TEN, loss=loss, tasks=np.arange(10, dtype=np.uint8) % 3)
    (file,) = open_source(tmp_path)
    assert file.tasks is not None
    assert file.tasks.tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 2, 0]
