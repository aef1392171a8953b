"""torchtitan's configs: `[training]`, with NousResearch's `[[training.data_stages]]`, -> our sources and stages.

Their loaders concatenate documents and attend across them, so the stages have `packing = "concat"` and
`document_mask = false`. Their schedule's rules and defaults are written out, for our defaults differ.
"""

from collections.abc import Mapping
from typing import Any, get_args

from trivium.config.dialects import theseus
from trivium.config.dialects.torchtitan_data import DataStages
from trivium.config.dialects.torchtitan_keys import (
    BEFORE_JUNE_2025,
    DION,
    DOCUMENT_MASKS,
    EXPERTS,
    FLAVORS,
    HOLDS,
    LLAMA3_SCALING,
    NOT_HERE,
    OF_THE_FORK,
    ONE_OF_ADAM,
    SINCE_SCALING,
    SWITCHES,
    TOKENIZER,
    VALIDATION,
    WITHOUT_EFFECT,
)
from trivium.config.dialects.translation import ALL_OF_THEM, MODEL_SIZES, Theirs, Translation, is_number
from trivium.config.keys import Path, listed
from trivium.config.problems import show_value
from trivium.config.stages import Recompute

ALL_TOKENS = 10**15  # of a validation that reads all there is
PRECISIONS = {"bfloat16": "bfloat16", "float32": "float32"}
FLOAT8_SCALES = {"tensorwise": "tensorwise", "rowwise": "rowwise"}
RECOMPUTE = ("activation_checkpoint", "mode")
RECOMPUTED = {name: name for name in get_args(Recompute)}


def recognises(raw: Mapping[str, Any]) -> bool:
    """Their data is in `[training]`; ours never has that table."""
    return isinstance(raw.get("training"), Mapping) and not theseus.recognises(raw)


def translate(raw: Mapping[str, Any], file: str, world_size: int | None) -> Translation:
    """Our tables, and every problem of theirs by their own key paths."""
    theirs = Theirs(raw, file)
    model, masked = _model(theirs)
    data = DataStages(theirs, _family(theirs))
    stages = data.stages()
    readers = _readers(theirs, world_size)
    ours: dict[str, Any] = {
        "run": _run(theirs),
        "model": {"init": init} if (init := _init(theirs)) else model,
        "optimizer": _optimizer(theirs),
        "schedule": _schedule(theirs, data.steps),
        "engine": _engine(theirs),
        "loader": _loader(theirs),
        "checkpoint": _checkpoint(theirs),
        "evaluate": _evaluate(theirs, data, readers),
        "track": theirs.take_trackers("log_freq"),
        "defaults": {
            "packing": "concat",
            "document_mask": masked,
            "batch_size": _batch_size(theirs, world_size, readers),
        },
        "sources": data.sources.tables,
        "stages": stages,
    }
    tokenizer = theirs.take_first(("model", "hf_assets_path"), ("model", "tokenizer_path"))
    if tokenizer or data.reads_text:
        ours["tokenizer"] = {"path": tokenizer or TOKENIZER}
    _read_switches(theirs)
    return theirs.translated(ours, HOLDS, NOT_HERE, WITHOUT_EFFECT)


def _read_switches(theirs: Theirs) -> None:
    """A table that is switched on is refused as a whole, and one that is switched off decides nothing."""
    for table, (switches, instead) in SWITCHES.items():
        written = [key for key in switches if theirs.has(table, key)]
        on = [key for key in written if theirs.take(table, key) is not False]
        for key in on:
            theirs.refuse((table, key), theirs.look(table, key), instead)
        if on:
            theirs.taken.update((table, key) for key in theirs.look(table))
        elif written:
            theirs.without_effect({"*": f"{table}.{written[0]} is false"}, table)


def _run(theirs: Theirs) -> dict[str, Any]:
    run: dict[str, Any] = {"name": theirs.file.removesuffix(".toml")}
    run["folder"] = theirs.take_text("job", "dump_folder") or "./outputs"
    seed = theirs.take_first(("debug", "seed"), ("training", "seed"))
    return run if seed is None else {**run, "seed": seed}


def _family(theirs: Theirs) -> str:
    return str(theirs.take("model", "name", default="llama3"))


def _model(theirs: Theirs) -> tuple[dict[str, Any], bool]:
    """The shape of a flavor, and whether it keeps documents apart."""
    name, flavor = _family(theirs), str(theirs.take("model", "flavor", default="debugmodel"))
    mask = str(theirs.take("model", "attn_mask_type", default="causal"))
    if mask != "causal" and not mask.startswith("block_causal"):
        theirs.refuse(("model", "attn_mask_type"), mask, 'Write "causal" or "block_causal".')
    if name not in FLAVORS:
        rule = f"trivium builds dense decoders of the names {listed(list(FLAVORS))}, and no other model."
        theirs.refuse(("model", "name"), name, rule)
        return {}, False
    plain = next((flavor.removesuffix(end) for end in DOCUMENT_MASKS if flavor.endswith(end)), flavor)
    masked = plain != flavor or mask.startswith("block_causal")
    if any(mark in flavor for mark in EXPERTS):
        theirs.refuse(("model", "flavor"), flavor, "It has experts, which trivium does not build.")
        return {}, masked
    shape = FLAVORS[name].get(plain)
    if shape is None:
        what = f'no shape is known for "{name}" "{flavor}". Give one on the command line: model.size=1b.'
        theirs.need(("model", "flavor"), what, *MODEL_SIZES)
        return {}, masked
    return {**shape, "rope": {**shape["rope"], **(_scaling(theirs) if name == "llama3" else {})}}, masked


def _scaling(theirs: Theirs) -> dict[str, Any]:
    """Llama 3's scaled positions, where a key shows that the file is newer than these; the fork has none."""
    if any(theirs.has("training", key) for key in (*OF_THE_FORK, *BEFORE_JUNE_2025)):
        return {}
    if any(theirs.has(table, key) for table, keys in SINCE_SCALING.items() for key in keys):
        return LLAMA3_SCALING
    rope = '{ theta = 500000, scaling = "llama3", factor = 8, original_seq_len = 8192 }'
    what = "rotary positions are not scaled, as in torchtitan before October 2025. For those after it, give"
    theirs.differs(("model", "flavor"), f"{what} model.rope='{rope}'.")
    return {}


def _init(theirs: Theirs) -> str | None:
    """The weights to start from, which theirs reads only where checkpoints are enabled."""
    table = "checkpoint"
    keys = ("initial_load_path", "initial_load_model_only", "initial_load_model_weights_only", "initial_load_in_hf")
    if not _saves(theirs) or not theirs.take_text(table, "initial_load_path"):
        why = "initial_load_path is not given" if _saves(theirs) else "checkpoint.enable is false"
        theirs.taken.discard((table, "initial_load_path"))
        theirs.without_effect(dict.fromkeys(keys, why), table)
        return None
    for key in keys[1:3]:
        if theirs.take(table, key, default=True) is False:
            rule = "It continues another run, step and optimizer too: trivium fork RUN CONFIG does. Or write true."
            theirs.refuse((table, key), False, rule)
    path: str = theirs.look(table, "initial_load_path")
    if not theirs.take(table, "initial_load_in_hf", default=False):
        what = "is taken as model.init: a Hugging Face folder or a run of trivium, not a folder that torchtitan saved."
        theirs.differs((table, "initial_load_path"), what)
    return path


def _optimizer(theirs: Theirs) -> dict[str, Any]:
    table = "optimizer"
    name = str(theirs.take(table, "name", default="AdamW"))
    decay = theirs.take(table, "weight_decay", default=0.1)
    if name.lower() not in ("adam", "adamw", "muon"):
        theirs.refuse((table, "name"), name, "Write AdamW or Muon.")
    elif name.lower() == "adam" and decay != 0:
        rule = f"Its weight decay ({show_value(decay)}) is a part of the gradient. Write AdamW, or weight_decay = 0."
        theirs.refuse((table, "name"), name, rule)
    muon: dict[str, Any] = {}
    if name.lower() == "muon":
        muon = _muon(theirs)
    else:
        theirs.without_effect(dict.fromkeys(DION, ONE_OF_ADAM), table)
    return {
        **({} if muon else {"name": "adamw"}),
        "lr": theirs.take(table, "lr", default=8e-4),
        "betas": [theirs.take(table, key, default=usual) for key, usual in (("beta1", 0.9), ("beta2", 0.95))],
        "eps": theirs.take(table, "eps", default=1e-8),
        "weight_decay": decay,
        "no_decay": [],
        **muon,
        "grad_clip": theirs.take("training", "max_norm", default=1.0),
    }


def _muon(theirs: Theirs) -> dict[str, Any]:
    """Muon's momentum; what else theirs has of it is refused."""
    table = "optimizer"
    theirs.need_muon((table, "name"), "AdamW")
    momentum = theirs.take(table, "mu", default=0.95)
    theirs.holds({"nesterov": True, "flatten": False, "algorithm": "muon"}, table)
    theirs.not_here(dict.fromkeys(DION, "trivium's Muon has no such choice. Remove it."), table)
    return {"momentum": {"start": momentum, "end": momentum, "steps": 0}}


def _schedule(theirs: Theirs, run_steps: int | None) -> dict[str, Any]:
    """Theirs falls from the end of the warm-up, or over the last `decay_ratio` of the schedule's steps."""
    table = "lr_scheduler"
    total = theirs.take(table, "total_steps")
    if total is not None and not theirs.is_whole((table, "total_steps"), total, at_least=1):
        total = None
    steps = run_steps if total is None else total
    at: Path = (table, "warmup_steps")
    if not theirs.has(*at) and theirs.has("training", "warmup_steps"):
        at = ("training", "warmup_steps")
    warmup = theirs.take_whole(*at, at_least=0, default=200)
    ratio = theirs.take(table, "decay_ratio")
    shapes = {"linear": "linear", "cosine": "cosine", "sqrt": "1-sqrt"}
    shape = theirs.take_choice(table, "decay_type", choices=shapes, default="linear")
    to = theirs.take_first((table, "min_lr_factor"), (table, "lr_min"), default=0.0)
    old = any(theirs.has("training", key) for key in BEFORE_JUNE_2025)
    if steps is not None and warmup > steps:
        if not old:
            found = "is" if theirs.has(*at) else "is absent, which means"
            theirs.differs(at, f"{found} {warmup:,}, over the schedule's {steps:,} steps: taken as {steps:,}.")
            warmup = steps
        steps = warmup
    schedule: dict[str, Any] = {"warmup": {"steps": warmup}, "to": to}
    if old and warmup:  # step n of it, from 1 on, has n / (warmup + 1)
        schedule["warmup_from"] = 1 / (warmup + 1)
    if steps != run_steps:
        schedule["horizon"] = {"steps": steps}
    if ratio is None and shape != "1-sqrt":
        return {**schedule, "shape": shape}
    decay = _decay_steps(theirs, ratio, warmup, warmup if steps is None else steps)
    return {**schedule, "shape": "wsd", "decay": {"steps": decay}, "decay_shape": shape}


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


def _float8(theirs: Theirs) -> str:
    """What has a scale of its own where their converters multiply in float8: a matrix, unless they name another."""
    theirs.take("model", "converters")
    tables = (("float8",), ("quantize", "linear", "float8"))
    for table in tables:
        skipped = theirs.take(*table, "filter_fqns", default=[])
        if skipped not in ([], ["output"]):
            what = "all matrices of the layers are multiplied in float8 whose sizes 16 divides."
            theirs.differs((*table, "filter_fqns"), f"is {show_value(skipped)}: {what}")
    if theirs.has("quantize", "linear", "float8"):
        theirs.take("quantize", "linear")  # how it is computed, and no more
    table = next((each for each in tables if theirs.has(*each, "recipe_name")), tables[0])
    scales: str = theirs.take_choice(*table, "recipe_name", choices=FLOAT8_SCALES, default="tensorwise")
    return scales


def _engine(theirs: Theirs) -> dict[str, Any]:
    engine: dict[str, Any] = {}
    if theirs.take_first(("compile", "enable"), ("training", "compile"), default=False):
        engine["compile"] = True
    if theirs.has("training", "mixed_precision_param"):
        path = ("training", "mixed_precision_param")
        engine["precision"] = theirs.take_choice(*path, choices=PRECISIONS, default="bfloat16")
    deterministic = theirs.take_first(("debug", "deterministic"), ("training", "deterministic"))
    if deterministic is not None:
        engine["deterministic"] = deterministic
    if theirs.look("model", "converters") == ["float8"]:
        engine["float8"] = _float8(theirs)
    if theirs.has(*RECOMPUTE):
        engine["recompute"] = theirs.take_choice(*RECOMPUTE, choices=RECOMPUTED, default="none")
    if theirs.look("training", "global_batch_size", default=-1) not in (-1, None) and (local := _local_batch(theirs)):
        engine["micro_batch_size"] = local
    shard = _degree(theirs, "data_parallel_shard", default=-1, old="data_parallel")
    context = _degree(theirs, "context_parallel")
    parallel = {
        "replicate": _degree(theirs, "data_parallel_replicate"),
        "tensor": _degree(theirs, "tensor_parallel"),
        **({"shard": shard} if shard != -1 else {}),
        **({"context": context} if context != 1 else {}),
    }
    if parallel != {"replicate": 1, "tensor": 1}:
        engine["parallel"] = parallel
    return engine


def _degree(theirs: Theirs, way: str, default: int = 1, old: str | None = None) -> Any:
    """How many ranks share something, wherever a version of theirs has the key."""
    return theirs.take_first(*_degree_paths(way), *(_degree_paths(old) if old else ()), default=default)


def _degree_paths(way: str) -> list[Path]:
    return [(table, f"{way}_degree") for table in ("parallelism", "training", "experimental")]


def _readers(theirs: Theirs, world_size: int | None) -> int:
    """Ranks that read rows of their own; those that share one model read the same: 4 ranks in pairs -> 2."""
    ranks = 1
    for way in ("tensor", "context", "pipeline"):
        degree = _degree(theirs, f"{way}_parallel")
        ranks *= degree if isinstance(degree, int) else 1
        if way == "pipeline" and degree != 1:
            what = "layers are not split over ranks here; ranks share the parameters (FSDP)."
            theirs.differs(_degree_paths("pipeline_parallel")[0], f"is {show_value(degree)}: {what}")
    if world_size is None:
        return 1
    if ranks < 1 or world_size % ranks:
        what = f"{ranks} ranks share each row (tensor, context and pipeline degrees), which does not divide"
        theirs.problem(("parallelism",), f"{what} --world-size {world_size}. Change one of them.")
        return 1
    return world_size // ranks


def _batch_size(theirs: Theirs, world_size: int | None, readers: int) -> int:
    """Rows on all ranks; theirs may be a size for each rank."""
    if theirs.take("training", "global_batch_size", default=-1) not in (-1, None):
        return theirs.take_whole("training", "global_batch_size", at_least=1, default=1)
    local = _local_batch(theirs) or 8
    if world_size is None:
        key = "batch_size" if theirs.has("training", "batch_size") else "local_batch_size"
        readers = theirs.assume_ranks(("training", key), local, "training.global_batch_size")
    return local * readers


def _local_batch(theirs: Theirs) -> int | None:
    """Their rows on one rank, where they are given."""
    for key in ("local_batch_size", "batch_size"):
        if theirs.has("training", key):
            return theirs.take_whole("training", key, at_least=1, default=8)
    return None


def _loader(theirs: Theirs) -> dict[str, Any]:
    """How batches get there; only what was written, for our defaults are for our own loader."""
    table = ("training", "dataloader")
    workers = theirs.take_whole(*table, "num_workers", at_least=0, default=0)
    loader: dict[str, Any] = {"workers": workers} if workers else {}
    if theirs.take(*table, "prefetch_factor") is not None:
        ahead = theirs.take_whole(*table, "prefetch_factor", at_least=1, default=2)
        loader["prefetch"] = ahead * max(1, workers)
    return loader


def _saves(theirs: Theirs) -> bool:
    return bool(theirs.take_first(("checkpoint", "enable"), ("checkpoint", "enable_checkpoint"), default=False))


def _checkpoint(theirs: Theirs) -> dict[str, Any]:
    table = "checkpoint"
    if not _saves(theirs):
        for key in ("enable", "enable_checkpoint"):
            if theirs.has(table, key):
                what = "is false: one is still written where a stage begins and at the end; --dry-run writes none."
                theirs.differs((table, key), what)
        theirs.without_effect(dict.fromkeys(("interval", "keep_latest_k", "async_mode"), "enable is false"), table)
        return {"async": False}
    modes = {"disabled": False, "async": True, "async_with_pinned_mem": True}
    background = theirs.take_choice(table, "async_mode", choices=modes, default="disabled")
    keep = theirs.take_whole(table, "keep_latest_k", at_least=0, default=10)
    if keep == 0:
        theirs.differs((table, "keep_latest_k"), f"is 0, which keeps all of them: taken as keep = {ALL_OF_THEM}.")
    interval = theirs.take_whole(table, "interval", at_least=1, default=500)
    return {"every": interval, "keep": keep or ALL_OF_THEM, "async": background}


def _evaluate(theirs: Theirs, data: DataStages, readers: int) -> dict[str, Any]:
    """Validation on a source of its own, where it is enabled."""
    table = "validation"
    if not theirs.take_first((table, "enable"), (table, "enabled"), default=False):
        theirs.without_effect(dict.fromkeys(VALIDATION, "validation.enable is false"), table)
        return {}
    every = theirs.take_whole(table, "val_freq" if theirs.has(table, "val_freq") else "freq", at_least=1, default=10)
    steps = theirs.take_first((table, "steps"), (table, "val_steps"), default=-1)
    if steps != -1 and not theirs.is_whole((table, "steps"), steps, at_least=1):
        steps = -1
    rows = theirs.take_whole(table, "local_batch_size", at_least=1, default=8) * readers
    seq_len = theirs.take_whole(table, "seq_len", at_least=1, default=2048)
    theirs.without_effect({"dataloader": "the loader is the run's"}, table)
    name = data.validation_source()
    tokens = ALL_TOKENS if steps == -1 else steps * rows * seq_len
    return {} if name is None else {"every": every, "sources": [name], "tokens": tokens, "seq_len": seq_len}
