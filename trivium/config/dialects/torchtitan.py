"""torchtitan's multi-stage configs: `[training]` and `[[training.data_stages]]` -> our sources and stages.

Their loaders concatenate documents and attend across them, so the stages say `packing = "concat"` and
`documents = "joined"`. Their schedule's rules and defaults are written out, for our defaults differ.
"""

from collections.abc import Mapping
from typing import Any

from trivium.config.dialects.data_stages import DataStages
from trivium.config.dialects.translation import Theirs, Translation
from trivium.errors import ConfigError

# What their `flavor` means for the models that people run through these configs.
FLAVORS: dict[tuple[str, str], dict[str, Any]] = {
    ("llama3", "debugmodel"): {"layers": 6, "width": 256, "heads": 16, "ffn": 768},
    ("llama3", "8B"): {"size": "8b"},
    ("llama3", "70B"): {"size": "70b"},
}
LLAMA3_THETA = 500_000


def recognises(raw: Mapping[str, Any]) -> bool:
    """Their data is in `[training]`; ours never has that table."""
    return isinstance(raw.get("training"), Mapping) and "stages" not in raw


def translate(raw: Mapping[str, Any], file: str, world_size: int | None) -> Translation:
    """Our tables; ConfigError with every problem of theirs, by their own key paths."""
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
        "track": _track(theirs),
        "defaults": {
            "packing": "concat",
            "documents": "joined",
            "batch_size": _batch_size(theirs, world_size),
        },
        "sources": data.sources,
        "stages": stages,
    }
    tokenizer = theirs.take("model", "hf_assets_path") or theirs.take("model", "tokenizer_path")
    if tokenizer:
        ours["tokenizer"] = {"path": tokenizer}
    theirs.note_the_rest()
    if theirs.problems:
        raise ConfigError(theirs.problems)
    return Translation({key: table for key, table in ours.items() if table}, tuple(theirs.notes))


def _run(theirs: Theirs) -> dict[str, Any]:
    run: dict[str, Any] = {"name": theirs.file.removesuffix(".toml")}
    run["folder"] = theirs.take("job", "dump_folder", default="outputs")
    seed = theirs.take("debug", "seed", default=theirs.take("training", "seed"))
    return run if seed is None else {**run, "seed": seed}


def _model(theirs: Theirs) -> dict[str, Any]:
    name = theirs.take("model", "name", default="llama3")
    flavor = theirs.take("model", "flavor", default="debugmodel")
    shape = FLAVORS.get((name, flavor))
    if shape is None:
        what = f'no shape is known for "{name}" "{flavor}". Give one: model.size=1b on the command line.'
        theirs.note(("model", "flavor"), what)
        return {}
    return {**shape, "rope": {"theta": LLAMA3_THETA}}


def _optimizer(theirs: Theirs) -> dict[str, Any]:
    name = theirs.take("optimizer", "name", default="AdamW")
    if str(name).lower() not in ("adamw", "muon"):
        theirs.problem(("optimizer", "name"), f'is "{name}". There is: AdamW, Muon.')
    theirs.take("optimizer", "implementation")  # how their AdamW is computed; ours is fused
    return {
        "name": str(name).lower(),
        "lr": theirs.take("optimizer", "lr", default=8e-4),
        "betas": [
            theirs.take("optimizer", "beta1", default=0.9),
            theirs.take("optimizer", "beta2", default=0.95),
        ],
        "eps": theirs.take("optimizer", "eps", default=1e-8),
        "weight_decay": theirs.take("optimizer", "weight_decay", default=0.1),
        "no_decay": [],
        "clip": theirs.take("training", "max_norm", default=1.0),
    }


def _schedule(theirs: Theirs, steps: int | None) -> dict[str, Any]:
    """Theirs falls from the end of the warm-up, or over the last `decay_ratio` of the run."""
    warmup = theirs.take("lr_scheduler", "warmup_steps", default=200)
    ratio = theirs.take("lr_scheduler", "decay_ratio")
    shape = theirs.take("lr_scheduler", "decay_type", default="linear")
    to = theirs.take("lr_scheduler", "min_lr_factor", default=theirs.take("lr_scheduler", "lr_min", default=0.0))
    if shape not in ("linear", "cosine", "sqrt"):
        theirs.problem(("lr_scheduler", "decay_type"), f'is "{shape}". There is: cosine, linear, sqrt.')
    if steps is not None and isinstance(warmup, int) and warmup > steps:
        theirs.note(
            ("lr_scheduler", "warmup_steps"),
            f"is {warmup:,}, over the run's {steps:,} steps: taken as {steps:,}.",
        )
        warmup = steps
    schedule: dict[str, Any] = {"warmup": {"steps": warmup}}
    if ratio is None and shape in ("linear", "cosine"):
        return {**schedule, "shape": shape, "to": to}
    decay = {"fraction": ratio} if ratio is not None else {"steps": max(1, (steps or 1) - warmup)}
    decay_shape = "1-sqrt" if shape == "sqrt" else shape
    return {**schedule, "shape": "wsd", "decay": decay, "decay_shape": decay_shape, "to": to}


def _engine(theirs: Theirs) -> dict[str, Any]:
    engine: dict[str, Any] = {}
    if theirs.take("compile", "enable", default=theirs.take("training", "compile", default=False)):
        engine["compile"] = True
    precision = theirs.take("training", "mixed_precision_param")
    if precision is not None:
        engine["precision"] = precision
    if theirs.has("debug", "deterministic") or theirs.has("training", "deterministic"):
        older = theirs.take("training", "deterministic")
        engine["deterministic"] = theirs.take("debug", "deterministic", default=older)
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
    whole = theirs.take("training", "global_batch_size", default=-1)
    older = theirs.take("training", "batch_size", default=8)
    local = theirs.take("training", "local_batch_size", default=older)
    if whole != -1:
        return int(whole)
    if world_size is None:
        key = "batch_size" if theirs.has("training", "batch_size") else "local_batch_size"
        what = f"{local} rows on each rank: how many ranks? Give --world-size 8, or training.global_batch_size."
        theirs.problem(("training", key), what)
        return int(local)
    tensor = int(theirs.take("parallelism", "tensor_parallel_degree", default=1))
    return int(local) * max(1, world_size // tensor)


def _checkpoint(theirs: Theirs) -> dict[str, Any]:
    older = theirs.take("checkpoint", "enable_checkpoint", default=False)
    enabled = theirs.take("checkpoint", "enable", default=older)
    interval = theirs.take("checkpoint", "interval", default=500)
    keep = theirs.take("checkpoint", "keep_latest_k", default=10)
    mode = theirs.take("checkpoint", "async_mode", default="disabled")
    if not enabled:
        return {"async": mode != "disabled"}
    if keep == 0:
        theirs.note(("checkpoint", "keep_latest_k"), "is 0, which keeps all of them: taken as keep = 1000000.")
    return {"every": interval, "keep": keep or 1_000_000, "async": mode != "disabled"}


def _track(theirs: Theirs) -> dict[str, Any]:
    sinks = [
        sink
        for sink, key in (("tensorboard", "enable_tensorboard"), ("wandb", "enable_wandb"))
        if theirs.take("metrics", key, default=False)
    ]
    return {"sinks": sinks, "every": theirs.take("metrics", "log_freq", default=10)}
