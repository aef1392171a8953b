"""Checkpoints, runs and Hugging Face folders of one shape -> their average, as a Hugging Face folder.

Tensor by tensor, summed in float64 and written in float32: of every model one tensor is in memory at a time. What was
trained as one model with several seeds or on several mixtures becomes one again, or a step back is taken towards an
earlier checkpoint (0.9 and 0.1).
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trivium.ask.convert import checkpoint_stage
from trivium.ask.export import whole_folder, write_tokenizer
from trivium.ask.open import begins_with, folder_tokenizer, put_before, run_at_step
from trivium.config.schema import Config
from trivium.engine.make import single_weights, weight_shapes
from trivium.errors import UsageError
from trivium.files import readable_by_others, write_flushed
from trivium.model.families.family import Family
from trivium.model.families.table import family_of
from trivium.model.folder import other_shape, read_spec
from trivium.model.huggingface import CONFIG_FILE, write_config
from trivium.model.huggingface_files import SHARD_BYTES, shards, write_index
from trivium.model.spec import ModelSpec
from trivium.run.folder import find_checkpoint
from trivium.text.tokenizer import Tokenizer, open_tokenizer

Shapes = dict[str, list[int]]
EXACT = 1e-6  # within which weights add up to 1
PROBE = [
    "The 12 quick brown foxes\n\tnaïve café 🙂 return x[0] + 1;"
]  # tokenizers that encode it alike are taken for one


@dataclass(frozen=True, slots=True)
class Averaged:
    """One of the models: its name as it was given, its weights' folder, its shape and tokenizer."""

    name: str
    folder: Path
    spec: ModelSpec
    seq_len: int
    tokenizer: Tokenizer | None
    before: tuple[int, ...]  # the tokens before each text


def average_models(models: Sequence[str], out: Path, weights: Sequence[float] | None = None) -> str:
    """Write the average of models to a new folder; gives a sentence about it."""
    if out.exists():
        raise UsageError(f"{out}: exists. Give a folder that does not exist yet.")
    shares = _shares(models, weights)
    opened = [_open(name) for name in models]
    refuse_others(opened)
    spec, shapes = opened[0].spec, weight_shapes(opened[0].spec)
    readers = [single_weights(each.folder, spec) for each in opened]

    def mean(name: str) -> NDArray[np.float32]:
        total = np.zeros(shapes[name], np.float64)
        for share, read in zip(shares, readers, strict=True):
            total += np.multiply(read(name), share, dtype=np.float64)
        return total.astype(np.float32)

    with whole_folder(out) as unfinished:
        write_weights(unfinished, shapes, mean, spec)
        write_config(unfinished, spec, spec.rope, max(each.seq_len for each in opened))
        first = next((each for each in opened if each.tokenizer is not None), None)
        words = ", without a tokenizer: none of them has one"
        if first is not None and first.tokenizer is not None:
            words = write_tokenizer(first.tokenizer, unfinished, first.before)
    parts = ", ".join(f"{share:.4g} of {each.name}" for share, each in zip(shares, opened, strict=True))
    return f"{out}: {parts}; {spec.parameters:,} parameters{words}."


def write_weights(
    folder: Path,
    shapes: Shapes,
    value: Callable[[str], NDArray[np.float32]],
    spec: ModelSpec,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Safetensors files of up to `shard_bytes`, their tensors made one after the other as they are written."""
    family = family_of(spec, spec.rope)
    files = shards(shapes, 4, shard_bytes)
    write_index(folder, files, shapes, 4, family.their_name, family.constants(spec))
    constants = family.constants(spec)
    for file, names in files.items():
        with readable_by_others(folder / file):
            write_flushed(folder / file, _file_parts(shapes, names, value, family, constants))
        constants = {}  # which are in the first one


def _file_parts(
    shapes: Shapes,
    names: Sequence[str],
    value: Callable[[str], NDArray[np.float32]],
    family: Family,
    constants: Mapping[str, float],
) -> Iterator[bytes | memoryview]:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    theirs = {family.their_name(name): shapes[name] for name in names} | dict.fromkeys(constants, ())
    for name, shape in theirs.items():
        begin, end = end, end + 4 * prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little")
    yield text
    for name in names:
        found = value(name) - np.float32(family.added(name)) if family.added(name) else value(name)
        yield np.ascontiguousarray(found).tobytes()
    for constant in constants.values():
        yield np.float32(constant).tobytes()


def _shares(models: Sequence[str], weights: Sequence[float] | None) -> list[float]:
    """How much each model counts; by default all alike."""
    if len(models) < 2:
        raise UsageError("average: one model is its own average. Give two or more.")
    if weights is None:
        return [1 / len(models)] * len(models)
    if len(weights) != len(models):
        raise UsageError(f"--weights: there are {len(weights)}, and {len(models)} models. Give one for each.")
    if not all(weight > 0 for weight in weights) or abs(sum(weights) - 1) > EXACT:
        shown = ", ".join(f"{weight:g}" for weight in weights)
        what = f"are {shown}, and add up to {sum(weights):g}" if min(weights) > 0 else f"are {shown}"
        raise UsageError(f"--weights: {what}. Give numbers over 0 that add up to 1.")
    return list(weights)


def _open(name: str) -> Averaged:
    """`runs/a`, `runs/a@4000`, a checkpoint or a Hugging Face folder."""
    path, step = run_at_step(name)
    if not path.is_dir():
        known = "a run's folder, RUN@STEP, a checkpoint, or a Hugging Face folder"
        raise UsageError(f"{name}: is not a folder. Give {known}.")
    if (path / CONFIG_FILE).exists():
        spec, tokenizer = read_spec(path), open_tokenizer(folder_tokenizer(path))
        return Averaged(name, path, spec, spec.max_seq_len, tokenizer, put_before(tokenizer) if tokenizer else ())
    checkpoint = find_checkpoint(path, step)
    checkpoint.refuse_damaged()
    spec, config = read_spec(checkpoint.engine), Config.model_validate(checkpoint.state()["config"])
    tokenizer, seq_len = open_tokenizer(config.tokenizer), checkpoint_stage(checkpoint).seq_len
    before = begins_with(config, tokenizer) if tokenizer else ()
    return Averaged(name, checkpoint.engine, spec, max(spec.max_seq_len, seq_len), tokenizer, before)


def refuse_others(models: Sequence[Averaged]) -> None:
    """All are compared with the first: one message names whatever differs."""
    first, *others = models
    problems = [f"{each.name}: is not a decoder, but what {each.spec.own} made" for each in models if each.spec.own]
    problems += [
        f"{each.name}: is transformers' {each.spec.foreign.family}, and only trivium's own decoders are averaged here"
        for each in models
        if each.spec.foreign is not None
    ]
    for each in others:
        differing = [f"{key} is {theirs}" for key, (theirs, _) in other_shape(each.spec, first.spec).items()]
        theirs, ours = each.spec.rope.deciding(), first.spec.rope.deciding()
        differing += [
            f"rope.{key} is {theirs.get(key, 'absent')}" for key in theirs | ours if theirs.get(key) != ours.get(key)
        ]
        if not _speak_alike(first.tokenizer, each.tokenizer):
            differing.append("its tokenizer is another")
        if differing:
            problems.append(f"{each.name}: differs from {first.name}: {', '.join(differing)}")
    if problems:
        raise UsageError(f"{'; '.join(problems)}. Average models of one shape, vocabulary and rotary positions.")


def _speak_alike(one: Tokenizer | None, other: Tokenizer | None) -> bool:
    """Whether two tokenizers give the same ids, as far as a text tells; a model without one says nothing."""
    if one is None or other is None or one.fingerprint == other.fingerprint:
        return True
    if one.vocab != other.vocab:
        return False
    (mine,), (theirs,) = one.encode(PROBE), other.encode(PROBE)
    return np.array_equal(mine, theirs)
