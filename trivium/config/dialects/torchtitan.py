"""torchtitan's multi-stage configs: `[training]` and `[[training.data_stages]]` -> our sources and stages.

Their loaders concatenate documents and attend across them, so the stages have `packing = "concat"` and
`document_mask = false`. Their schedule's rules and defaults are written out, for our defaults differ.
"""

import math
from collections.abc import Mapping
from typing import Any

from trivium.config.dialects import theseus
from trivium.config.dialects.torchtitan_data import DataStages
from trivium.config.dialects.translation import ALL_OF_THEM, MODEL_SIZES, Theirs, Translation, is_number
from trivium.config.problems import show_value

# What their `flavor` means for the models that people run through these configs.
FLAVORS: dict[tuple[str, str], dict[str, Any]] = {
    ("llama3", "debugmodel"): {"layers": 6, "width": 256, "heads": 16, "ffn": 768, "vocab": 2048},
    ("llama3", "8B"): {"size": "8b", "vocab": 128_256},
    ("llama3", "70B"): {"size": "70b", "vocab": 128_256},
}
LLAMA3_THETA = 500_000
SHARED_ROWS = ("tensor", "context", "pipeline")


def recognises(raw: Mapping[str, Any]) -> bool:
    """Their data is in `[training]`; ours never has that table."""
    return isinstance(raw.get("training"), Mapping) and not theseus.recognises(raw)


def translate(raw: Mapping[str, Any], file: str, world_size: int | None) -> Translation:
    """Our tables, and every problem of theirs by their own key paths."""
    theirs = Theirs(raw, file)
    data = DataStages(theirs)
    stages = data.stages()
    ours: dict[str, Any] = {
        "run": _run(theirs),
        "model": _model(theirs),
        "optimizer": _optimizer(theirs),
        "schedule": _schedule(theirs, data.steps),
        "engine": _engine(theirs),
        "checkpoint": _checkpoint(theirs),
        "track": theirs.take_trackers("log_freq"),
        "defaults": {
            "packing": "concat",
            "document_mask": False,
            "batch_size": _batch_size(theirs, world_size),
        },
        "sources": data.sources.tables,
        "stages": stages,
    }
    tokenizer = theirs.take_first(("model", "hf_assets_path"), ("model", "tokenizer_path"))
    if tokenizer:
        ours["tokenizer"] = {"path": tokenizer}
        ours["model"].pop("vocab", None)  # the tokenizer's
    return theirs.translated(ours)


def _run(theirs: Theirs) -> dict[str, Any]:
    run: dict[str, Any] = {"name": theirs.file.removesuffix(".toml")}
    run["folder"] = theirs.take("job", "dump_folder", default="outputs")
    seed = theirs.take_first(("debug", "seed"), ("training", "seed"))
    return run if seed is None else {**run, "seed": seed}


def _model(theirs: Theirs) -> dict[str, Any]:
    name = theirs.take("model", "name", default="llama3")
    flavor = theirs.take("model", "flavor", default="debugmodel")
    shape = FLAVORS.get((name, flavor))
    if shape is None:
        what = f'no shape is known for "{name}" "{flavor}". Give one on the command line: model.size=1b.'
        theirs.need(("model", "flavor"), what, *MODEL_SIZES)
        return {}
    return {**shape, "rope": {"theta": LLAMA3_THETA}}


def _optimizer(theirs: Theirs) -> dict[str, Any]:
    name = theirs.take("optimizer", "name", default="AdamW")
    if str(name).lower() not in ("adamw", "muon"):
        theirs.problem(("optimizer", "name"), f"is {show_value(name)}. Write AdamW or Muon.")
    return {
        "name": str(name).lower(),
        "lr": theirs.take("optimizer", "lr", default=8e-4),
        "betas": [theirs.take("optimizer", key, default=usual) for key, usual in (("beta1", 0.9), ("beta2", 0.95))],
        "eps": theirs.take("optimizer", "eps", default=1e-8),
        "weight_decay": theirs.take("optimizer", "weight_decay", default=0.1),
        "no_decay": [],
        "grad_clip": theirs.take("training", "max_norm", default=1.0),
    }


def _schedule(theirs: Theirs, steps: int | None) -> dict[str, Any]:
    """Theirs falls from the end of the warm-up, or over the last `decay_ratio` of the run."""
    warmup = theirs.take_whole("lr_scheduler", "warmup_steps", at_least=0, default=200)
    ratio = theirs.take("lr_scheduler", "decay_ratio")
    shape = theirs.take("lr_scheduler", "decay_type", default="linear")
    to = theirs.take_first(("lr_scheduler", "min_lr_factor"), ("lr_scheduler", "lr_min"), default=0.0)
    if shape not in ("linear", "cosine", "sqrt"):
        theirs.refuse(("lr_scheduler", "decay_type"), shape, 'Write "linear", "cosine" or "sqrt".')
    if steps is not None and warmup > steps:
        found = "is" if theirs.has("lr_scheduler", "warmup_steps") else "is absent, which means"
        what = f"{found} {warmup:,}, over the run's {steps:,} steps: taken as {steps:,}."
        theirs.differs(("lr_scheduler", "warmup_steps"), what)
        warmup = steps
    schedule: dict[str, Any] = {"warmup": {"steps": warmup}}
    if ratio is None and shape in ("linear", "cosine"):
        return {**schedule, "shape": shape, "to": to}
    decay = _decay_steps(theirs, ratio, warmup, warmup if steps is None else steps)
    decay_shape = "1-sqrt" if shape == "sqrt" else shape
    return {**schedule, "shape": "wsd", "decay": {"steps": decay}, "decay_shape": decay_shape, "to": to}


def _decay_steps(theirs: Theirs, ratio: Any, warmup: int, steps: int) -> int:
    """The length of the fall: all after the warm-up, or a part of the run as they round it."""
    longest = steps - warmup
    if ratio is None:
        return longest
    path = ("lr_scheduler", "decay_ratio")
    if not is_number(ratio) or not 0 <= ratio <= 1:
        theirs.problem(path, f"is {show_value(ratio)}. It must be between 0 and 1. Write decay_ratio = 0.2.")
        return longest
    decay: int = round(steps * ratio)
    if decay > longest:
        theirs.differs(path, f"makes {decay:,} steps, over the {longest:,} after the warm-up: taken as {longest:,}.")
    return min(decay, longest)


def _engine(theirs: Theirs) -> dict[str, Any]:
    engine: dict[str, Any] = {}
    if theirs.take_first(("compile", "enable"), ("training", "compile"), default=False):
        engine["compile"] = True
    precision = theirs.take("training", "mixed_precision_param")
    if precision is not None:
        engine["precision"] = precision
    deterministic = theirs.take_first(("debug", "deterministic"), ("training", "deterministic"))
    if deterministic is not None:
        engine["deterministic"] = deterministic
    if theirs.look("training", "global_batch_size", default=-1) != -1 and (local := _local_batch(theirs)):
        engine["micro_batch_size"] = local
    shard = theirs.take("parallelism", "data_parallel_shard_degree", default=-1)
    parallel = {
        "replicate": theirs.take("parallelism", "data_parallel_replicate_degree", default=1),
        "tensor": theirs.take("parallelism", "tensor_parallel_degree", default=1),
        **({"shard": shard} if shard != -1 else {}),
    }
    if parallel != {"replicate": 1, "tensor": 1}:
        engine["parallel"] = parallel
    return engine


def _batch_size(theirs: Theirs, world_size: int | None) -> int:
    """Rows on all ranks; theirs may be a size for each rank."""
    if theirs.take("training", "global_batch_size", default=-1) != -1:
        return theirs.take_whole("training", "global_batch_size", at_least=1, default=1)
    local = _local_batch(theirs) or 8
    if world_size is None:
        key = "batch_size" if theirs.has("training", "batch_size") else "local_batch_size"
        return local * theirs.assume_ranks(("training", key), local, "training.global_batch_size")
    # Ranks that share one model read the same rows: 8 rows, 4 ranks in pairs -> 16.
    together = [theirs.look("parallelism", f"{way}_parallel_degree", default=1) for way in SHARED_ROWS]
    ranks = math.prod(degree for degree in together if isinstance(degree, int))
    if ranks < 1 or world_size % ranks:
        what = f"{ranks} ranks share each row (tensor, context and pipeline degrees), which does not divide"
        theirs.problem(("parallelism",), f"{what} --world-size {world_size}. Change one of them.")
        return local
    return local * (world_size // ranks)


def _local_batch(theirs: Theirs) -> int | None:
    """Their rows on one rank, where they are given."""
    for key in ("local_batch_size", "batch_size"):
        if theirs.has("training", key):
            return theirs.take_whole("training", key, at_least=1, default=8)
    return None


def _checkpoint(theirs: Theirs) -> dict[str, Any]:
    mode = theirs.take("checkpoint", "async_mode", default="disabled")
    if not theirs.take_first(("checkpoint", "enable"), ("checkpoint", "enable_checkpoint"), default=False):
        return {"async": mode != "disabled"}
    interval = theirs.take("checkpoint", "interval", default=500)
    keep = theirs.take("checkpoint", "keep_latest_k", default=10)
    if keep == 0:
        theirs.differs(("checkpoint", "keep_latest_k"), "is 0, which keeps all of them: taken as keep = 1000000.")
    return {"every": interval, "keep": keep or ALL_OF_THEM, "async": mode != "disabled"}
