"""A Hugging Face folder that anyone may have made: truncated, wrongly typed, or leading out of itself."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from trivium.errors import ConfigError
from trivium.model.families.table import BY_NAME
from trivium.model.huggingface import read_spec, write_config
from trivium.model.huggingface_files import files_by_tensor, fitting_files
from trivium.model.spec import ModelSpec, RopeSpec

SPEC = ModelSpec(layers=1, width=8, heads=2, kv_heads=1, head_dim=4, ffn=8, vocab=16, max_seq_len=32)
SHAPES = {"embedding.weight": [16, 8], "norm.weight": [8]}
INDEX = "model.safetensors.index.json"
LLAMA = BY_NAME["llama"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a config.json, and two tensors in one file."""
    folder = tmp_path / "model"
    folder.mkdir()
    write_config(folder, SPEC, RopeSpec(), 32)
    save_file(
        {LLAMA.their_name(name): np.zeros(shape, np.float32) for name, shape in SHAPES.items()},
        folder / "model.safetensors",
    )
    return folder


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(ConfigError) as caught:
        call()
    return str(caught.value)


def test_a_whole_folder_is_read(folder: Path) -> None:
    assert read_spec(folder).width == 8
    assert fitting_files(folder, SHAPES, LLAMA, SPEC).keys() == SHAPES.keys()


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "cannot be read: Expecting value: line 1 column 1 (char 0). Copy it again."),
        (
            b'{"model_type": "lla',
            "cannot be read: Unterminated string starting at: line 1 column 16 (char 15). Copy it again.",
        ),
        (b"[]", "is not a table of keys and values. Copy it again."),
        (b"[" * 100_000, "cannot be read: it is nested more than 64 levels deep. Copy it again."),
        (
            b"\xff\xfe",
            "cannot be read: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte. Copy it again.",
        ),
    ],
)
def test_a_truncated_config_is_one_line(folder: Path, content: bytes, what: str) -> None:
    (folder / "config.json").write_bytes(content)
    assert refusal(lambda: read_spec(folder)) == f"{folder / 'config.json'}: {what}"


@pytest.mark.parametrize(
    ("key", "value", "what"),
    [
        ("hidden_size", None, "hidden_size is null. It must be a whole number over 0, and under 2,147,483,648."),
        (
            "num_hidden_layers",
            -1,
            "num_hidden_layers is -1. It must be a whole number over 0, and under 10,000.",
        ),
        (
            "num_hidden_layers",
            10**9,
            "num_hidden_layers is 1000000000. It must be a whole number over 0, and under 10,000.",
        ),
        ("vocab_size", True, "vocab_size is true. It must be a whole number over 0, and under 2,147,483,648."),
        ("head_dim", "4", 'head_dim is "4". It must be a whole number over 0, and under 2,147,483,648.'),
        ("rms_norm_eps", [], "rms_norm_eps is []. It must be a number over 0, and under 2,147,483,648."),
        ("rope_scaling", "yarn", 'rope_scaling is "yarn". It must be a table, or null.'),
        ("rope_theta", "x", 'rope_theta is "x". It must be a number over 1, and under 2,147,483,648.'),
        ("rope_theta", 1.0, "rope_theta is 1.0. It must be a number over 1, and under 2,147,483,648."),
        (
            "rope_scaling",
            {"rope_type": "yarn"},
            "factor is null. It must be a number over 0, and under 2,147,483,648.",
        ),
    ],
)
def test_a_value_that_no_model_has_is_named(folder: Path, key: str, value: Any, what: str) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {key: value}))
    assert refusal(lambda: read_spec(folder)) == f"{folder / 'config.json'}: {what}"


@pytest.mark.parametrize("keep", [0, 4, 100, -1])
def test_truncated_weights_are_one_line(folder: Path, keep: int) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    told = refusal(lambda: fitting_files(folder, SHAPES, LLAMA, SPEC))
    assert told.startswith(f"{path}: cannot be read as safetensors: ")
    assert told.endswith("It is truncated or damaged: copy it again.")
    assert "\n" not in told


def test_weights_of_whole_numbers_are_refused(folder: Path) -> None:
    path = folder / "model.safetensors"
    save_file({LLAMA.their_name(name): np.zeros(shape, np.int32) for name, shape in SHAPES.items()}, path)
    assert refusal(lambda: fitting_files(folder, SHAPES, LLAMA, SPEC)).splitlines()[0] == (
        f"{path}: {LLAMA.their_name('embedding.weight')} holds I32; weights are F64, F32, F16, BF16."
    )


@pytest.mark.parametrize("outside", ["../model.safetensors", "/etc/passwd", "a/../../x", "a\0b"])
def test_an_index_names_files_of_its_folder_alone(folder: Path, outside: str) -> None:
    (folder / INDEX).write_text(json.dumps({"weight_map": {"a": outside}}))
    what = f"names {json.dumps(outside)}, which is not a file below the folder. Put it there, and its name."
    assert refusal(lambda: files_by_tensor(folder)) == f"{folder / INDEX}: {what}"


def test_a_file_that_an_index_names_may_not_be_a_link_to_elsewhere(folder: Path) -> None:
    (folder / INDEX).write_text(json.dumps({"weight_map": {"a": "a.safetensors"}}))
    (folder / "a.safetensors").symlink_to("/etc/passwd")
    what = f"leads out of {folder}, to /etc/passwd. Put the file itself there."
    assert refusal(lambda: files_by_tensor(folder)) == f"{folder / 'a.safetensors'}: {what}"


@pytest.mark.parametrize("index", [b"{", b"{}", b'{"weight_map": []}', b'{"weight_map": {"a": 1}}'])
def test_an_index_that_names_no_files_is_one_line(folder: Path, index: bytes) -> None:
    (folder / INDEX).write_bytes(index)
    assert refusal(lambda: files_by_tensor(folder)).startswith(f"{folder / INDEX}: ")


def test_pipes_are_not_waited_for(folder: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        (folder / name).unlink()
        os.mkfifo(folder / name)
    assert (
        refusal(lambda: read_spec(folder)) == f"{folder / 'config.json'}: cannot be read: it is a pipe. Copy it again."
    )
    pipe = "cannot be read: it is a pipe. Put the file itself there."
    assert refusal(lambda: files_by_tensor(folder)) == f"{folder / 'model.safetensors'}: {pipe}"
    (folder / INDEX).write_text(
        json.dumps({"weight_map": {LLAMA.their_name(name): "model.safetensors" for name in SHAPES}})
    )
    assert refusal(lambda: fitting_files(folder, SHAPES, LLAMA, SPEC)) == f"{folder / 'model.safetensors'}: {pipe}"
    (folder / INDEX).unlink()
    os.mkfifo(folder / INDEX)
    assert refusal(lambda: files_by_tensor(folder)).endswith(f"{INDEX}: cannot be read: it is a pipe. Copy it again.")
