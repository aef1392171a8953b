"""theseus's configs: `training/tokens` and `training/dataset`, one entry a stage -> our sources and stages.

Keys are written in either way, `training/batch_size: 512` or nested; messages name them with slashes, as
that project does. Their defaults are written out where ours differ.
"""

import itertools
from collections.abc import Mapping
from typing import Any

from trivium.config.dialects.theseus_data import Samplings
from trivium.config.dialects.translation import MODEL_SIZES, Theirs, Translation, is_number
from trivium.config.keys import Path
from trivium.errors import ConfigError, Problem

MARKS = ("architecture", "optimization")
ALONE = ("tokens", "per_device_batch_size", "validation_steps")
DECODER = "the model here has RMSNorm, a gated SiLU and rotary positions, without biases or dropout"
HOLDS = {
    "bias": False,
    "attention_bias": False,
    "dropout": 0,
    "attn_dropout": 0,
    "rope": True,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
}
WITHOUT_EFFECT: dict[str, dict[str, str]] = {
    "architecture": {
        **dict.fromkeys(("bias", "attention_bias", "dropout", "attn_dropout", "rope", "layer_norm_eps"), DECODER),
        **dict.fromkeys(("hidden_act", "partial_rotary_factor"), DECODER),
        "rms_norm_eps": "norms have 1e-6 under their root",
        "vram_calib_factor": "a micro-batch is given, not estimated",
    },
    "training": {"evaluate": "validation loss is measured; their benchmarks are not run"},
    "eval": {"evaluations": "validation loss is measured; their benchmarks are not run"},
    "optimization": {"warmup_lr_mult": "a warm-up rises from zero"},
    "": {
        "job": "the other keys give the objective and the model",
        "request": "the launcher decides where a run runs",
    },
}


def recognises(raw: Mapping[str, Any]) -> bool:
    """Keys with slashes, or a table `architecture` or `optimization`, or what only their `training` has."""
    tables = {part for key in raw for part in [key.replace("/", ".").partition(".")[0]] if part != key}
    if tables & {"training", *MARKS}:
        return True
    training = raw.get("training")
    alone = isinstance(training, Mapping) and any(key in training for key in ALONE)
    return alone or any(isinstance(raw.get(mark), Mapping) for mark in MARKS)


def translate(raw: Mapping[str, Any], file: str, world_size: int | None) -> Translation:
    """Our tables, and every problem of theirs by their own keys. Theirs has sizes for all ranks."""
    theirs = Theirs(nested(raw, file), file, separator="/")
    seq_len = theirs.take_whole("architecture", "block_size", at_least=1, default=512)
    batch_size = theirs.take_whole("training", "batch_size", at_least=1, default=512)
    samplings = Samplings(theirs, step_tokens=seq_len * batch_size)
    stages = samplings.stages()
    micro = theirs.take("training", "per_device_batch_size", default=-1)
    ours: dict[str, Any] = {
        "run": {"name": file.rpartition(".")[0] or file},
        "model": _model(theirs, seq_len),
        "tokenizer": _tokenizer(theirs),
        "optimizer": _optimizer(theirs),
        "schedule": _schedule(theirs, samplings, stages),
        "engine": {"micro_batch_size": micro} if micro != -1 else {},
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
    return theirs.translated(ours, {"architecture": HOLDS}, {}, WITHOUT_EFFECT)


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


def _model(theirs: Theirs, seq_len: int) -> dict[str, Any]:
    """The sizes; where there are none, the command line must give one."""
    width, layers = (theirs.take("architecture", key) for key in ("n_embd", "n_layers"))
    experts = theirs.take("architecture", "num_experts", default=0)
    if width is None or layers is None or experts:
        known = f"has {experts} experts, which are not known here" if experts else "has no n_embd and n_layers"
        what = f"{known}. Give a size on the command line: model.size=125m."
        theirs.need(("architecture",), what, *MODEL_SIZES)
        return {}
    heads = theirs.take("architecture", "n_head", default=16)
    kv_heads = theirs.take("architecture", "n_kv_head", default=-1)
    ffn = theirs.take("architecture", "intermediate_size", default=-1)
    model = {"layers": layers, "width": width, "heads": heads}
    model["ffn"] = 4 * width if ffn == -1 and isinstance(width, int) else ffn
    model["vocab"] = theirs.take("architecture", "vocab_size", default=100_288)
    model["max_seq_len"] = seq_len
    if kv_heads != -1:
        model["kv_heads"] = kv_heads
    if theirs.has("architecture", "rope_theta"):
        model["rope"] = {"theta": theirs.take("architecture", "rope_theta")}
    if theirs.take("architecture", "tie_word_embeddings", default=False):
        model["tied_embeddings"] = True
    return model


def _tokenizer(theirs: Theirs) -> dict[str, Any]:
    """Token files need none; it is carried over where it is a Hugging Face one."""
    kind = theirs.look("tokenizer", "backend")
    if kind in ("huggingface", "hf", "transformers") and theirs.has("tokenizer", "name"):
        theirs.take("tokenizer", "backend")
        return {"path": theirs.take("tokenizer", "name")}
    reason = "token files hold tokens already, and a tiktoken encoding is a file here (tokenizer.path)"
    theirs.without_effect({"backend": reason, "name": reason}, "tokenizer")
    theirs.without_effect({"use_fast": reason, "use_remote_code": reason}, "tokenizer", "huggingface")
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


def _schedule(theirs: Theirs, samplings: Samplings, stages: list[dict[str, Any]]) -> dict[str, Any]:
    """Warm-up, stable, decay; with `constant_pct` stable again, with `rewarm_lr` a cosine in every stage."""
    warmup = _part(theirs, "warmup_pct", 0.01)
    if theirs.has("optimization", "rewarm_lr"):
        _rewarm(theirs, stages, warmup)
        return {}
    decay, constant = _part(theirs, "decay_pct", 0.1), _part(theirs, "constant_pct", 0.0)
    steps = samplings.their_steps
    lowest = 0.1 if theirs.has("optimization", "constant_pct") else 0.01
    schedule: dict[str, Any] = {
        "shape": "wsd",
        "warmup": {"steps": int(steps * warmup)},
        "decay": {"steps": int(steps * decay)},
        "to": theirs.take("optimization", "decay_lr_mult", default=lowest),
    }
    if warmup + decay + constant > 1:
        what = f"and decay_pct and constant_pct are {warmup + decay + constant:g} of the run. Lower one of them."
        theirs.problem(("optimization", "warmup_pct"), what)
    horizon = steps - int(steps * constant)
    return schedule if horizon == samplings.our_steps else {**schedule, "horizon": {"steps": horizon}}


def _part(theirs: Theirs, key: str, default: float) -> float:
    """A part of the run, which they write under optimization or under training."""
    table = next((name for name in ("optimization", "training") if theirs.has(name, key)), "optimization")
    value = theirs.take(table, key, default=default)
    if is_number(value) and 0 <= value <= 1:
        return float(value)
    theirs.refuse((table, key), value, "It must be a number between 0 and 1.")
    return default


def _rewarm(theirs: Theirs, stages: list[dict[str, Any]], warmup: float) -> None:
    """Every stage warms up again and falls along a cosine, the later ones from `rewarm_lr`."""
    lr = theirs.take_number("optimization", "lr", default=3e-4, over=0)
    again = theirs.take_number("optimization", "rewarm_lr", default=1e-4, over=0)
    to = theirs.take("optimization", "min_lr_mult", default=0.01)
    for stage, scale in zip(stages, itertools.chain([1.0], itertools.repeat(again / lr)), strict=False):
        stage["lr"] = {"scale": scale, "shape": "cosine", "to": to, "warmup": {"fraction": warmup}}
