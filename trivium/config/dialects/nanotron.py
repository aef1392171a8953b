"""nanotron's configs: `data_stages` and `tokens` -> our sources and stages, the other tables beside them.

Their rows are cut from concatenated documents and attend across them, unless `_use_doc_masking` is
true. Sizes are for one replica, but `parallelism.dp` is beside them, so no world size is needed.
"""

import re
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

from trivium.config.dialects.nanotron_data import NanotronData
from trivium.config.dialects.translation import ALL_OF_THEM, MODEL_SIZES, Theirs, Translation
from trivium.config.problems import show_value

NO_END = 10**12  # steps where they are missing, so that no stage starts too late beside that problem
PRECISIONS = {"bfloat16": "bfloat16", "float32": "float32"}
FAST = "the fastest that a device has is taken"
RUNS = "a run has a name and a folder"
RESUMES = "a run resumes by itself, with all of its state"
HALVES = (
    "A head's two halves are rotated here, as in Llama, not its neighbours. Write false: that is another model, "
    "and weights that were trained with true do not fit it."
)
NO_WINDOW = "Only flex_attention has one window in all versions of theirs."
# Of their parameters, one of each kind; what is excluded from weight decay is told by their names.
EMBEDDING = "model.token_position_embeddings.pp_block.token_embedding.weight"
NORMS = (
    "model.decoder.0.pp_block.input_layernorm.weight",
    "model.decoder.0.pp_block.post_attention_layernorm.weight",
    "model.final_layer_norm.pp_block.weight",
)
MATRICES = (
    "model.decoder.0.pp_block.attn.qkv_proj.weight",
    "model.decoder.0.pp_block.attn.o_proj.weight",
    "model.decoder.0.pp_block.mlp.gate_up_proj.weight",
    "model.decoder.0.pp_block.mlp.down_proj.weight",
    "model.lm_head.pp_block.weight",
)
# Keys of rope_scaling, and ours.
SCALING = {
    "factor": "factor",
    "original_max_position_embeddings": "original_seq_len",
    "low_freq_factor": "low_freq_factor",
    "high_freq_factor": "high_freq_factor",
}
# Models that are not our decoder, by the key that says so.
OTHER_MODELS = {
    "is_mamba_config": "a Mamba",
    "is_llamoe_config": "a mixture of experts",
    "is_starcoder2_config": "a Starcoder 2",
    "moe_num_experts": "a mixture of experts",
    "moe_config": "a mixture of experts",
}
HOLDS: dict[str, dict[str, Any]] = {
    "parallelism": {"pp": 1, "expert_parallel_size": 1},
    "model.init_method": {"scaling_method": ("num_layers", "NUM_LAYERS")},
    "model.model_config": {
        "hidden_act": "silu",
        "rope_interleaved": False,
        "interleaved_rotary": False,
    },
    "optimizer": {"accumulate_grad_in_fp32": True},
    "tokens": {"val_check_interval": -1, "limit_val_batches": 0, "limit_test_batches": 0},
    "checkpoints": {"save_final_state": True, "save_initial_state": False},
}
NOT_HERE: dict[str, dict[str, str]] = {
    "model.init_method": {
        "scaling_method": "What writes into the residual stream starts smaller here, by depth. Write NUM_LAYERS."
    },
    "model.model_config": {
        "hidden_act": "The feed-forward layer here is a gated SiLU. Write hidden_act: silu.",
        **dict.fromkeys(("rope_interleaved", "interleaved_rotary"), HALVES),
    },
    "optimizer": {"accumulate_grad_in_fp32": "Gradients are summed in float32. Write accumulate_grad_in_fp32: true."},
    "tokenizer": {"tokenizer_revision": "Give the folder of that revision: tokenizer.path=FOLDER, and remove it here."},
}
WITHOUT_EFFECT: dict[str, dict[str, str]] = {
    "general": {
        **dict.fromkeys(("project", "benchmark_csv_path"), RUNS),
        **dict.fromkeys(("step", "consumed_train_samples"), RESUMES),
        "ignore_sanity_checks": "what cannot work is always refused",
    },
    "parallelism": {
        **dict.fromkeys(("pp", "pp_engine"), "layers are not split over ranks"),
        **dict.fromkeys(("tp_mode", "tp_linear_async_communication", "tp_recompute_allgather"), FAST),
        **dict.fromkeys(("expert_parallel_size", "moe_layer_recompute"), "there are no experts"),
    },
    "model": {"ddp_bucket_cap_mb": FAST},
    "model.model_config": {
        **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), "the token files record where documents end"),
        **dict.fromkeys(("pretraining_tp", "use_cache", "_attn_implementation", "_fused_rotary_emb"), FAST),
        **dict.fromkeys(("_fused_rms_norm", "_use_qkv_packed", "ring_attn_heads_k_stride"), FAST),
        "log_attn_probs": "attention is not logged",
        "initializer_range": "init_method decides how weights start",
    },
    "optimizer": {
        "zero_stage": "all ranks that are left share the parameters (engine.parallel.shard)",
        "torch_adam_is_fused": FAST,
    },
    "optimizer.optimizer_factory": {"torch_adam_is_fused": FAST},
    "tokens": dict.fromkeys(
        ("val_check_interval", "limit_val_batches", "limit_test_batches"),
        "validation reads what a source holds out (sources.web.validation=0.001 and evaluate.every=500)",
    ),
    "tokenizer": {"tokenizer_max_length": "texts are not cut before they are packed"},
    "checkpoints": {
        **dict.fromkeys(("load_lr_scheduler", "load_optimizer"), RESUMES),
        "save_initial_state": "a run begins with its seed",
        "save_final_state": "the last step is always saved",
        "checkpoints_path_is_shared_file_system": "a run's folder is shared by its ranks",
    },
    "logging": dict.fromkeys(("log_level", "log_level_replica"), "there is one log"),
    "": {
        "metrics_logging": "every step's figures are in the run's events",
        "profiler": "nothing here writes profiles",
        "lighteval": "validation loss is measured; benchmarks are not run",
        "s3_upload": "nothing is uploaded; checkpoint.copy_to copies checkpoints to a second folder",
    },
}


def recognises(raw: Mapping[str, Any]) -> bool:
    """Their list `data_stages`, or `tokens` beside `parallelism`."""
    return "data_stages" in raw or ("tokens" in raw and "parallelism" in raw)


def translate(raw: Mapping[str, Any], file: str, world_size: int | None) -> Translation:
    """Our tables, and every problem of theirs by their own key paths."""
    theirs = Theirs(raw, file)
    steps = theirs.take_needed("tokens", "train_steps", at_least=1) or NO_END
    seq_len = theirs.take_needed("tokens", "sequence_length", at_least=1) or 1
    rows = theirs.take_needed("tokens", "micro_batch_size", at_least=1) or 1
    passes = theirs.take_needed("tokens", "batch_accumulation_per_replica", at_least=1) or 1
    replicas = theirs.take_needed("parallelism", "dp", at_least=1) or 1
    data = NanotronData(theirs, steps, seq_len)
    stages = data.stages()
    tokenizer = theirs.take_text("tokenizer", "tokenizer_name_or_path")
    ours: dict[str, Any] = {
        "run": _run(theirs),
        "model": _model(theirs, data),
        "tokenizer": {"path": tokenizer} if tokenizer else {},
        "optimizer": _optimizer(theirs),
        "schedule": _schedule(theirs, steps),
        "engine": _engine(theirs, rows),
        "checkpoint": _checkpoint(theirs),
        "track": {"every": theirs.take_whole("logging", "iteration_step_info_interval", at_least=1, default=1)},
        "defaults": _defaults(theirs, rows * passes * replicas),
        "sources": data.sources.tables,
        "stages": stages,
    }
    return theirs.translated(ours, HOLDS, NOT_HERE, WITHOUT_EFFECT)


def _run(theirs: Theirs) -> dict[str, Any]:
    """Its name without what changes from launch to launch, for a run that resumes has one name."""
    path = ("general", "run")
    file = theirs.file.rpartition(".")[0] or theirs.file
    given = theirs.take_text(*path) or file
    name = re.sub(r"%(date|jobid)", "", given).strip("_- ") or file
    if name != given:
        what = f"is {show_value(given)}, called {show_value(name)} here"
        theirs.differs(path, f"{what}: a run keeps its name when it resumes.")
    folder = theirs.take("checkpoints", "checkpoints_path", default="checkpoints")
    return {"name": name, "folder": folder, "seed": theirs.take("general", "seed", default=42)}


def _model(theirs: Theirs, data: NanotronData) -> dict[str, Any]:
    """The shape of a Llama or Qwen2; other decoders and other weights need a size or `init` of ours."""
    config = ("model", "model_config")
    for key in ("is_llama_config", "is_qwen2_config"):
        theirs.take(*config, key)
    others = {key: name for key, name in OTHER_MODELS.items() if theirs.take(*config, key)}
    for key, name in others.items():
        what = f"is {show_value(theirs.look(*config, key))}: {name}, which is not built here. "
        theirs.need((*config, key), f"{what}Give a model of ours: model.size=1b.", *MODEL_SIZES)
    weights = _weights(theirs)
    if others or weights is not None:
        reason = "the model is given otherwise"
        for table in (config, ("model", "init_method")):
            given = theirs.look(*table)
            if isinstance(given, Mapping):  # what is not is refused as a whole
                theirs.without_effect(dict.fromkeys(given, reason), *table)
        theirs.without_effect({"make_vocab_size_divisible_by": reason}, "model")
        return weights or {}
    return _shape(theirs, data)


def _weights(theirs: Theirs) -> dict[str, Any] | None:
    """`model.init` for other weights; None where the run begins with its own, or resumes."""
    path: tuple[str, ...] = ("model", "init_method", "path")
    given = theirs.take_text(*path)
    if given is not None:
        return _other_weights(theirs, path, given)
    path = ("checkpoints", "resume_checkpoint_path")
    given = theirs.take_text(*path)
    if given is None:
        return None
    optimizer, step = (theirs.take(path[0], f"load_{part}", default=True) for part in ("optimizer", "lr_scheduler"))
    own = [theirs.look("checkpoints", "checkpoints_path"), theirs.look("s3_upload", "upload_s3_path")]
    if not optimizer and not step:
        return _other_weights(theirs, path, given)
    if optimizer and step and any(_is_run(given, place) for place in own):
        theirs.decides_nothing(path, f"is {show_value(given)}, where the run itself saves: {RESUMES}.")
        return None
    what = "another run, and theirs goes on at its step" if step else "other weights, with their optimizer's state"
    rule = "Continue a run of trivium with trivium fork RUN CONFIG, or begin at step 0 with" if step else "Give"
    init = "model.init=RUN model.init_optimizer=true" if optimizer else "model.init=FOLDER"
    theirs.need(path, f"is {show_value(given)}: {what}. {rule} {init}.", *MODEL_SIZES)
    return {}


def _other_weights(theirs: Theirs, path: tuple[str, ...], given: str) -> dict[str, Any]:
    """`model.init`, where there is such a folder; else the user must give one."""
    if (Path(given) / "config.json").is_file():
        return {"init": given}
    what = f"is {show_value(given)}: other weights, and not a Hugging Face folder that is there."
    theirs.need(path, f"{what} Give one: model.init=FOLDER.", *MODEL_SIZES)
    return {}


def _is_run(place: str, folder: object) -> bool:
    """Whether a place is the folder of a run's checkpoints, or one of these: `run` or `run/2000`."""
    if not isinstance(folder, str):
        return False
    there, ours = PurePath(place), PurePath(folder)
    return there == ours or (there.parent == ours and there.name.isdecimal())


def _shape(theirs: Theirs, data: NanotronData) -> dict[str, Any]:
    config = ("model", "model_config")

    def take(key: str, default: Any) -> Any:
        return theirs.take(*config, key, default=default)

    heads = take("num_attention_heads", 32)
    if theirs.take("model", "init_method", "use_mup", default=False):
        what = "is true: widths are not scaled here. Write init_method: { std: 0.02 }."
        theirs.problem(("model", "init_method", "use_mup"), what)
    layers, without_rope = take("num_hidden_layers", 32), take("no_rope_layer", None)
    if isinstance(layers, int) and isinstance(without_rope, int) and without_rope > 0 and layers % without_rope:
        rule = f"It must divide the number of layers, {layers}, in nanotron too. Write one that does."
        theirs.refuse((*config, "no_rope_layer"), without_rope, rule)
    return {
        "layers": layers,
        "width": take("hidden_size", 4096),
        "heads": heads,
        "kv_heads": take("num_key_value_heads", heads),
        "ffn": take("intermediate_size", 11_008),
        "vocab": _vocab(theirs),
        "max_seq_len": _max_seq_len(theirs, data),
        "tied_embeddings": take("tie_word_embeddings", False),
        "init_std": theirs.take("model", "init_method", "std", default=0.02),
        "norm_eps": take("rms_norm_eps", 1e-6),
        "rope": {"theta": take("rope_theta", 10_000.0), **_scaling(theirs)},
        **_biases(theirs),
        **_window(theirs),
        **({} if without_rope is None else {"no_rope_every": without_rope}),
    }


def _biases(theirs: Theirs) -> dict[str, Any]:
    """Of queries, keys and values in their Qwen 2; their Llama passes the key over."""
    config = ("model", "model_config")
    if not theirs.take(*config, "attention_bias", default=False):
        return {}
    if not theirs.has(*config, "is_qwen2_config"):
        rule = "Only their Qwen 2 has biases (is_qwen2_config). Write attention_bias: false."
        theirs.refuse((*config, "attention_bias"), True, rule)
    return {"qkv_bias": True}


def _window(theirs: Theirs) -> dict[str, Any]:
    """All of their layers slide. flex_attention sees as many tokens before one as the window has, and itself."""
    config = ("model", "model_config")
    window = theirs.take(*config, "sliding_window_size", default=None)
    if window is None:
        return {}
    how = theirs.take(*config, "_attn_implementation", default="flash_attention_2")
    if how != "flex_attention" or not isinstance(window, int):
        rule = f"{NO_WINDOW} Write sliding_window_size: null, or _attn_implementation: flex_attention."
        theirs.refuse((*config, "sliding_window_size"), window, rule)
        return {}
    theirs.differs((*config, "sliding_window_size"), f"is {window:,} tokens before one: {window + 1:,} with itself.")
    return {"window": window + 1}


def _max_seq_len(theirs: Theirs, data: NanotronData) -> Any:
    """Theirs sizes a table by it, which grows with longer rows."""
    path = ("model", "model_config", "max_position_embeddings")
    most = theirs.take(*path, default=2048)
    if isinstance(most, int) and most < data.longest:
        theirs.differs(path, f"is {most:,}, under the longest row of {data.longest:,}, as which it is taken.")
        return data.longest
    return most


def _vocab(theirs: Theirs) -> Any:
    """Theirs is rounded up, so that it can be split over the tensor ranks."""
    vocab = theirs.take("model", "model_config", "vocab_size", default=32_000)
    if vocab == -1:  # as their files of tokens have it
        vocab = theirs.look("data_stages", 0, "data", "dataset", "vocab_size", default=-1)
    multiple = theirs.take_whole("model", "make_vocab_size_divisible_by", at_least=1, default=1)
    multiple *= theirs.take_whole("parallelism", "tp", at_least=1, default=1)
    return -(-vocab // multiple) * multiple if isinstance(vocab, int) else vocab


def _scaling(theirs: Theirs) -> dict[str, Any]:
    """Positions beyond the trained context, in the three ways that are known here."""
    path = ("model", "model_config", "rope_scaling")
    given, interpolated = theirs.take(*path), theirs.take(*path[:-1], "rope_seq_len_interpolation_factor")
    if interpolated is not None:
        return {"scaling": "linear", "factor": interpolated}
    if given is None:
        return {}
    kind = given.get("rope_type", given.get("type")) if isinstance(given, Mapping) else None
    if kind not in ("linear", "yarn", "llama3") or not set(given) <= {"rope_type", "type", *SCALING}:
        known = ", ".join(SCALING)
        theirs.problem(path, f"is {show_value(given)}. Write rope_type: linear, yarn or llama3, with some of {known}.")
        return {}
    theirs.differs(path, "is applied here; no model in nanotron's own code reads it. Remove it to train without.")
    return {"scaling": kind} | {ours: given[key] for key, ours in SCALING.items() if given.get(key) is not None}


def _optimizer(theirs: Theirs) -> dict[str, Any]:
    """AdamW; its numbers are in `optimizer_factory`, in older files beside it."""
    table = ("optimizer",)
    factory = (*table, "optimizer_factory") if theirs.has(*table, "optimizer_factory") else table
    if factory != table:
        theirs.take_choice(*factory, "name", choices={"adamw": "adamw"}, default="adamw")
    clip = theirs.take(*table, "clip_grad")
    return {
        "lr": theirs.take(*table, "learning_rate_scheduler", "learning_rate", default=3e-4),
        "betas": [theirs.take(*factory, f"adam_beta{one}", default=usual) for one, usual in ((1, 0.9), (2, 0.95))],
        "eps": theirs.take(*factory, "adam_eps", default=1e-8),
        "weight_decay": theirs.take(*table, "weight_decay", default=0.0),
        "no_decay": _no_decay(theirs),
        **({"grad_clip": clip} if clip is not None else {}),
    }


def _no_decay(theirs: Theirs) -> list[str]:
    """What their patterns exclude from weight decay, where that is the embedding, the norms or both."""
    path = ("optimizer", "weight_decay_exclude_named_params")
    patterns = theirs.take(*path) or []
    try:
        excluded = [
            name for name in (EMBEDDING, *NORMS, *MATRICES) if any(re.match(pattern, name) for pattern in patterns)
        ]
    except (TypeError, re.error):
        theirs.refuse(path, patterns, "It must be a list of patterns. Write ['.*token_embedding.*'].")
        return []
    groups = {"embeddings": {EMBEDDING}, "norms": set(NORMS)}
    found = [group for group, names in groups.items() if names <= set(excluded)]
    rest = set(excluded).difference(*(groups[group] for group in found))
    if rest or (patterns and not found):
        rule = "Only the embedding and the norms can go without weight decay here. Write patterns that match these."
        theirs.refuse(path, patterns, rule)
    return found


def _schedule(theirs: Theirs, steps: int) -> dict[str, Any]:
    """Warm-up, stable until `lr_decay_starting_step`, then a fall over `lr_decay_steps` to `min_decay_lr`."""
    table = ("optimizer", "learning_rate_scheduler")
    style = theirs.take_choice(*table, "lr_warmup_style", choices={"linear": 1, "constant": 0}, default="linear")
    warmup = theirs.take_whole(*table, "lr_warmup_steps", at_least=0, default=0)
    shapes = {"linear": "linear", "cosine": "cosine", "1-sqrt": "1-sqrt"}
    shape = theirs.take_choice(*table, "lr_decay_style", choices=shapes, default="linear")
    start = theirs.take_whole(*table, "lr_decay_starting_step", at_least=0, default=warmup)
    decay = theirs.take_whole(*table, "lr_decay_steps", at_least=0, default=max(0, steps - start))
    lr = theirs.take_number(*table, "learning_rate", default=3e-4, over=0)
    lowest = theirs.take_number(*table, "min_decay_lr", default=lr)
    if lowest > lr:
        what = f"is {lowest:g}, over the learning_rate of {lr:g}. Lower it."
        theirs.problem((*table, "min_decay_lr"), what)
        lowest = lr
    if lowest < lr and start != warmup and theirs.look(*table, "lr_decay_steps") is None:
        what = (
            f"is absent, taken as {decay:,}, from lr_decay_starting_step to the last step. Newer versions of nanotron"
        )
        what = f"{what} take {steps - warmup:,}, train_steps minus lr_warmup_steps: write the number that is meant."
        theirs.differs((*table, "lr_decay_steps"), what)
    if start < warmup:
        what = f"is {start:,}, but the warm-up ends at {warmup:,}. Write lr_decay_starting_step: {warmup}."
        theirs.problem((*table, "lr_decay_starting_step"), what)
    rise = {"warmup": {"steps": warmup}, "warmup_from": 0} if style and warmup else {}
    horizon = {} if start + decay == steps else {"horizon": {"steps": start + decay}}
    if lowest == lr or not decay:
        return {"shape": "constant", **rise}
    if start == warmup and rise and shape != "1-sqrt":
        return {"shape": shape, **rise, "to": lowest / lr, **horizon}
    return {"shape": "wsd", **rise, "decay": {"steps": decay}, "decay_shape": shape, "to": lowest / lr, **horizon}


def _engine(theirs: Theirs, rows: int) -> dict[str, Any]:
    precision = theirs.take_choice("model", "dtype", choices=PRECISIONS, default="bfloat16")
    engine: dict[str, Any] = {"precision": precision, "micro_batch_size": rows}
    if theirs.take("parallelism", "recompute_layer", default=False):
        engine["recompute"] = "full"
    theirs_by_axis = {"context": "context_parallel_size", "tensor": "tp"}
    sizes = {axis: theirs.take_whole("parallelism", key, at_least=1, default=1) for axis, key in theirs_by_axis.items()}
    parallel = {axis: size for axis, size in sizes.items() if size > 1}
    return {**engine, "parallel": parallel} if parallel else engine


def _checkpoint(theirs: Theirs) -> dict[str, Any]:
    if not theirs.has("checkpoints", "checkpoint_interval"):
        return {}
    every = theirs.take_whole("checkpoints", "checkpoint_interval", at_least=1, default=1)
    return {"every": every, "keep": ALL_OF_THEM}


def _defaults(theirs: Theirs, batch_size: int) -> dict[str, Any]:
    config = ("model", "model_config")
    apart = theirs.take(*config, "_use_doc_masking", default=False)
    mask = str(theirs.take(*config, "flex_attention_mask", default=""))
    if mask not in ("", "causal", "document"):
        why = "A window is sliding_window_size. " if "sliding_window" in mask else ""
        theirs.refuse((*config, "flex_attention_mask"), mask, f"{why}Write flex_attention_mask: document, or causal.")
    weight = theirs.take_number(*config, "z_loss_coefficient", default=1e-4)
    z_loss = {"z_loss": weight} if theirs.take(*config, "z_loss_enabled", default=False) else {}
    masked = bool(apart or mask == "document")
    return {"packing": "concat", "document_mask": masked, "batch_size": batch_size, **z_loss}
