"""A Hugging Face folder, a run or a checkpoint -> what the model in it is, and by whose code it can be trained.

Configs and the headers of weight files are read, never the weights themselves; pickles are named and never opened.
"""

import json
from collections import Counter
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

from trivium.ask.open import folder_tokenizer
from trivium.config.schema import Config
from trivium.config.schema import Tokenizer as TokenizerConfig
from trivium.engine.make import counted_spec, foreign_files, weight_shapes
from trivium.errors import ConfigError, TriviumError, UsageError
from trivium.model.folder import is_saved, read_spec, saved_by
from trivium.model.huggingface import CONFIG_FILE, read_table
from trivium.model.huggingface_files import StoredTensor, pickles_in, tensors_of
from trivium.model.spec import ModelSpec
from trivium.model.starting import StartingWeights, from_files, from_huggingface
from trivium.paths import suggestion
from trivium.run.folder import find_checkpoint
from trivium.text.tokenizer import open_tokenizer

Facts = dict[str, Any]
SHOWN = 20  # problems, for people


def inspect_model(folder: Path, step: int | None = None) -> Facts:
    """What is known of a model without reading its weights, as plain values; `problems` are what stands in the way."""
    if not folder.is_dir():
        known = "a run's folder, one of its checkpoints, or a Hugging Face folder"
        raise UsageError(f"{folder}: is not a folder.{suggestion(folder)} Give {known}.")
    if (folder / CONFIG_FILE).exists():
        if step is not None:
            raise UsageError(f"{folder}: is a Hugging Face folder, which has no steps. Omit --step.")
        return _huggingface(folder)
    if not any((folder / name).exists() for name in ("checkpoints", "state.json")) and pickles_in(folder):
        raise UsageError(f"{folder}: has no {CONFIG_FILE}, and {pickles_in(folder)[0].name} is a pickle, never opened.")
    return _checkpoint(folder, step)


def _huggingface(folder: Path) -> Facts:
    config = read_table(folder / CONFIG_FILE)
    problems: list[str] = []
    facts: Facts = {"folder": str(folder), "kind": "Hugging Face folder", "family": config.get("model_type")}
    facts["architectures"] = config.get("architectures")
    spec = _tried(lambda: read_spec(folder), problems)
    is_foreign = spec is not None and spec.foreign is not None
    facts |= {} if spec is None else shape_of(spec)
    known = _tried(lambda: counted_spec(spec), problems) if is_foreign else spec
    facts |= {} if known is None else {"counted": known.parameters}
    tensors = _tried(lambda: list(tensors_of(folder)), problems) or []
    facts |= _stored(tensors)
    if known is not None and tensors:
        read = _tried(lambda: _weights(folder, known), problems)
        facts |= {} if read is None else {"left_out": dict(read.left_out)}
    rows = spec.vocab if spec is not None else config.get("vocab_size")
    facts["tokenizer"] = _tokenizer(folder_tokenizer(folder), rows)
    facts["pickles"] = [path.name for path in pickles_in(folder)]
    is_native = spec is not None and not is_foreign
    facts |= {"native": is_native and not problems, "is_native_family": is_native}
    facts |= {"transformers": is_foreign and not problems, "is_transformers_family": is_foreign, "problems": problems}
    return facts


def _weights(folder: Path, spec: ModelSpec) -> StartingWeights:
    """What a run would read of a folder; ConfigError where its tensors are not the model's."""
    if spec.foreign is None:
        return from_huggingface(folder, spec, weight_shapes(spec))
    return from_files(folder, foreign_files(spec, folder))


def _tried(find: Any, problems: list[str]) -> Any:
    """What is found; None where it cannot be, and then the reasons are noted."""
    try:
        return find()
    except ConfigError as error:
        problems += [str(problem) for problem in error.problems]
    return None


def _checkpoint(folder: Path, step: int | None) -> Facts:
    checkpoint = find_checkpoint(folder, step)
    spec, state = read_spec(checkpoint.engine), checkpoint.state()
    config = Config.model_validate(state["config"])
    engine = saved_by(checkpoint.engine) if is_saved(checkpoint.engine) else "none yet: Hugging Face form"
    files = checkpoint.files()
    foreign = None if spec.foreign is None else f"{spec.foreign.family} (transformers)"
    is_native = spec.own is None and foreign is None
    return {
        "folder": str(folder),
        "kind": f"step {checkpoint.step:,} of a run, saved by {engine}",
        "family": spec.own or foreign or "trivium's decoder",
        **shape_of(spec),
        "counted": spec.parameters,
        "parameters": spec.parameters,
        "files": len(files),
        "bytes": sum(int(file["bytes"]) for file in files.values()),
        "tokenizer": _tokenizer(config.tokenizer, spec.vocab),
        "pickles": [],
        "native": is_native,
        "is_native_family": is_native,
        "transformers": foreign is not None,
        "is_transformers_family": foreign is not None,
        "problems": [],
    }


def shape_of(spec: ModelSpec) -> Facts:
    """A model's sizes and rotary positions."""
    keys = ("layers", "width", "heads", "kv_heads", "head_dim", "ffn", "vocab", "max_seq_len", "tied_embeddings")
    return {**{key: getattr(spec, key) for key in keys}, "rope": spec.rope.deciding()}


def _stored(tensors: list[StoredTensor]) -> Facts:
    """What files hold, by their headers."""
    parameters, sizes = Counter[str](), Counter[str]()
    for tensor in tensors:
        parameters[tensor.kind] += prod(tensor.shape)
        sizes[tensor.kind] += tensor.bytes or 0
    names = Counter(tensor.name for tensor in tensors)
    return {
        "parameters": parameters.total(),
        "tensors": len(tensors),
        "parameters_by_dtype": dict(parameters),
        "bytes_by_dtype": dict(sizes),
        "files": len({tensor.path for tensor in tensors}),
        "stored_twice": sorted(name for name, count in names.items() if count > 1),
        "tensor_list": [
            {"name": each.name, "shape": each.shape, "dtype": each.kind, "bytes": each.bytes, "file": each.path.name}
            for each in tensors
        ],
    }


def _tokenizer(config: TokenizerConfig | None, rows: Any) -> Facts | None:
    """The tokenizer beside a model, and whether its tokens fit the rows of the embedding."""
    if config is None:
        return None
    try:
        opened = open_tokenizer(config)
    except TriviumError as error:
        return {"path": config.path, "problem": str(error)}
    if opened is None:
        return None
    fits = opened.vocab <= rows if isinstance(rows, int) else None
    return {"path": config.path or config.kind, "tokens": opened.vocab, "rows": rows, "fits": fits}


def inspected_lines(facts: Facts) -> Iterator[str]:
    """The same for people, a fact on each line."""
    made = f" ({', '.join(map(str, facts['architectures']))})" if facts.get("architectures") else ""
    yield f"{facts['folder']}: {facts['kind']}"
    yield f"family: {facts['family']}{made}"
    if "layers" in facts:
        heads = f"{facts['heads']} heads of {facts['head_dim']} ({facts['kv_heads']} kv)"
        yield f"shape: {facts['layers']} layers of {facts['width']:,}, {heads}, feed-forward {facts['ffn']:,}"
        yield f"vocabulary: {facts['vocab']:,} rows, {'tied' if facts['tied_embeddings'] else 'not tied'}"
        yield f"rope: {_rope_words(facts['rope'])}; rows of up to {facts['max_seq_len']:,}"
    yield f"parameters: {facts['parameters']:,}{_stored_words(facts)}"
    yield f"tokenizer: {_tokenizer_words(facts['tokenizer'])}"
    for name, why in list(facts.get("left_out", {}).items())[:SHOWN]:
        yield f"left out: {name} ({why})"
    for name in facts["pickles"]:
        yield f"never opened: {name} is a pickle"
    yield from (f"problem: {problem}" for problem in facts["problems"][:SHOWN])
    if len(facts["problems"]) > SHOWN:
        yield f"problem: and {len(facts['problems']) - SHOWN:,} more, which --json lists"
    yield _native_words(facts)


def _stored_words(facts: Facts) -> str:
    if "tensors" not in facts:
        return f"; {facts['files']:,} files, {facts['bytes'] / 1e6:,.1f} MB with the optimizer's state"
    kinds = [f"{kind} {size / 1e6:,.1f} MB" for kind, size in facts["bytes_by_dtype"].items()]
    files = "1 file" if facts["files"] == 1 else f"{facts['files']:,} files"
    return f" in {facts['tensors']:,} tensors, {files}{': ' if kinds else ''}{', '.join(kinds)}"


def _rope_words(rope: Facts) -> str:
    return ", ".join(f"{key} {json.dumps(value)}" for key, value in rope.items())


def _tokenizer_words(found: Facts | None) -> str:
    if found is None:
        return "none beside it"
    if "problem" in found:
        return str(found["problem"])
    fits = {True: "fits", False: "does not fit", None: "may fit"}[found["fits"]]
    rows = f"the {found['rows']:,} rows" if isinstance(found["rows"], int) else "rows that config.json does not count"
    return f"{found['path']}, {found['tokens']:,} tokens: {fits} {rows}"


def _native_words(facts: Facts) -> str:
    """Whether and how it can be trained."""
    folder, family = facts["folder"], facts["family"]
    if facts["native"]:
        return f'native: yes, on both engines: model.init = "{folder}"'
    if facts["is_native_family"]:
        return "native: the family is, but not this folder, until the problems above are gone"
    if facts["transformers"]:
        return f'native: no, by transformers\' own code on the torch engine: model.init = "{folder}"'
    if facts["is_transformers_family"]:
        return "native: no, nor by transformers' own code, until the problems above are gone"
    if ":" in str(family):
        return f'native: no, made by a function of a package: model.init = "{folder}" where that is installed'
    return f"native: no. transformers may have it: model.family = {json.dumps(family)}, and trivium plan says if it can"
