"""`trivium inspect-model`: what is known of a model by its configs and headers, whoever wrote them."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from tests.support.command_line import trivium
from tests.support.models import BYTES, SPEC, byte_model
from trivium.ask.export import write_tokenizer
from trivium.model.families.table import BY_NAME

FAMILY = "qwen3" if SPEC.qk_norm else "llama"
INDEX = "model.safetensors.index.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a model of bytes and its tokenizer."""
    byte_model().export(tmp_path / "hf")
    write_tokenizer(BYTES, tmp_path / "hf", ())
    return tmp_path


def save_foreign(family: str, folder: Path) -> None:
    """A tiny model of a family that the decoder does not have, as transformers saves it."""
    sizes = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
    experts = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    widths = {"head_dim": 16, "intermediate_size": 96, "vocab_size": 256, "pad_token_id": None}
    made: Any = AutoModelForCausalLM
    made.from_config(AutoConfig.for_model(family, **sizes, **experts, **widths)).save_pretrained(folder)


def inspected(folder: Path, *arguments: str) -> dict[str, Any]:
    code, out, err = trivium(folder, "inspect-model", *arguments, "--json")
    assert code == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


def lines(folder: Path, *arguments: str) -> list[str]:
    code, out, err = trivium(folder, "inspect-model", *arguments)
    assert code == 0, err
    return out.splitlines()


def test_a_native_folder_is_described(folder: Path) -> None:
    found = inspected(folder, "hf")
    assert (found["family"], found["native"], found["problems"]) == (FAMILY, True, [])
    assert found["parameters"] == found["counted"] == sum(found["parameters_by_dtype"].values())
    assert found["bytes_by_dtype"] == {"F32": 4 * found["parameters"]}
    assert found["tensors"] == len(found["tensor_list"])
    shown = lines(folder, "hf")
    assert shown[0] == "hf: Hugging Face folder"
    assert shown[1] == f"family: {FAMILY} ({BY_NAME[FAMILY].architecture})"
    assert shown[-1] == 'native: yes, on both engines: model.init = "hf"'


def test_what_stands_in_the_way_is_named(folder: Path) -> None:
    weights = load_file(folder / "hf" / "model.safetensors")
    first = next(name for name in weights if name.endswith("q_proj.weight"))
    save_file({**weights, first: np.zeros((3, 3), np.int8)}, folder / "hf" / "model.safetensors")
    (folder / "hf" / "optimizer.pt").write_bytes(b"never read")
    found = inspected(folder, "hf")
    assert not found["native"]
    assert [problem.partition(": ")[2].partition(" asks")[0] for problem in found["problems"]] == [
        f"{first} is [3, 3], but config.json",
        f"{first} holds I8; weights are F64, F32, F16, BF16.",
    ]
    assert found["pickles"] == ["optimizer.pt"]
    assert "native: the family is, but not this folder, until the problems above are gone" in lines(folder, "hf")


def test_a_family_that_is_not_native_is_described_by_its_config_and_headers(folder: Path) -> None:
    config = folder / "hf" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "model_type": "mamba2"}))
    shown = lines(folder, "hf")
    assert f"family: mamba2 ({BY_NAME[FAMILY].architecture})" in shown
    assert shown[-1].startswith("native: no.")
    assert 'model.family = "mamba2"' in shown[-1]
    assert any(line.startswith("parameters: ") and "tensors, 1 file: F32" in line for line in shown)


def test_a_family_of_transformers_is_described_with_how_to_train_it(tmp_path: Path) -> None:
    save_foreign("qwen3_moe", tmp_path / "hf")
    found = inspected(tmp_path, "hf")
    assert (found["native"], found["transformers"], found["problems"]) == (False, True, [])
    assert found["parameters"] == found["counted"]
    assert (found["layers"], found["width"], found["vocab"]) == (2, 64, 256)
    shown = lines(tmp_path, "hf")
    assert shown[1] == "family: qwen3_moe (Qwen3MoeForCausalLM)"
    assert shown[-1] == 'native: no, by transformers\' own code on the torch engine: model.init = "hf"'
    weights = load_file(tmp_path / "hf" / "model.safetensors")
    save_file({**weights, "lm_head.weight": weights["lm_head.weight"][:9]}, tmp_path / "hf" / "model.safetensors")
    (problem,) = inspected(tmp_path, "hf")["problems"]
    assert problem.startswith("hf/model.safetensors: lm_head.weight is [9, 64]")
    assert lines(tmp_path, "hf")[-1].startswith("native: no, nor by transformers' own code")


def test_a_family_of_transformers_that_is_refused_is_described_with_the_reason(tmp_path: Path) -> None:
    save_foreign("gpt_oss", tmp_path / "hf")
    found = inspected(tmp_path, "hf")
    assert (found["native"], found["transformers"], found["layers"]) == (False, False, 2)
    assert len(found["problems"]) == 1
    assert "its attention has sinks" in found["problems"][0]


def test_a_tokenizer_that_has_more_tokens_than_the_embedding_rows_does_not_fit(folder: Path) -> None:
    config = folder / "hf" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "vocab_size": 100}))
    found = inspected(
        folder,
        "hf",
    )
    tokens = found["tokenizer"]["tokens"]
    assert found["tokenizer"]["fits"] is False
    assert f"tokenizer: hf, {tokens} tokens: does not fit the 100 rows" in lines(folder, "hf")


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (struct.pack("<Q", 10_000_000_000) + b"{}", "cannot be read as safetensors"),
        (b"\0" * 4, "cannot be read as safetensors"),
        (b"PK\x03\x04", "is a pickle"),
    ],
)
def test_headers_that_promise_too_much_are_a_problem_and_no_more(folder: Path, content: bytes, what: str) -> None:
    (folder / "hf" / "model.safetensors").write_bytes(content)
    (problem,) = inspected(folder, "hf")["problems"]
    assert problem.startswith("hf/model.safetensors: ")
    assert what in problem


@pytest.mark.parametrize("name", ["../outside.safetensors", "/etc/passwd", "a/../../x"])
def test_an_index_names_no_file_outside(folder: Path, name: str) -> None:
    (folder / "hf" / INDEX).write_text(json.dumps({"weight_map": {"a": name, "b": "gone.safetensors"}}))
    assert inspected(folder, "hf")["problems"] == [
        f"hf/{INDEX}: names {json.dumps(name)}, which is not a file below the folder. Put it there, and its name."
    ]


def test_what_is_no_model_is_refused_in_a_line(folder: Path) -> None:
    (folder / "weights").mkdir()
    (folder / "weights" / "model.pt").write_bytes(b"")
    for arguments, said in (
        (("nowhere",), "nowhere: is not a folder."),
        (("weights",), "weights: has no config.json, and model.pt is a pickle, never opened."),
        (("hf", "--step", "3"), "hf: is a Hugging Face folder, which has no steps. Omit --step."),
    ):
        code, _, err = trivium(folder, "inspect-model", *arguments)
        assert (code, err.startswith(said), len(err.splitlines())) == (2, True, 1), err
