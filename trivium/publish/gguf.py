"""A Hugging Face folder -> one GGUF file, which llama.cpp and the tools built on it read.

    trivium export runs/base base.gguf --gguf-type bf16

The package gguf writes the file and knows its names of tensors. Tensors are read, changed and written one at a time.
Vectors stay float32, as llama.cpp computes with them. What llama.cpp would compute differently is refused.
"""

import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trivium.ask.export import export_checkpoint
from trivium.errors import UsageError
from trivium.files import draft
from trivium.model.families.family import Family
from trivium.model.huggingface import CONFIG_FILE, read_family, read_spec
from trivium.model.huggingface_files import StoredTensor, open_tensors, tensors_of
from trivium.model.rotary import rotary_frequencies
from trivium.model.spec import ModelSpec, RopeSpec
from trivium.publish.gguf_tokenizer import add_tokenizer
from trivium.publish.gguf_type import GgufType

if TYPE_CHECKING:
    from gguf import GGUFWriter

NO_ROPE_EVERY = 4  # llama.cpp's SmolLM3: every fourth layer has no rotary positions, whatever the file says
Q8_BLOCK = 32  # weights that share a scale
XIELU_PARTS = ("alpha_n", "alpha_p", "beta", "eps")  # numbers of a layer, which a GGUF has among its keys
FACTORS = "rope_freqs.weight"  # what llama.cpp divides the frequencies of rotary positions by


@dataclass(frozen=True, slots=True)
class Architecture:
    """What llama.cpp calls a family, and how its tensors differ from Hugging Face's."""

    name: str
    swaps_pairs: bool = False  # it rotates neighbouring channels, Hugging Face those half a head apart
    activation: str = "silu"


ARCHITECTURES = {
    "llama": Architecture("llama", swaps_pairs=True),
    "mistral": Architecture("llama", swaps_pairs=True),
    "qwen2": Architecture("qwen2"),
    "qwen3": Architecture("qwen3"),
    "smollm3": Architecture("smollm3", swaps_pairs=True),
    "olmo2": Architecture("olmo2"),
    "apertus": Architecture("apertus", activation="xielu"),
}


def refuse_without_gguf() -> None:
    """UsageError where the package is not installed."""
    if find_spec("gguf") is None:
        raise UsageError("a GGUF file needs the package gguf: pip install 'trivium[gguf]'.")


def export_gguf(run: Path, out: Path, step: int | None, stored: GgufType, *, averaged: bool = False) -> str:
    """Write a checkpoint to a new GGUF file; gives a sentence about it."""
    refuse_without_gguf()
    if out.exists():
        raise UsageError(f"{out}: exists. Name a file that does not exist yet.")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".trivium-", dir=out.parent) as temporary:
        folder = Path(temporary, "model")
        done = export_checkpoint(run, folder, step, averaged=averaged)
        write_gguf(folder, out, stored, run.resolve().name)
    return done.replace(str(folder), str(out), 1)


def write_gguf(folder: Path, out: Path, stored: GgufType, name: str) -> None:
    """Write a folder's model with its tokenizer to a new file, under a model's name."""
    family, spec = read_family(folder), read_spec(folder)
    problems = list(_misfits(family, spec, stored))
    if problems:
        what = "; ".join(problems)
        raise UsageError(
            f"{out}: llama.cpp would compute something else: {what}. Export a Hugging Face folder instead."
        )
    import gguf

    architecture = ARCHITECTURES[family.name]
    with draft(out) as file:
        writer = gguf.GGUFWriter(file.name, architecture.name)
        writer.add_name(name)
        _add_shape(writer, spec, json.loads((folder / CONFIG_FILE).read_text()))
        add_tokenizer(writer, folder, spec.vocab, out)
        if architecture.activation == "xielu":
            _add_xielu(writer, folder, spec)
        _write_tensors(writer, folder, architecture, spec, stored)
        writer.close()


def _misfits(family: Family, spec: ModelSpec, stored: GgufType) -> Iterator[str]:
    """What of a model llama.cpp cannot express, or expresses otherwise."""
    architecture = ARCHITECTURES.get(family.name)
    if architecture is None:
        yield f"the family {family.name}; known are {', '.join(ARCHITECTURES)}"
        return
    if spec.activation != architecture.activation:
        yield f"activation {spec.activation}"
    if spec.sliding:
        yield "sliding layers"
    rope = spec.rope
    if rope.scaling == "ntk-by-parts":
        yield "ntk-by-parts rotary positions"
    if rope.scaling == "yarn" and rope.attention_factor is not None:
        yield f"yarn's attention_factor {rope.attention_factor:g}"
    every_fourth = tuple(range(NO_ROPE_EVERY - 1, spec.layers, NO_ROPE_EVERY))
    if family.name == "smollm3" and rope.dropped != every_fourth:
        yield f"layers without rotary positions other than every {NO_ROPE_EVERY}th"
    narrow = sorted({size for size in (spec.width, spec.ffn, spec.heads * spec.head_dim) if size % Q8_BLOCK})
    if stored is GgufType.Q8_0 and narrow:
        yield f"q8_0 of matrices of {narrow[0]} columns, and {narrow[0]} is not a multiple of {Q8_BLOCK}"


def _add_shape(writer: "GGUFWriter", spec: ModelSpec, config: Mapping[str, Any]) -> None:
    writer.add_block_count(spec.layers)
    writer.add_context_length(int(config["max_position_embeddings"]))
    writer.add_embedding_length(spec.width)
    writer.add_feed_forward_length(spec.ffn)
    writer.add_head_count(spec.heads)
    writer.add_head_count_kv(spec.kv_heads)
    writer.add_key_length(spec.head_dim)
    writer.add_value_length(spec.head_dim)
    writer.add_layer_norm_rms_eps(spec.norm_eps)
    writer.add_vocab_size(spec.vocab)
    writer.add_rope_dimension_count(spec.head_dim)
    _add_rope(writer, spec.rope)


def _add_rope(writer: "GGUFWriter", rope: RopeSpec) -> None:
    """The base and the stretching; llama3's is a tensor of factors."""
    import gguf

    writer.add_rope_freq_base(rope.theta)
    if rope.scaling in ("linear", "yarn"):
        kind = {"linear": gguf.RopeScalingType.LINEAR, "yarn": gguf.RopeScalingType.YARN}[rope.scaling]
        writer.add_rope_scaling_type(kind)
        writer.add_rope_scaling_factor(rope.factor)
    if rope.scaling == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope.original_seq_len)
        writer.add_rope_scaling_yarn_beta_fast(rope.beta_fast)
        writer.add_rope_scaling_yarn_beta_slow(rope.beta_slow)


def _add_xielu(writer: "GGUFWriter", folder: Path, spec: ModelSpec) -> None:
    """Its four numbers of every layer."""
    by_name = {tensor.name: tensor for tensor in tensors_of(folder)}
    for part in XIELU_PARTS:
        names = [f"model.layers.{layer}.mlp.act_fn.{part}" for layer in range(spec.layers)]
        values = [float(_read(by_name[name]).item()) for name in names]
        getattr(writer, f"add_xielu_{part}")(values)


def _write_tensors(
    writer: "GGUFWriter", folder: Path, architecture: Architecture, spec: ModelSpec, stored: GgufType
) -> None:
    """Every tensor, first as a line of the table of contents, then as bytes."""
    import gguf

    kinds = {each: gguf.GGMLQuantizationType[each.name] for each in GgufType}
    arch = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture.name)
    names = gguf.get_tensor_name_map(arch, spec.layers)
    tensors = [each for each in tensors_of(folder) if ".act_fn." not in each.name]
    factors = _rope_factors(spec)
    if factors is not None:
        writer.add_tensor_info(FACTORS, factors.shape, factors.dtype, factors.nbytes)
    for tensor in tensors:
        name = names.get_name(tensor.name, try_suffixes=(".weight", ".bias"))
        assert name is not None, f"llama.cpp's {architecture.name} has {tensor.name}"
        kind = kinds[stored if len(tensor.shape) > 1 else GgufType.F32]
        block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        size = int(np.prod(tensor.shape)) // block * block_bytes
        writer.add_tensor_info(name, tensor.shape, np.dtype(np.float32), size, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    if factors is not None:
        writer.write_tensor_data(factors)
    for tensor in tensors:
        values = _in_their_order(_read(tensor), tensor.name, architecture, spec)
        kind = kinds[stored if values.ndim > 1 else GgufType.F32]
        writer.write_tensor_data(gguf.quants.quantize(values, kind))


def _read(tensor: StoredTensor) -> NDArray[np.float32]:
    with open_tensors(tensor.path, "np") as file:
        return np.asarray(file.get_tensor(tensor.name), np.float32)


def _in_their_order(
    values: NDArray[np.float32], name: str, architecture: Architecture, spec: ModelSpec
) -> NDArray[np.float32]:
    """Channels of queries and keys in pairs of neighbours, where llama.cpp rotates those."""
    heads = {"q_proj": spec.heads, "k_proj": spec.kv_heads}.get(name.split(".")[-2])
    if heads is None or not architecture.swaps_pairs:
        return values
    halves = values.reshape(heads, 2, spec.head_dim // 2, -1)
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))


def _rope_factors(spec: ModelSpec) -> NDArray[np.float32] | None:
    """llama3's stretching: plain frequencies over stretched ones."""
    if spec.rope.scaling != "llama3":
        return None
    plain, _ = rotary_frequencies(RopeSpec(spec.rope.theta), spec.head_dim)
    stretched, _ = rotary_frequencies(spec.rope, spec.head_dim)
    return plain / stretched
