"""nanotron's configs: `data_stages` and `tokens` -> our sources and stages, the other tables beside them.

Their rows are cut from concatenated documents and attend across them, unless `_use_doc_masking` is
true. Sizes are for one replica, but `parallelism.dp` is beside them, so no world size is needed.
"""

import re
from collections.abc import Mapping
from typing import Any

from trivium.config.dialects.nanotron_data import NanotronData
from trivium.config.dialects.translation import ALL_OF_THEM, MODEL_SIZES, Theirs, Translation
from trivium.config.problems import show_value

NO_END = 10**12  # steps where they are missing, so that no stage starts too late beside that problem
PRECISIONS = {"bfloat16": "bfloat16", "float32": "float32", "float16": "bfloat16"}
DECODER = "the model here has RMSNorm and a gated SiLU, without biases"
AS_IN_LLAMA = "rotary positions are as in Llama"
FAST = "the fastest that a device has is taken"
RUNS = "a run has a name and a folder"
RESUMES = "a run resumes by itself, with all of its state"
PIPELINE = "layers, rows and experts are not split over ranks"
NOT_HERE = "nothing here does this"
HOLDS: dict[str, dict[str, Any]] = {
    "parallelism": {"pp": 1, "expert_parallel_size": 1, "context_parallel_size": 1},
    "model.model_config": {
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "attention_bias": False,
        "rope_interleaved": False,
    },
    "optimizer": {"accumulate_grad_in_fp32": True, "weight_decay_exclude_named_params": []},
    "tokens": {"val_check_interval": -1, "limit_val_batches": 0, "limit_test_batches": 0},
    "checkpoints": {"save_final_state": True, "save_initial_state": False},
}
WITHOUT_EFFECT: dict[str, dict[str, str]] = {
    "general": {
        **dict.fromkeys(("project", "benchmark_csv_path"), RUNS),
        **dict.fromkeys(("step", "consumed_train_samples"), RESUMES),
        "ignore_sanity_checks": "what cannot work is always refused",
    },
    "parallelism": {
        **dict.fromkeys(("pp", "pp_engine", "expert_parallel_size", "context_parallel_size"), PIPELINE),
        **dict.fromkeys(("tp_mode", "tp_linear_async_communication", "tp_recompute_allgather"), FAST),
        "moe_layer_recompute": "there are no experts",
    },
    "model": {"ddp_bucket_cap_mb": FAST},
    "model.init_method": {"scaling_method": "what writes into the residual stream starts smaller, by depth"},
    "model.model_config": {
        **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), "the token files record where documents end"),
        **dict.fromkeys(("hidden_act", "attention_bias"), DECODER),
        "rms_norm_eps": "norms have 1e-6 under their root",
        **dict.fromkeys(("rope_interleaved", "no_rope_layer", "sliding_window_size"), AS_IN_LLAMA),
        **dict.fromkeys(("pretraining_tp", "use_cache", "_attn_implementation", "_fused_rotary_emb"), FAST),
        **dict.fromkeys(("_fused_rms_norm", "_use_qkv_packed"), FAST),
        "initializer_range": "init_method decides how weights start",
    },
    "optimizer": {
        "accumulate_grad_in_fp32": "gradients are summed in float32",
        "zero_stage": "all ranks that are left share the parameters (engine.parallel.shard)",
        "weight_decay_exclude_named_params": "optimizer.no_decay lists what is not decayed",
        "torch_adam_is_fused": FAST,
    },
    "optimizer.optimizer_factory": {"torch_adam_is_fused": FAST},
    "tokens": dict.fromkeys(
        ("val_check_interval", "limit_val_batches", "limit_test_batches"),
        "validation reads what a source holds out (sources.web.validation=0.001 and evaluate.every=500)",
    ),
    "tokenizer": dict.fromkeys(("tokenizer_revision", "tokenizer_max_length"), "the tokenizer is taken as it is"),
    "checkpoints": {
        **dict.fromkeys(("resume_checkpoint_path", "load_lr_scheduler", "load_optimizer"), RESUMES),
        "save_initial_state": "a run begins with its seed",
        "save_final_state": "the last step is always saved",
        "checkpoints_path_is_shared_file_system": "a run's folder is shared by its ranks",
    },
    "logging": dict.fromkeys(("log_level", "log_level_replica"), "there is one log"),
    "": {
        "metrics_logging": NOT_HERE,
        "profiler": "nothing here writes profiles",
        "lighteval": "validation loss is measured; benchmarks are not run",
        "s3_upload": NOT_HERE,
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
        "model": _model(theirs),
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
    return theirs.translated(ours, HOLDS, {}, WITHOUT_EFFECT)


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


def _model(theirs: Theirs) -> dict[str, Any]:
    """The shape of a Llama or Qwen2; other decoders, experts and other weights need a size or `init` of ours."""
    config = ("model", "model_config")
    for key in ("is_llama_config", "is_qwen2_config"):
        theirs.take(*config, key)
    init = theirs.take_text("model", "init_method", "path")
    if init is not None:
        what = f"is {show_value(init)}, in a form that is not read here."
        what = f"{what} Give it in Hugging Face form: model.init=FOLDER."
        theirs.need(("model", "init_method", "path"), what, *MODEL_SIZES)
        theirs.without_effect(dict.fromkeys(theirs.look(*config, default={}), "the weights have a shape"), *config)
        return {}
    for key in ("is_starcoder2_config", "moe_config"):
        if theirs.look(*config, key):
            what = f"is {show_value(theirs.take(*config, key))}, which is not our decoder. Give one: model.size=1b."
            theirs.need((*config, key), what, *MODEL_SIZES)
            return {}
    return _shape(theirs)


def _shape(theirs: Theirs) -> dict[str, Any]:
    config = ("model", "model_config")

    def take(key: str, default: Any) -> Any:
        return theirs.take(*config, key, default=default)

    heads = take("num_attention_heads", 32)
    if theirs.take("model", "init_method", "use_mup", default=False):
        what = "is true: widths are not scaled here. Write init_method: { std: 0.02 }."
        theirs.problem(("model", "init_method", "use_mup"), what)
    return {
        "layers": take("num_hidden_layers", 32),
        "width": take("hidden_size", 4096),
        "heads": heads,
        "kv_heads": take("num_key_value_heads", heads),
        "ffn": take("intermediate_size", 11_008),
        "vocab": _vocab(theirs),
        "max_seq_len": take("max_position_embeddings", 2048),
        "tied_embeddings": take("tie_word_embeddings", False),
        "init_std": theirs.take("model", "init_method", "std", default=0.02),
        "rope": {"theta": take("rope_theta", 10_000.0), **_scaling(theirs)},
    }


def _vocab(theirs: Theirs) -> Any:
    """Theirs is rounded up, so that it can be split over the tensor ranks."""
    vocab = theirs.take("model", "model_config", "vocab_size", default=32_000)
    multiple = theirs.take_whole("model", "make_vocab_size_divisible_by", at_least=1, default=1)
    multiple *= theirs.take_whole("parallelism", "tp", at_least=1, default=1)
    return -(-vocab // multiple) * multiple if isinstance(vocab, int) else vocab


def _scaling(theirs: Theirs) -> dict[str, Any]:
    """Positions beyond the trained context, in the two ways that are known here."""
    path = ("model", "model_config", "rope_scaling")
    given = theirs.take(*path)
    if given is None:
        return {}
    kind = given.get("rope_type", given.get("type")) if isinstance(given, Mapping) else None
    if kind not in ("linear", "yarn"):
        theirs.problem(path, f'is {show_value(given)}. Write {{ type: linear, factor: 4.0 }}, or "yarn".')
        return {}
    original = given.get("original_max_position_embeddings")
    rope = {"scaling": kind, "factor": given.get("factor")}
    return {**rope, **({"original_seq_len": original} if original else {})}


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
        "no_decay": [],
        **({"grad_clip": clip} if clip is not None else {}),
    }


def _schedule(theirs: Theirs, steps: int) -> dict[str, Any]:
    """Warm-up, stable until `lr_decay_starting_step`, then a fall over `lr_decay_steps` to `min_decay_lr`."""
    table = ("optimizer", "learning_rate_scheduler")
    style = theirs.take_choice(*table, "lr_warmup_style", choices={"linear": 1, "constant": 0}, default="linear")
    warmup = theirs.take_whole(*table, "lr_warmup_steps", at_least=0, default=0)
    shapes = {"linear": "linear", "cosine": "cosine", "1-sqrt": "1-sqrt"}
    shape = theirs.take_choice(*table, "lr_decay_style", choices=shapes, default="linear")
    decay = theirs.take_whole(*table, "lr_decay_steps", at_least=0, default=max(0, steps - warmup))
    start = theirs.take_whole(*table, "lr_decay_starting_step", at_least=0, default=warmup)
    lr = theirs.take_number(*table, "learning_rate", default=3e-4, over=0)
    lowest = theirs.take_number(*table, "min_decay_lr", default=lr)
    if lowest > lr:
        what = f"is {lowest:g}, over the learning_rate of {lr:g}. Lower it."
        theirs.problem((*table, "min_decay_lr"), what)
    if start < warmup:
        what = f"is {start:,}, but the warm-up ends at {warmup:,}. Write lr_decay_starting_step: {warmup}."
        theirs.problem((*table, "lr_decay_starting_step"), what)
    rise = {"warmup": {"steps": warmup}} if style and warmup else {}
    horizon = {} if start + decay == steps else {"horizon": {"steps": start + decay}}
    if lowest == lr or not decay:
        return {"shape": "constant", **rise}
    if start == warmup and rise and shape != "1-sqrt":
        return {"shape": shape, **rise, "to": lowest / lr, **horizon}
    return {"shape": "wsd", **rise, "decay": {"steps": decay}, "decay_shape": shape, "to": lowest / lr, **horizon}


def _engine(theirs: Theirs, rows: int) -> dict[str, Any]:
    precision = theirs.take_choice("model", "dtype", choices=PRECISIONS, default="bfloat16")
    if theirs.look("model", "dtype") == "float16":
        theirs.differs(("model", "dtype"), 'is "float16": taken as bfloat16.')
    engine: dict[str, Any] = {"precision": precision, "micro_batch_size": rows}
    if theirs.take("parallelism", "recompute_layer", default=False):
        engine["activation_checkpointing"] = True
    tensor = theirs.take_whole("parallelism", "tp", at_least=1, default=1)
    return engine if tensor == 1 else {**engine, "parallel": {"tensor": tensor}}


def _checkpoint(theirs: Theirs) -> dict[str, Any]:
    if not theirs.has("checkpoints", "checkpoint_interval"):
        return {}
    every = theirs.take_whole("checkpoints", "checkpoint_interval", at_least=1, default=1)
    return {"every": every, "keep": ALL_OF_THEM}


def _defaults(theirs: Theirs, batch_size: int) -> dict[str, Any]:
    config = ("model", "model_config")
    apart = theirs.take(*config, "_use_doc_masking", default=False)
    mask = str(theirs.take(*config, "flex_attention_mask", default=""))
    weight = theirs.take_number(*config, "z_loss_coefficient", default=1e-4)
    z_loss = {"z_loss": weight} if theirs.take(*config, "z_loss_enabled", default=False) else {}
    masked = bool(apart or "document" in mask)
    return {"packing": "concat", "document_mask": masked, "batch_size": batch_size, **z_loss}
