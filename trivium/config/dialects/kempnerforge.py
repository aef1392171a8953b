"""KempnerForge's configs: `[data]` and `[train]` -> our sources and stages, the other tables beside them.

Their rows are cut from concatenated documents, so the stages have `packing = "concat"`; with
`pack_sequences` documents are kept apart. Their defaults are written out, for ours differ.
"""

import math
from collections.abc import Mapping
from typing import Any, get_args

from trivium.config.dialects.kempnerforge_data import ForgeData
from trivium.config.dialects.translation import ALL_OF_THEM, NO_CODE, Theirs, Translation, is_number
from trivium.config.stages import Recompute

MARKS = ("train", "data", "distributed", "scheduler")
IMAGES = ("vlm", "video", "vision_encoder", "time_embedding")
PRECISIONS = {"bf16": "bfloat16", "fp32": "float32"}
EVAL_KEYS = ("interval", "steps", "dataset_path", "file_pattern", "hf_dataset_name", "hf_dataset_config")
SHARED_ROWS = ("tp", "cp", "pp", "ep")
NO_EXPERTS = "the model has no experts"
NO_IMAGES = "there are no images"
LAUNCHER = "ranks are started by the launcher"
UNREAD = "no source reads it"

HOLDS: dict[str, dict[str, Any]] = {
    "model": {"norm_type": "rmsnorm", "activation": "silu", "model_type": "transformer", "num_experts": 0},
    "train": {"loss_fn": ("cross_entropy", "chunked_cross_entropy")},
}
NOT_HERE: dict[str, dict[str, str]] = {
    "model": {
        "norm_type": 'Norms are RMSNorm here. Write "rmsnorm".',
        "activation": 'The feed-forward layer is a gated SiLU here. Write "silu".',
        "model_type": 'trivium builds a dense decoder. Write "transformer".',
        "num_experts": "trivium builds no experts. Write 0 for a dense model.",
        "vlm": "Images are not read here. Remove it.",
    },
    "train": {"loss_fn": 'The loss is the cross-entropy here. Write "cross_entropy".'},
    "checkpoint": {
        "load_path": (
            "A run resumes by itself. Remove it, and give model.init=PATH for weights to start from (a Hugging Face "
            "folder or a run of trivium); trivium fork RUN CONFIG continues another run."
        ),
        "exclude_from_loading": "A run resumes with all of its state. Remove it; model.init=PATH takes weights alone.",
    },
    "": {"plugins": NO_CODE},
}
WITHOUT_EFFECT: dict[str, dict[str, str]] = {
    "model": {
        **dict.fromkeys(("moe_top_k", "moe_frequency", "moe_router", "moe_shared_experts"), NO_EXPERTS),
        **dict.fromkeys(("moe_aux_loss_weight", "moe_capacity_factor", "moe_gradient_scale"), NO_EXPERTS),
        **dict.fromkeys(("moe_sequence_aux_loss_weight", "moe_bias_schedule", "moe_packed_experts"), NO_EXPERTS),
        **dict.fromkeys(("moe_expert_ffn_multiplier", "moe_router_z_loss_weight"), NO_EXPERTS),
        "sdpa_backend": "the fastest attention that a device has is taken",
    },
    "train": {
        "ce_chunk_size": "the loss is taken in slices of its own size",
        "shutdown_timeout_sec": "a run that is told to stop saves and stops",
        "nccl_health_check_interval": LAUNCHER,
    },
    "optimizer": {
        "fused": "the fastest update that a device has is taken",
        **dict.fromkeys(("muon_momentum", "muon_ns_steps", "muon_adam_lr"), "the optimizer is not muon"),
        "schedule_free_warmup_steps": "the optimizer is not schedule-free",
    },
    "scheduler": {
        "rex_alpha": "the schedule is not rex",
        **dict.fromkeys(("stable_steps", "wsd_decay_type"), "the schedule is not wsd"),
        **dict.fromkeys(("warmup_steps", "decay_steps", "min_lr_ratio"), "the learning rate is constant"),
    },
    "distributed": {
        **dict.fromkeys(("pp_schedule", "nccl_timeout_sec", "backend"), LAUNCHER),
        "ep": NO_EXPERTS,
    },
    "checkpoint": {
        "export_dtype": "trivium export writes the weights as they are",
        **dict.fromkeys(("dyn_ckpt_window", "schedule", "log_until"), "checkpoints come every n steps; see keep_every"),
        "ignore_freeze_mismatch": "nothing is frozen",
    },
    "metrics": {
        **dict.fromkeys(("wandb_project", "wandb_run_name", "wandb_run_id"), "a run is tracked under its own name"),
        "tensorboard_dir": "figures are written into the run's folder",
    },
    "profiling": dict.fromkeys(("enable", "start_step", "end_step", "trace_dir"), "nothing is profiled by the config"),
    "data": {
        "pin_memory": "the engine copies batches to the device in its own way",
        **dict.fromkeys(("hf_dataset_image_field", "hf_dataset_prompt_field", "hf_image_size"), NO_IMAGES),
        **dict.fromkeys(("file_pattern", "hf_dataset_split", "hf_dataset_text_field", "hf_dataset_config"), UNREAD),
    },
    "eval": dict.fromkeys(("file_pattern", "hf_dataset_name", "hf_dataset_config", "hf_dataset_split"), UNREAD),
    "adapter": dict.fromkeys(("type", "hidden_dim", "activation", "pool_window", "pool_heads"), NO_IMAGES),
}


def recognises(raw: Mapping[str, Any]) -> bool:
    """Their tables `train`, `data`, `distributed` and `scheduler`, which no other tool has at the top."""
    others = ("training", "tokens", "general", "data_stages", "job")
    return any(isinstance(raw.get(mark), Mapping) for mark in MARKS) and not any(other in raw for other in others)


def translate(raw: Mapping[str, Any], file: str, world_size: int | None) -> Translation:
    """Our tables, and every problem of theirs by their own key paths."""
    theirs = Theirs(raw, file)
    for table in IMAGES:
        if theirs.has(table):
            theirs.problem((table,), "trains on images, which are not read here. Remove the table.")
            theirs.take(table)
    steps = theirs.take_whole("train", "max_steps", at_least=1, default=100_000)
    seq_len = theirs.take_whole("train", "seq_len", at_least=1, default=2048)
    local = theirs.take_whole("train", "batch_size", at_least=1, default=8)
    passes = theirs.take_whole("train", "grad_accum_steps", at_least=1, default=1)
    readers = _readers(theirs, world_size, local)
    data = ForgeData(theirs, steps)
    stages = data.stages()
    ours: dict[str, Any] = {
        "run": _run(theirs),
        "model": _model(theirs),
        "tokenizer": {"path": path} if (path := theirs.take_text("data", "tokenizer_path")) else {},
        "optimizer": _optimizer(theirs),
        "schedule": _schedule(theirs, steps),
        "engine": _engine(theirs, local),
        "loader": _loader(theirs),
        "checkpoint": _checkpoint(theirs),
        "evaluate": _evaluate(theirs, data, local * readers * seq_len),
        "track": theirs.take_trackers("log_interval"),
        "defaults": _defaults(theirs, data, seq_len, local * passes * readers),
        "sources": data.sources.tables,
        "stages": stages,
    }
    return theirs.translated(ours, HOLDS, NOT_HERE, WITHOUT_EFFECT)


def _run(theirs: Theirs) -> dict[str, Any]:
    folder = theirs.take("checkpoint", "dir", default="checkpoints")
    return {
        "name": theirs.file.removesuffix(".toml"),
        "folder": folder,
        "seed": theirs.take("train", "seed", default=42),
    }


def _readers(theirs: Theirs, world_size: int | None, local: int) -> int:
    """Ranks that read rows of their own: as the file has it, or the ranks that remain."""
    table = "distributed"
    if (layers := theirs.take_whole(table, "pp", at_least=1, default=1)) > 1:
        what = f"is {layers}: layers are not split over ranks here; ranks share the parameters (FSDP)."
        theirs.differs((table, "pp"), what)
    shard = theirs.take(table, "dp_shard", default=-1)
    replicate = theirs.take_whole(table, "dp_replicate", at_least=1, default=1)
    if shard != -1:
        return replicate * theirs.take_whole(table, "dp_shard", at_least=1, default=1)
    if world_size is None:
        return theirs.assume_ranks(("train", "batch_size"), local, "distributed.dp_shard")
    # Ranks that share one model read the same rows: 8 rows, 4 ranks in pairs -> 16.
    together = math.prod(degree for key in SHARED_ROWS if isinstance(degree := theirs.look(table, key, default=1), int))
    if together < 1 or world_size % (together * replicate):
        what = f"{together * replicate} ranks (dp_replicate, tp, cp, pp and ep), which does not divide"
        theirs.problem((table,), f"{what} --world-size {world_size}. Change one of them.")
        return 1
    return world_size // together


def _model(theirs: Theirs) -> dict[str, Any]:
    """The full shape, with the feed-forward width as they compute it."""

    def take(key: str, default: Any) -> Any:
        return theirs.take("model", key, default=default)

    width, factor, ffn = take("dim", 4096), take("ffn_dim_multiplier", 1.0), take("ffn_hidden_dim", None)
    if ffn is None and is_number(width) and is_number(factor):
        ffn = 256 * math.ceil(int(4 * width * (2 / 3) * factor) / 256)
    heads = take("n_heads", 32)
    return {
        "layers": take("n_layers", 32),
        "width": width,
        "heads": heads,
        "kv_heads": take("n_kv_heads", heads),
        "ffn": ffn,
        "vocab": take("vocab_size", 32_000),
        "max_seq_len": take("max_seq_len", 2048),
        "qk_norm": take("qk_norm", False),
        "tied_embeddings": take("tie_embeddings", False),
        "norm_eps": take("norm_eps", 1e-5),
        "init_std": take("init_std", 0.02),
        "rope": {"theta": take("rope_theta", 10_000.0)},
    }


def _optimizer(theirs: Theirs) -> dict[str, Any]:
    """AdamW or Muon; theirs leaves biases and norms undecayed."""
    table = "optimizer"
    name = theirs.take_choice(table, "name", choices={"adamw": "adamw", "muon": "muon"}, default="adamw")
    lr: Any = theirs.take(table, "lr", default=3e-4)
    muon: dict[str, Any] = {}
    if name == "muon":
        end = theirs.take(table, "muon_momentum", default=0.95)
        muon = {"momentum": {"start": end, "end": end, "steps": 0}}
        if theirs.has(table, "muon_adam_lr"):
            lr = {"matrix": lr, "rest": theirs.take(table, "muon_adam_lr")}
        theirs.need_muon((table, "name"), "adamw")
        theirs.holds({"muon_ns_steps": 5}, table)
        theirs.not_here({"muon_ns_steps": "Muon here has 5 steps of Newton-Schulz. Write 5."}, table)
    return {
        **({} if muon else {"name": "adamw"}),
        "lr": lr,
        "betas": theirs.take(table, "betas", default=[0.9, 0.95]),
        "eps": theirs.take(table, "eps", default=1e-8),
        "weight_decay": theirs.take(table, "weight_decay", default=0.1),
        "no_decay": ["norms", "biases"],
        **muon,
        "grad_clip": theirs.take("train", "grad_clip_norm", default=1.0),
    }


def _schedule(theirs: Theirs, steps: int) -> dict[str, Any]:
    """Theirs falls over `decay_steps` after warm-up (and stable part), by default over all that is left."""
    table = "scheduler"
    shapes = {name: name for name in ("cosine", "linear", "wsd", "constant", "none", "rex")}
    shape = theirs.take_choice(table, "name", choices=shapes, default="cosine")
    if shape == "none":
        return {"shape": "constant"}
    warmup = theirs.take_whole(table, "warmup_steps", at_least=0, default=2000)
    schedule: dict[str, Any] = {"shape": shape, **({"warmup": {"steps": warmup}, "warmup_from": 0} if warmup else {})}
    if shape == "constant":
        return schedule if warmup <= steps else {**schedule, "horizon": {"steps": warmup}}
    schedule["to"] = to = theirs.take(table, "min_lr_ratio", default=0.1)
    if shape == "rex":
        if theirs.take(table, "rex_alpha", default=1.0) != 1 or to != 0:
            what = 'is "rex", which falls as here only with rex_alpha = 1 and min_lr_ratio = 0. Write "linear".'
            theirs.problem((table, "name"), what)
        schedule["shape"] = "linear"
    stable = theirs.take_whole(table, "stable_steps", at_least=0, default=0) if shape == "wsd" else 0
    decay = theirs.take_whole(table, "decay_steps", at_least=0, default=0) or max(0, steps - warmup - stable)
    if shape == "wsd":
        falls = {name: name for name in ("cosine", "linear", "sqrt")}
        fall = theirs.take_choice(table, "wsd_decay_type", choices=falls, default="cosine")
        schedule |= {"decay": {"steps": decay}, "decay_shape": fall}
    horizon = warmup + stable + decay
    return schedule if horizon == steps else {**schedule, "horizon": {"steps": horizon}}


def _engine(theirs: Theirs, local: int) -> dict[str, Any]:
    table = "train"
    precision = theirs.take_choice(table, "mixed_precision", choices=PRECISIONS, default="bf16")
    if str(theirs.look(table, "mixed_precision", default="bf16")).lower() == "bf16":
        found = 'is "bf16"' if theirs.has(table, "mixed_precision") else 'is absent, which means "bf16"'
        what = "theirs keeps the weights and the optimizer's state in bfloat16, and trivium in float32."
        rule = 'To train with bfloat16 matrices and float32 weights, give engine.precision=bfloat16; or write "fp32".'
        theirs.need((table, "mixed_precision"), f"{found}: {what} {rule}", ("engine", "precision"))
    engine: dict[str, Any] = {
        **({"precision": precision} if precision == "float32" else {}),
        "compile": theirs.take(table, "compile_model", default=True),
        "micro_batch_size": local,
    }
    kinds = {name: name for name in get_args(Recompute)}
    recompute = theirs.take_choice(table, "activation_checkpointing", choices=kinds, default="none")
    if recompute != "none":
        engine["recompute"] = recompute
    shard, context = (theirs.take("distributed", key, default=absent) for key, absent in (("dp_shard", -1), ("cp", 1)))
    parallel = {
        "replicate": theirs.take("distributed", "dp_replicate", default=1),
        "tensor": theirs.take("distributed", "tp", default=1),
        **({"shard": shard} if shard != -1 else {}),
        **({"context": context} if context != 1 else {}),
    }
    return engine if parallel == {"replicate": 1, "tensor": 1} else {**engine, "parallel": parallel}


def _loader(theirs: Theirs) -> dict[str, Any]:
    """How batches get there; only what was written, for our defaults are for our own loader."""
    workers = theirs.take_whole("data", "num_workers", at_least=0, default=4)
    ahead = theirs.take_whole("data", "prefetch_factor", at_least=1, default=2)
    loader: dict[str, Any] = {"workers": max(1, workers)} if theirs.has("data", "num_workers") else {}
    if theirs.has("data", "prefetch_factor"):
        loader["prefetch"] = ahead * max(1, workers)
    return loader


def _checkpoint(theirs: Theirs) -> dict[str, Any]:
    table = "checkpoint"
    keep = theirs.take(table, "keep_last_n", default=3)
    if is_number(keep) and keep <= 0:
        theirs.differs((table, "keep_last_n"), f"is {keep}, which keeps all of them: taken as keep = {ALL_OF_THEM}.")
        keep = ALL_OF_THEM
    mode = theirs.take(table, "async_mode", default="disabled")
    return {"every": theirs.take(table, "interval", default=1000), "keep": keep, "async": mode != "disabled"}


def _evaluate(theirs: Theirs, data: ForgeData, step_tokens: int) -> dict[str, Any]:
    """Validation on a source of its own, where it is enabled."""
    table = "eval"
    if not theirs.take(table, "enabled", default=False):
        theirs.without_effect(dict.fromkeys((*EVAL_KEYS, "hf_dataset_split"), "eval.enabled is false"), table)
        return {}
    every = theirs.take_whole(table, "interval", at_least=1, default=1000)
    steps = theirs.take_whole(table, "steps", at_least=1, default=50)
    path, dataset = theirs.take_text(table, "dataset_path"), theirs.take_text(table, "hf_dataset_name")
    if path is not None:
        files = theirs.take_text(table, "file_pattern") or "*.npy"
        source = {"kind": "tokens", "path": f"{path.rstrip('/')}/{files}"}
    elif dataset is not None:
        split = theirs.take_text(table, "hf_dataset_split") or "validation"
        source = data.hub("huggingface", dataset, theirs.take_text(table, "hf_dataset_config"), split)
    else:
        theirs.problem((table,), 'is enabled, but has no source. Write dataset_path = "/data/held-out".')
        return {}
    name = data.sources.name_of({**source, "validation_only": True}, "eval")
    return {"every": every, "sources": [name], "tokens": steps * step_tokens}


def _defaults(theirs: Theirs, data: ForgeData, seq_len: int, batch_size: int) -> dict[str, Any]:
    defaults: dict[str, Any] = {"packing": "concat", "document_mask": data.packed}
    defaults |= {"seq_len": seq_len, "batch_size": batch_size}
    if theirs.has("train", "data_seed"):
        defaults["seed"] = theirs.take("train", "data_seed")
    z_loss = theirs.take_number("train", "z_loss_weight", default=0.0)
    return {**defaults, "z_loss": z_loss} if z_loss else defaults
