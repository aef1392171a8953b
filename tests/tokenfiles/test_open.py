import os
import resource
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.writers import TEN, documents_of, flat, write_bin, write_ds, write_megatron, write_npy
from trivium.errors import SourceError
from trivium.tokenfiles import ends as ends_module
from trivium.tokenfiles.open import TokenFile, TokenFileSettings, open_source


def only(path: Path, settings: TokenFileSettings | None, cache: Path) -> TokenFile:
    (file,) = open_source(path, settings, cache)
    return file


# Each format gives back what was written.


def test_ds_gives_tokens_documents_loss_and_tokenizer(tmp_path: Path, cache: Path) -> None:
    loss = [n % 2 for n in range(sum(map(len, TEN)))]
    file = only(write_ds(tmp_path / "a.ds", TEN, "uint32", loss=loss), None, cache)
    assert (file.name, file.format, file.dtype.name, file.tokenizer) == ("a.ds", "ds", "uint32", "gpt2")
    assert documents_of(file) == TEN
    assert file.loss is not None
    assert file.loss.tolist() == loss
    assert type(file.tokens) is np.ndarray


def test_npy_takes_its_dtype_from_the_header(tmp_path: Path, cache: Path) -> None:
    file = only(write_npy(tmp_path / "a.npy", TEN, "int32"), TokenFileSettings(eos=0), cache)
    assert (file.format, file.dtype.name, file.loss, file.tokenizer) == ("npy", "int32", None, None)
    assert documents_of(file) == TEN


def test_npy_without_a_header_is_read_as_olmo_writes_it(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "part-0-00000.npy"
    path.write_bytes(flat(TEN, "uint32"))
    assert documents_of(only(path, TokenFileSettings("uint32", eos=0), cache)) == TEN


def test_bin_takes_its_dtype_from_the_config(tmp_path: Path, cache: Path) -> None:
    # An even number of tokens: by its size this could be a uint32 file.
    path = write_bin(tmp_path / "train.bin", [[1, 2], [3, 4]])
    assert documents_of(only(path, TokenFileSettings("uint16"), cache)) == [[1, 2, 3, 4]]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("metadata.json", '{"name": "x", "tokenized_info": {"dtype": "uint32", "tokenizer": "t5-base"}}'),
        ("metadata.json", '{"dtype": "uint32", "tokenizer": "t5-base"}'),
        (
            "metadata.yaml",
            (
                "corpuses: []\ndata_content: text\ntokenized_info:\n  dtype: uint32\n  file_extension: bin\n"
                "  tokenizer: t5-base\n  vocab_size: 32100\n"
            ),
        ),
        ("metadata.yml", "tokenized_info:\n    tokenizer: 't5-base'\n    dtype: \"uint32\""),
    ],
)
def test_bin_takes_its_dtype_from_metadata_beside_it(tmp_path: Path, cache: Path, name: str, text: str) -> None:
    path = write_bin(tmp_path / "a.bin", TEN, "uint32")
    (tmp_path / name).write_text(text)
    file = only(path, TokenFileSettings(eos=0), cache)
    assert (documents_of(file), file.tokenizer) == (TEN, "t5-base")


def test_megatron_joins_the_sequences_of_a_document(tmp_path: Path, cache: Path) -> None:
    written = [[[1, 2], [3]], [[4]], [], [[], [5, 6]]]
    file = only(write_megatron(tmp_path / "a.bin", written, "int32"), None, cache)
    assert (file.format, file.dtype.name) == ("megatron", "int32")
    assert documents_of(file) == [[1, 2, 3], [4], [], [5, 6]]


def test_documents_may_start_at_bos(tmp_path: Path, cache: Path) -> None:
    path = write_npy(tmp_path / "a.npy", [[0, 5, 6], [0], [0, 7]])
    assert documents_of(only(path, TokenFileSettings(bos=0), cache)) == [[0, 5, 6], [0], [0, 7]]


def test_what_is_left_before_bos_or_after_eos_is_a_document(tmp_path: Path, cache: Path) -> None:
    path = write_npy(tmp_path / "a.npy", [[5, 0, 7]])
    assert documents_of(only(path, TokenFileSettings(bos=0), cache)) == [[5], [0, 7]]
    assert documents_of(only(path, TokenFileSettings(eos=0), cache)) == [[5, 0], [7]]


def test_a_ds_without_index_is_read_by_eos(tmp_path: Path, cache: Path) -> None:
    path = write_ds(tmp_path / "a.ds", TEN)
    os.unlink(f"{path}.index")
    assert documents_of(only(path, TokenFileSettings(eos=0), cache)) == TEN


def test_datatrove_without_a_tokenizer_name_is_an_unknown_tokenizer(tmp_path: Path, cache: Path) -> None:
    path = write_ds(tmp_path / "a.ds", TEN, tokenizer="Unknown Tokenizer|2")
    assert only(path, None, cache).tokenizer is None


def test_files_that_say_they_are_empty_are_left_out(tmp_path: Path, cache: Path) -> None:
    write_ds(tmp_path / "ds" / "0.ds", [])
    write_ds(tmp_path / "ds" / "1.ds", TEN)
    write_ds(tmp_path / "ds" / "2.ds", [[], []])
    write_npy(tmp_path / "npy" / "0.npy", [])
    write_npy(tmp_path / "npy" / "1.npy", TEN)
    write_megatron(tmp_path / "megatron" / "0.bin", [])
    write_megatron(tmp_path / "megatron" / "1.bin", [TEN])
    write_megatron(tmp_path / "megatron" / "2.bin", [[[]], []])
    for folder in ("ds", "npy", "megatron"):
        assert [file.name[0] for file in open_source(tmp_path / folder, None, cache)] == ["1"]


lists = st.lists(st.lists(st.integers(1, 120), max_size=6), min_size=1, max_size=12).filter(lambda x: any(x))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(lists, st.sampled_from(["uint16", "uint32"]))
def test_any_documents_come_back_from_ds(tmp_path: Path, cache: Path, written: Any, dtype: str) -> None:
    file = only(write_ds(tmp_path / "a.ds", written, dtype), None, cache)
    assert documents_of(file) == written


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(
    lists,
    st.sampled_from(["uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"]),
    st.sampled_from([".npy", ".bin"]),
    st.integers(1, 7),
)
def test_any_documents_come_back_from_flat_files(
    tmp_path_factory: pytest.TempPathFactory, written: Any, dtype: str, ending: str, slice_size: int
) -> None:
    folder = tmp_path_factory.mktemp("flat")  # new each time: a file may change within one tick of the clock
    write = write_npy if ending == ".npy" else write_bin
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ends_module, "SLICE", slice_size)
        ended = [[*document, 0] for document in written]
        path = write(folder / f"eos{ending}", ended, dtype)
        assert documents_of(only(path, TokenFileSettings(dtype, eos=0), folder)) == ended
        started = [[0, *document] for document in written]
        path = write(folder / f"bos{ending}", started, dtype)
        assert documents_of(only(path, TokenFileSettings(dtype, bos=0), folder)) == started
    whole = [[token for document in written for token in document]]
    path = write(folder / f"whole{ending}", whole, dtype)
    assert documents_of(only(path, TokenFileSettings(dtype), folder)) == whole


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(
    st.lists(lists, min_size=1, max_size=6),
    st.sampled_from(["uint8", "int16", "uint16", "int32", "int64"]),
    st.integers(1, 7),
)
def test_any_documents_come_back_from_megatron(
    tmp_path_factory: pytest.TempPathFactory, written: Any, dtype: str, slice_size: int
) -> None:
    folder = tmp_path_factory.mktemp("megatron")
    path = write_megatron(folder / "a.bin", written, dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ends_module, "SLICE", slice_size)
        file = only(path, None, folder)
    assert documents_of(file) == [[token for sequence in document for token in sequence] for document in written]


# Opened cheaply, and found once.


def test_ends_are_searched_once_and_again_when_the_file_or_the_mark_changes(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_bin(tmp_path / "a.bin", [[5, 0], [6, 1, 0]])
    by_eos, by_other = TokenFileSettings("uint16", eos=0), TokenFileSettings("uint16", eos=1)
    first = documents_of(only(path, by_eos, cache))
    assert len(list((cache / "ends").iterdir())) == 1
    with monkeypatch.context() as patch:
        patch.setattr("trivium.tokenfiles.open.ends_by_mark", None)
        assert documents_of(only(path, by_eos, cache)) == first
    assert documents_of(only(path, by_other, cache)) == [[5, 0, 6, 1], [0]]
    path.write_bytes(flat([[0], [5, 6, 1, 0]], "uint16"))
    os.utime(path, ns=(1, 1))
    assert documents_of(only(path, by_eos, cache)) == [[0], [5, 6, 1, 0]]


def test_more_files_than_descriptors_can_be_open(tmp_path: Path, cache: Path) -> None:
    for number in range(100):
        write_ds(tmp_path / f"{number:03}.ds", TEN)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
    try:
        files = open_source(tmp_path, None, cache)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert all(documents_of(file) == TEN for file in files)


# Files that do not belong together are refused, and it is said what to do.


def test_a_source_without_any_token_is_refused(tmp_path: Path, refusal: Callable[..., str]) -> None:
    write_ds(tmp_path / "a.ds", [])
    write_ds(tmp_path / "b.ds", [[]])
    assert refusal(tmp_path) == (
        f"{tmp_path}: none of its 2 token files holds a token. Prepare the source again, or remove it from the config."
    )


def test_files_of_two_dtypes_are_refused(tmp_path: Path, refusal: Callable[..., str]) -> None:
    write_npy(tmp_path / "a.npy", TEN, "uint16")
    write_npy(tmp_path / "b.npy", TEN, "uint32")
    assert refusal(tmp_path) == (
        f"{tmp_path}/b.npy: has the dtype uint32, and {tmp_path}/a.npy has uint16: a source has one. "
        'Make two sources of them, or name the right ones: path = "folder/*.ds".'
    )


def test_files_of_two_formats_are_refused(tmp_path: Path, refusal: Callable[..., str]) -> None:
    write_bin(tmp_path / "flat.bin", TEN)
    write_megatron(tmp_path / "megatron.bin", [TEN])
    assert refusal(tmp_path, TokenFileSettings("uint16")) == (
        f"{tmp_path}/megatron.bin: has the format megatron, and {tmp_path}/flat.bin has bin: a source "
        'has one. Make two sources of them, or name the right ones: path = "folder/*.ds".'
    )


def test_files_of_two_tokenizers_are_refused_and_an_unnamed_one_is_not(
    tmp_path: Path, cache: Path, refusal: Callable[..., str]
) -> None:
    write_ds(tmp_path / "a.ds", TEN, tokenizer="Unknown Tokenizer|2")
    write_ds(tmp_path / "b.ds", TEN, tokenizer="gpt2")
    assert len(open_source(tmp_path, None, cache)) == 2
    write_ds(tmp_path / "c.ds", TEN, tokenizer="t5-base")
    assert refusal(tmp_path) == (
        f"{tmp_path}/c.ds: has the tokenizer t5-base, and {tmp_path}/b.ds has gpt2: a source has one. "
        'Make two sources of them, or name the right ones: path = "folder/*.ds".'
    )


@pytest.mark.parametrize(
    ("settings", "mark"), [(TokenFileSettings(eos=70_000), "eos"), (TokenFileSettings(bos=70_000), "bos")]
)
def test_a_mark_that_no_file_holds_is_refused(
    tmp_path: Path, refusal: Callable[..., str], settings: TokenFileSettings, mark: str
) -> None:
    write_npy(tmp_path / "a.npy", TEN)
    write_npy(tmp_path / "b.npy", TEN)
    assert refusal(tmp_path, settings) == (
        f"{tmp_path}/a.npy: {mark} = 70000 marks documents, and occurs in none of the 2 files. "
        "Write the id of the tokenizer that made them, or remove it if a file is one document."
    )


def test_two_marks_are_refused() -> None:
    with pytest.raises(SourceError) as caught:
        TokenFileSettings(eos=2, bos=1)
    assert str(caught.value) == (
        "eos = 2 and bos = 1: documents of flat files are found by one id. "
        "Keep eos if each document ends with it, else bos."
    )


def test_a_cache_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    path = write_bin(tmp_path / "a.bin", TEN)
    (tmp_path / "cache").write_text("a file, no folder")
    with pytest.raises(SourceError) as caught:
        open_source(path, TokenFileSettings("uint16", eos=0), tmp_path / "cache")
    assert str(caught.value) == (
        f"{tmp_path}/cache/ends: nothing can be kept here: Not a directory. "
        "Set TRIVIUM_CACHE to a folder with room that you may write to."
    )


# Files that the tools themselves wrote; skipped where these are not installed.


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", [np.uint16, np.int32])
def test_what_megatron_wrote_is_read(tmp_path: Path, cache: Path, dtype: Any) -> None:
    megatron = import_module("megatron.core.datasets.indexed_dataset")
    torch = import_module("torch")
    prefix = str(tmp_path / "web_text_document")
    builder = megatron.IndexedDatasetBuilder(f"{prefix}.bin", dtype)
    builder.add_item(torch.tensor([1, 2, 3]))
    builder.add_item(torch.tensor([4]))
    builder.end_document()
    builder.add_document(torch.tensor([5, 6, 7, 8]), [1, 3])
    builder.add_document(torch.tensor([9]), [1])
    builder.finalize(f"{prefix}.idx")
    (file,) = open_source(prefix, None, cache)
    assert (documents_of(file), file.dtype) == ([[1, 2, 3, 4], [5, 6, 7, 8], [9]], dtype)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("token_size", [2, 4])
def test_what_datatrove_wrote_is_read(tmp_path: Path, cache: Path, token_size: int) -> None:
    datatrove = import_module("datatrove.pipeline.tokens.tokenizer")
    written = datatrove.TokenizedFile(
        str(tmp_path),
        "00000_shuffled.ds",
        save_loss_metadata=True,
        tokenizer_name_or_path="org/a|b",
        save_final_metadata=True,
        token_size=token_size,
    )
    for document in TEN:
        written.write(document, np.array([token > 0 for token in document]))
    written.close()
    file = only(tmp_path, None, cache)
    assert (documents_of(file), file.dtype.itemsize, file.tokenizer) == (TEN, token_size, "org/a|b")
    assert file.loss is not None
    assert file.loss.tolist() == [int(token > 0) for document in TEN for token in document]


@pytest.mark.filterwarnings("ignore")
def test_what_datatrove_wrote_for_megatron_is_read(tmp_path: Path, cache: Path) -> None:
    datatrove = import_module("datatrove.pipeline.tokens.megatron_tokenizer")
    written = datatrove.MegatronTokenizedFile(str(tmp_path), "00000_tokens", token_size=4)
    for document in TEN:
        written.write(document)
    written.close()
    assert documents_of(only(tmp_path, None, cache)) == TEN


@pytest.mark.filterwarnings("ignore")
def test_what_datatrove_tokenised_shuffled_and_merged_is_read(tmp_path: Path, cache: Path) -> None:
    tokens = import_module("datatrove.pipeline.tokens")
    tokenizers = import_module("tokenizers")
    document = import_module("datatrove.data").Document
    vocab = {"<eos>": 0, "one": 1, "two": 2, "three": 3}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token="<eos>"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.save(str(tmp_path / "words.json"))
    texts = ["one two three", "two", "three three", "one"]
    step = tokens.DocumentTokenizer(
        str(tmp_path / "parts"), str(tmp_path / "words.json"), eos_token="<eos>", seed=1, save_filename="web"
    )
    for rank in range(3):  # the last has nothing to do, and leaves empty files
        part = [document(text=text, id=text) for text in texts[2 * rank : 2 * rank + 2]]
        step.run(iter(part), rank=rank, world_size=3)
    expected = sorted([*[vocab[word] for word in text.split()], 0] for text in texts)
    files = open_source(tmp_path / "parts", None, cache)
    assert sorted(document for file in files for document in documents_of(file)) == expected
    assert files[0].tokenizer == str(tmp_path / "words.json")
    tokens.DocumentTokenizerMerger(str(tmp_path / "parts"), str(tmp_path / "merged"), "web", seed=1).run()
    assert sorted(documents_of(only(tmp_path / "merged", None, cache))) == expected
