"""theseus's configs: `training/tokens` and `training/dataset`, one entry a stage -> our sources and stages.

Keys are written in either way, `training/batch_size: 512` or nested; messages name them with slashes, as
that project does. Their defaults are written out where ours differ.
"""

from collections.abc import Mapping
from typing import Any

from trivium.config.dialects.theseus_data import Samplings
from trivium.config.dialects.theseus_jobs import Job, Sizes, job_of
from trivium.config.dialects.theseus_schedule import schedule_of
from trivium.config.dialects.translation import MODEL_SIZES, Theirs, Translation
from trivium.config.keys import Path
from trivium.errors import ConfigError, Problem

MARKS = ("architecture", "optimization")
ALONE = ("tokens", "per_device_batch_size", "validation_steps")
PRECISIONS = {"bfloat16": "bfloat16", "float32": "float32"}
HOLDS: dict[str, dict[str, Any]] = {
    "architecture": {
        "bias": False,
        "attention_bias": False,
        "dropout": 0,
        "attn_dropout": 0,
        "rope": True,
        "hidden_act": "silu",
        "partial_rotary_factor": 1,
        "use_parallel_residual": False,
        "use_sliding_window": False,
        "num_experts": 0,
    },
    "architecture.dtype": {"param": "float32"},
}
NO_BIAS = "is missing, and attention there has biases unless it is false. Write attention_bias: false."
NO_THETA = "is missing: a Llama's is 10000 there, but its attention takes 1000000. Write rope_theta: 1000000.0."
# Keys that a config must write: what theirs does without them is not built here, or not what its model says.
ABSENT_KEYS = {
    "llama": {"attention_bias": NO_BIAS, "rope_theta": NO_THETA},
    "qwen": {"attention_bias": NO_BIAS},
}
NO_LORA = "LoRA is not built here: all parameters are trained. Remove it to train them."
NO_MUON = "None of theseus's jobs trains with Muon. Remove it; Muon itself is optimizer.name=muon, in a config of ours."
NO_RL = "Preferences and rewards are not trained here. Remove it to train on text."
NO_EXPERTS = "Experts are not built here. Remove the table moe to train a dense model."
OTHER_LAYERS = "Layers that read this key are not built here. Remove it to train without them."
NOT_HERE: dict[str, dict[str, str]] = {
    "architecture": {
        "bias": "Layers here have no biases. Write bias: false.",
        "attention_bias": "Their biases are not translated. Write attention_bias: false.",
        "dropout": "Nothing is dropped here. Write dropout: 0.0.",
        "attn_dropout": "Nothing is dropped here. Write attn_dropout: 0.0.",
        "rope": "Positions here are rotary. Write rope: true.",
        "hidden_act": "The feed-forward layer here is a gated SiLU. Write hidden_act: silu.",
        "layer_norm_eps": "Norms here are RMSNorms. Remove it; their number is rms_norm_eps.",
        "partial_rotary_factor": "All channels of a head are rotated here. Write partial_rotary_factor: 1.0.",
        "use_parallel_residual": "Attention comes before the feed-forward layer here. Write false.",
        "use_sliding_window": "Their windows are not translated. Write use_sliding_window: false.",
        **dict.fromkeys(("num_experts", "d_conv", "d_state", "expand", "n_groups", "n_heads"), OTHER_LAYERS),
        **dict.fromkeys(("mamba_layers", "fw_inter_size", "ttt_apply_then_update", "ttt_chunk_size"), OTHER_LAYERS),
        **dict.fromkeys(
            ("ttt_momentum", "ttt_optimizer", "fork", "scratch_head_dim", "use_fork_channel"), OTHER_LAYERS
        ),
    },
    "architecture.dtype": {"param": "Weights here are float32. Write param: float32."},
    "architecture.moe": {
        **dict.fromkeys(("experts", "experts_per_embd", "implementation", "capacity_factor"), NO_EXPERTS),
        **dict.fromkeys(("capacity_round_to", "bias_smoothing", "bias_update_rate"), NO_EXPERTS),
    },
    "optimization": {"muon": NO_MUON, "eps": NO_MUON, "lora": NO_LORA}
    | dict.fromkeys(("dpo", "grpo", "ppo", "mok"), NO_RL),
    "training": {"rl": NO_RL}
    | dict.fromkeys(("pre_lora_tokens", "pre_lora_dataset", "post_lora_tokens", "post_lora_dataset"), NO_LORA),
    "": {"data": "It is about the tokenising of text. Remove it, and prepare text with trivium prepare."},
}
MEASURED = "validation loss is measured; their benchmarks are not run"
WITHOUT_EFFECT: dict[str, dict[str, str]] = {
    "architecture": {
        **dict.fromkeys(("sliding_window", "max_window_layers"), "no layer has a window"),
        "max_block_size": "only models with bubbles read it",
        "vram_calib_factor": "a micro-batch is given, not estimated",
    },
    "training": {
        "evaluate": MEASURED,
        "skip_first_dataset_validation": "validation goes on in every stage",
        **dict.fromkeys(("warmup_pct", "decay_pct"), "schedules there and here read those under optimization"),
    },
    "": {
        "eval": MEASURED,
        "request": "the launcher decides where a run runs",
        "system": "it is about the tokenising of text",
    },
    "logging": {"plots": "trivium report draws"},
}


def recognises(raw: Mapping[str, Any]) -> bool:
    """A `job` by name, keys with slashes, a table of `MARKS`, or what only their `training` has."""
    if isinstance(raw.get("job"), str):
        return True
    tables = {part for key in raw for part in [key.replace("/", ".").partition(".")[0]] if part != key}
    if tables & {"training", *MARKS}:
        return True
    training = raw.get("training")
    alone = isinstance(training, Mapping) and any(key in training for key in ALONE)
    return alone or any(isinstance(raw.get(mark), Mapping) for mark in MARKS)


def translate(raw: Mapping[str, Any], file: str, world_size: int | None) -> Translation:
    """Our tables, and every problem of theirs by their own keys. Theirs has sizes for all ranks."""
    theirs = Theirs(nested(raw, file), file, separator="/")
    job = job_of(theirs)
    seq_len = theirs.take_whole("architecture", "block_size", at_least=1, default=512)
    batch_size = theirs.take_whole("training", "batch_size", at_least=1, default=512)
    samplings = Samplings(theirs, job, step_tokens=seq_len * batch_size)
    stages = samplings.stages()
    ours: dict[str, Any] = {
        "run": {"name": file.rpartition(".")[0] or file},
        "model": _model(theirs, job, seq_len),
        "tokenizer": _tokenizer(theirs),
        "optimizer": _optimizer(theirs),
        "schedule": schedule_of(theirs, job, samplings, stages),
        "engine": _engine(theirs),
        "checkpoint": {"every": theirs.take_whole("logging", "checkpoint_interval", at_least=1, default=1024)},
        "evaluate": samplings.validation(seq_len),
        "track": {
            "every": theirs.take_whole("logging", "report_interval", at_least=1, default=32),
            "trackers": ["wandb"] if theirs.take("logging", "wandb", default=False) else [],
        },
        "defaults": {"document_mask": False, "seq_len": seq_len, "batch_size": batch_size},
        "sources": samplings.sources.tables,
        "stages": stages,
    }
    if job.model == "refused":  # its problem names its layers, so their keys are not refused once more
        theirs.taken.update(
            (*table.split("."), key) if table else (key,) for table in NOT_HERE for key in NOT_HERE[table]
        )
    return theirs.translated(ours, HOLDS, NOT_HERE, WITHOUT_EFFECT)


def nested(raw: Mapping[str, Any], file: str) -> dict[str, Any]:
    """`training/batch_size` and `training.batch_size` as they would be nested; a key that is given twice is refused."""
    root: dict[str, Any] = {}
    problems: list[Problem] = []

    def put(table: dict[str, Any], path: Path, key: str, value: Any) -> None:
        first, slash, rest = key.replace("/", ".").partition(".")
        here = (*path, first)
        if slash or isinstance(value, Mapping):
            inner = table.setdefault(first, {})
            if not isinstance(inner, dict):
                problems.append(Problem(f"{file}: {'/'.join(map(str, here))}", "is a value and a table. Keep one."))
            elif slash:
                put(inner, here, rest, value)
            else:
                for name, below in value.items():
                    put(inner, here, name, below)
        elif first in table:
            problems.append(Problem(f"{file}: {'/'.join(map(str, here))}", "is given twice. Keep one."))
        else:
            table[first] = value

    for key, value in raw.items():
        put(root, (), key, value)
    if problems:
        raise ConfigError(problems)
    return root


def _model(theirs: Theirs, job: Job, seq_len: int) -> dict[str, Any]:
    """The sizes; where there are none, or the job's layers are not ours, the command line must give a model."""
    if job.model == "refused":
        theirs.take("architecture")
        return {}
    if job.model == "backbone":
        return _weights(theirs)
    sizes = job.sizes
    model: dict[str, Any] = {
        "vocab": theirs.take("architecture", "vocab_size", default=sizes.vocab),
        "max_seq_len": seq_len,
        "tied_embeddings": sizes.tied,
    }
    if job.model == "gpt":
        _need_a_decoder(theirs, sizes)
        return model
    width, layers = (theirs.take("architecture", key) for key in ("n_embd", "n_layers"))
    kv_heads = theirs.take("architecture", "n_kv_head", default=-1)
    shape = {
        "heads": theirs.take("architecture", "n_head", default=sizes.heads),
        "ffn": theirs.take("architecture", "intermediate_size", default=sizes.ffn),
        **({} if kv_heads == -1 else {"kv_heads": kv_heads}),
    }
    model["norm_eps"] = theirs.take("architecture", "rms_norm_eps", default=1e-6)
    model["rope"] = {"theta": theirs.take("architecture", "rope_theta", default=sizes.theta)}
    for key, what in ABSENT_KEYS[job.model].items():
        if not theirs.has("architecture", key):
            theirs.problem(("architecture", key), what)
    if width is None or layers is None:
        what = "has no n_embd and n_layers. Give a size on the command line: model.size=125m."
        theirs.need(("architecture",), what, *MODEL_SIZES)
        return model
    return {**model, "layers": layers, "width": width, **shape}


def _need_a_decoder(theirs: Theirs, sizes: Sizes) -> None:
    """Their GPT is not built here: the command line must give a model of ours. The message has the GPT's sizes."""
    shape = {
        "layers": theirs.take("architecture", "n_layers", default=32),
        "width": theirs.take("architecture", "n_embd", default=2048),
        "heads": theirs.take("architecture", "n_head", default=sizes.heads),
        "ffn": theirs.take("architecture", "intermediate_size", default=sizes.ffn),
    }
    overrides = " ".join(f"model.{key}={size}" for key, size in shape.items() if size != -1)
    what = "is" if theirs.has("job") else "is absent, which is"
    what = f"{what} a GPT there: LayerNorm, an ungated GELU and biases, which are not built here."
    theirs.need(
        ("job",), f"{what} For our decoder in its sizes add {overrides}; for another, model.size=125m.", *MODEL_SIZES
    )
    note = "is a GPT there: LayerNorm, an ungated GELU and biases. The overrides give another model:"
    theirs.differs(("job",), f"{note} RMSNorm, a gated SiLU and no biases.")
    unread = dict.fromkeys(("bias", "layer_norm_eps"), "the overrides give a model without it")
    theirs.without_effect(unread, "architecture")


def _weights(theirs: Theirs) -> dict[str, Any]:
    """The weights that a job for fine-tuning starts from, in Hugging Face form."""
    families = {"llama": "llama", "qwen": "qwen"}
    theirs.take_choice("architecture", "backbone", "implementation", choices=families, default="llama")
    weights = theirs.take_text("architecture", "backbone", "weights")
    if weights is None:
        theirs.problem(("architecture", "backbone", "weights"), "is missing. Write the folder of a model.")
        return {}
    table = theirs.look("architecture", default={})
    shape = [key for key in table if key not in ("backbone", "dtype", "moe")]
    theirs.without_effect(dict.fromkeys(shape, "the weights have a shape"), "architecture")
    return {"init": weights}


def _engine(theirs: Theirs) -> dict[str, Any]:
    micro = theirs.take("training", "per_device_batch_size", default=-1)
    path = ("architecture", "dtype", "activation")
    precision = theirs.take_choice(*path, choices=PRECISIONS, default="bfloat16")
    return {"precision": precision, **({"micro_batch_size": micro} if micro != -1 else {})}


def _tokenizer(theirs: Theirs) -> dict[str, Any]:
    """Token files need none; it is carried over where it is a Hugging Face one."""
    unread = "a tokenizer is read by the package that fits its file"
    theirs.without_effect(dict.fromkeys(("use_fast", "use_remote_code"), unread), "tokenizer", "huggingface")
    kind = theirs.look("tokenizer", "backend")
    if kind in ("huggingface", "hf", "transformers") and theirs.has("tokenizer", "name"):
        theirs.take("tokenizer", "backend")
        return {"path": theirs.take("tokenizer", "name")}
    reason = "token files hold tokens already, and a tiktoken encoding is a file here (tokenizer.path)"
    theirs.without_effect({"backend": reason, "name": reason}, "tokenizer")
    return {}


def _optimizer(theirs: Theirs) -> dict[str, Any]:
    """AdamW, with their fixed clipping; theirs decays everything."""
    return {
        "lr": theirs.take("optimization", "lr", default=3e-4),
        "betas": [theirs.take("optimization", key, default=usual) for key, usual in (("beta1", 0.9), ("beta2", 0.95))],
        "weight_decay": theirs.take("optimization", "weight_decay", default=0.1),
        "no_decay": [],
        "grad_clip": 1.0,
    }
