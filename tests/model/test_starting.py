"""What is taken from a folder of weights: each tensor is read, or left out for a reason."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from trivium.engine.make import weight_shapes
from trivium.errors import ConfigError
from trivium.model.families.table import BY_NAME
from trivium.model.huggingface import write_config
from trivium.model.huggingface_files import PICKLE, files_by_tensor, open_tensors
from trivium.model.spec import ModelSpec, RopeSpec
from trivium.model.starting import from_checkpoint, from_huggingface

LLAMA = BY_NAME["llama"]
SPEC = ModelSpec(layers=1, width=8, heads=2, kv_heads=1, head_dim=4, ffn=8, vocab=120, max_seq_len=32)
TIED = replace(SPEC, tied_embeddings=True)
FRESH = {"optimizer state": "fresh"}


def write(folder: Path, spec: ModelSpec = SPEC, **more: np.ndarray) -> Path:
    folder.mkdir(exist_ok=True)
    write_config(folder, spec, RopeSpec(), 32)
    weights = {LLAMA.their_name(name): np.zeros(shape, np.float16) for name, shape in weight_shapes(spec).items()}
    save_file(weights | more, folder / "model.safetensors")
    return folder


def test_all_that_is_read_left_out_and_added_is_said(tmp_path: Path) -> None:
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.zeros(2, np.float32)}
    folder = write(tmp_path / "model", TIED, **extra, **{"lm_head.weight": np.zeros((120, 8), np.float16)})
    read = from_huggingface(folder, TIED, weight_shapes(TIED))
    assert (read.parameters, read.tensors, read.kinds) == (TIED.parameters, 11, {"F16": TIED.parameters})
    assert read.left_out == {
        "lm_head.weight": "the embedding is used, to which it is tied",
        "model.layers.0.self_attn.rotary_emb.inv_freq": "config.json has it",
    }
    assert read.added == {"8 rows of the vocabulary": "zeros, up to a multiple of 128; never read", **FRESH}
    assert read.words() == (
        f"11 tensors, {TIED.parameters:,} parameters (F16); left out: lm_head.weight (the embedding is used, to which "
        "it is tied), model.layers.0.self_attn.rotary_emb.inv_freq (config.json has it); added: 8 rows of the "
        "vocabulary (zeros, up to a multiple of 128; never read), optimizer state (fresh)"
    )


def test_a_tensor_of_two_files_is_read_from_the_one_that_the_index_names(tmp_path: Path) -> None:
    folder = write(tmp_path / "model")
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    save_file({"model.norm.weight": np.ones(8, np.float16)}, folder / "b.safetensors")
    names = dict.fromkeys((LLAMA.their_name(name) for name in weight_shapes(SPEC)), "a.safetensors")
    index = {"weight_map": names | {"model.norm.weight": "b.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    read = from_huggingface(folder, SPEC, weight_shapes(SPEC))
    twice = {"model.norm.weight of a.safetensors": "another file has it, which the index names"}
    assert (read.left_out, read.parameters) == (twice, SPEC.parameters)


def test_a_checkpoint_gives_its_weights_and_where_asked_its_optimizer(tmp_path: Path) -> None:
    alone, both = (from_checkpoint(tmp_path, SPEC, optimizer=optimizer) for optimizer in (False, True))
    assert (alone.left_out, alone.added) == ({"optimizer state": "model.init_optimizer is false"}, FRESH)
    assert (both.left_out, both.added, both.words()) == ({}, {}, f"{SPEC.parameters:,} parameters")


def test_pickles_are_refused_by_name_and_by_their_first_bytes(tmp_path: Path) -> None:
    folder = write(tmp_path / "model")
    (folder / "model.safetensors").unlink()
    for name in ("pytorch_model-1.bin", "pytorch_model-2.bin", "training_args.txt"):
        (folder / name).write_bytes(b"\x80\x04never read")
    with pytest.raises(ConfigError) as refused:
        files_by_tensor(folder)
    assert str(refused.value) == "\n".join(f"{folder}/pytorch_model-{number}.bin: {PICKLE}" for number in (1, 2))
    for first in (b"PK\x03\x04 as torch.save writes", b"\x80\x02 a bare one"):
        (folder / "model.safetensors").write_bytes(first)
        with pytest.raises(ConfigError) as refused:
            files_by_tensor(folder)
        assert str(refused.value) == f"{folder}/model.safetensors: {PICKLE}"


@pytest.mark.parametrize("size", [0x0280, 0x0580])
def test_a_header_whose_length_begins_as_a_pickle_does_is_read(tmp_path: Path, size: int) -> None:
    path = tmp_path / "model.safetensors"
    header = b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    path.write_bytes(size.to_bytes(8, "little") + header.ljust(size) + bytes(4))
    with open_tensors(path, "np") as file:
        assert list(file.keys()) == ["a"]
