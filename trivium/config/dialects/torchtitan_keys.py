"""torchtitan's keys and names: the shapes of its dense models, its datasets, and what its keys mean here.

Collected over its TOML configs from 2024 to February 2026, when upstream left TOML, and of NousResearch's fork, which
has the data stages. A key that is neither translated nor listed here is refused.
"""

from typing import Any

from trivium.config.dialects.translation import NO_CODE

LLAMA3_SCALING = {"scaling": "llama3", "factor": 8.0, "original_seq_len": 8192}  # of Llama 3.1


def _llama(layers: int, width: int, heads: int, kv_heads: int, ffn: int, vocab: int = 128_256) -> dict[str, Any]:
    rope: dict[str, Any] = {"theta": 10_000.0 if vocab == 32_000 else 500_000.0}
    shape = {"layers": layers, "width": width, "heads": heads, "kv_heads": kv_heads, "ffn": ffn, "vocab": vocab}
    return {**shape, "norm_eps": 1e-5, "rope": rope}


def _qwen3(
    layers: int, width: int, heads: int, ffn: int, vocab: int = 151_936, *, tied: bool = False
) -> dict[str, Any]:
    shape = {"layers": layers, "width": width, "heads": heads, "kv_heads": 8, "head_dim": 128, "ffn": ffn}
    return {**shape, "vocab": vocab, "qk_norm": True, "tied_embeddings": tied, "rope": {"theta": 1_000_000.0}}


# Their `model.name` and `model.flavor` -> our `[model]`.
FLAVORS: dict[str, dict[str, dict[str, Any]]] = {
    "llama2": {
        "debugmodel": _llama(8, 256, 16, 16, 768, 32_000),
        "271M": _llama(16, 1024, 8, 8, 2816, 32_000),
        "1B": _llama(18, 2048, 16, 16, 5632, 32_000),
        "7B": _llama(32, 4096, 32, 32, 11_008, 32_000),
        "13B": _llama(40, 5120, 40, 40, 13_824, 32_000),
        "26B": _llama(80, 5120, 40, 40, 13_824, 32_000),
        "70B": _llama(80, 8192, 64, 8, 28_672, 32_000),
    },
    "llama3": {
        "debugmodel": _llama(6, 256, 16, 16, 768, 2048),
        "8B": _llama(32, 4096, 32, 8, 14_336),
        "70B": _llama(80, 8192, 64, 8, 28_672),
        "405B": _llama(126, 16_384, 128, 8, 53_248),
    },
    "qwen3": {
        "debugmodel": _qwen3(8, 256, 16, 3072, 2048, tied=True),
        "0.6B": _qwen3(28, 1024, 16, 3072, tied=True),
        "1.7B": _qwen3(28, 2048, 16, 6144, tied=True),
        "4B": _qwen3(36, 2560, 32, 9728, tied=True),
        "8B": _qwen3(36, 4096, 32, 12_288),
        "14B": _qwen3(40, 5120, 40, 17_408),
        "32B": _qwen3(64, 5120, 64, 25_600),
    },
}
EXPERTS = ("moe", "-A")  # in the flavors of models that have experts: debugmodel_moe, 30B-A3B
DOCUMENT_MASKS = ("_flex_attn", "_flex", "_varlen_attn", "_varlen")  # flavors that keep documents apart
# Keys of `[training]` that only NousResearch's fork has, and that only files from before June 2025 have.
OF_THE_FORK = ("data_stages", "dataset_type", "dataset_folders", "dataset_weights", "dataset_random_seed")
BEFORE_JUNE_2025 = ("warmup_steps", "batch_size")
# Keys that upstream has had only since 9 October 2025, the day after it gave Llama 3 scaled positions.
SINCE_SCALING: dict[str, tuple[str, ...]] = {
    "job": ("print_config", "save_config_file", "custom_config_module"),
    "debug": ("seed", "deterministic", "deterministic_warn_only", "moe_force_load_balance"),
    "activation_checkpoint": ("memory_budget", "preserve_rng_state", "determinism_check", "debug"),
    "checkpoint": ("enable_ft_dataloader_checkpoints",),
    "comm": ("mode",),
    "parallelism": ("context_parallel_load_balancer", "expert_parallel_comm_backend"),
    "training": ("dataloader",),
    "lr_scheduler": ("total_steps",),
}
ADDED = {"qwen3": ["eos"]}  # around each text; a tokenizer of Qwen3 has no bos, and the others have both

# The datasets that they register by name, as our sources; `dataset_path` takes the place of `dataset`.
C4 = {"dataset": "allenai/c4", "subset": "en"}
DATASETS: dict[str, dict[str, str]] = {
    "c4": {"kind": "stream", **C4, "split": "train"},
    "c4_validation": {"kind": "stream", **C4, "split": "validation"},
    "c4_test": {"kind": "huggingface", "dataset": "tests/assets/c4_test", "split": "train"},
}
TOKENIZER = "./tests/assets/tokenizer"  # where none is named

NO_EXPERTS = "the model has no experts"
OF_FLOAT8 = "model.converters decides on float8"
GATHERED = "layers are gathered in their precision"
LAYERS_WHOLE = "layers are not split over ranks"
REHEARSED = "trivium rehearse measures the memory"
NO_NUMBER = "it decides no number of the run"
SHIPPED = "trivium export writes the weights of any checkpoint"
RANKS = "how ranks talk to each other decides no number"
WATCHED = "nothing is measured or profiled by the config"
EXTRA_LOSSES = "The loss is the cross-entropy, with z_loss beside it. Remove it."
FLOAT8 = 'Remove it; model.converters = ["float8"] multiplies in float8.'
ONE_OF_ADAM = "the optimizer is AdamW"
DION = (
    *("mu", "rank_fraction", "rank_multiple_of", "rank_factor", "algorithm", "power_iters", "qr_method"),
    *("cqr_warmup_steps", "rcqr_oversample", "replicate_mesh_grad_sync", "momentum_dtype", "Q_dtype", "variance_dtype"),
    *("scalar_optimizer", "embedding_optimizer", "head_optimizer", "expert_optimizer", "routing_optimizer"),
    *("head_lr_scaling", "scalar_lr_factor", "embedding_lr_factor", "head_lr_factor", "expert_lr_factor"),
    *("routing_lr_factor", "nesterov", "adjust_lr", "flatten", "use_triton", "muon_split", "is_light", "norm_factor"),
    *("zeropower_backend", "backend_steps", "momentum", "extra_param_group_split_rules", "muon_fallback_algorithm"),
    "extra_splits_rules",
)
SHOWN = ("print_args", "print_config", "save_config_file")
PROFILING = (
    *("enable_profiling", "run_profiler", "save_traces_folder", "profile_freq", "profile_every_x_iter"),
    *("profiler_active", "profiler_warmup", "with_stack", "with_modules"),
    *("enable_memory_snapshot", "save_memory_snapshot_folder"),
)
TRACES = ("save_traces_file_prefix",)
PIPELINES = (
    *("pipeline_parallel_split_points", "pipeline_parallel_split_mode", "pipeline_parallel_layers_per_stage"),
    *("pipeline_parallel_schedule", "pipeline_parallel_schedule_csv", "pipeline_parallel_microbatches"),
    *("pipeline_parallel_microbatch_size", "pipeline_parallel_first_stage_less_layers"),
    *("pipeline_parallel_last_stage_less_layers", "pipeline_parallel_expert_parallel_overlap"),
    "module_fqns_per_model_part",
)
MESSAGES = (
    *("enable_compiled_autograd", "fsdp_reshard_after_forward", "disable_loss_parallel"),
    *("enable_async_tensor_parallel", "context_parallel_rotate_method", "context_parallel_load_balancer", "torch_spmd"),
)
AGAIN = ("visualize_memory_budget_pareto", "preserve_rng_state", "determinism_check", "debug")
QUANTIZED = ("recipe_name", "filter_fqns", "emulate", "moe_fqns_prototype", "force_recompute_fp8_weight_in_bwd")
SCALINGS = ("scaling_type_input", "scaling_type_weight", "scaling_type_grad_output")
PEFT = (
    *("layers_to_train", "lora_rank", "lora_alpha", "lora_dropout", "lora_train_norm"),
    *("train_embeddings", "train_output_layer"),
)
FAULTS = (
    *("process_group", "process_group_timeout_ms", "replica_id", "group_size", "min_replica_size", "semi_sync_method"),
    *("sync_steps", "should_quantize", "fragment_sync_delay", "fragment_update_alpha", "num_fragments"),
    "module_fqns_per_model_fragment",
)
VALIDATION = (
    *("dataset", "dataset_path", "local_batch_size", "seq_len", "freq", "val_freq", "steps", "val_steps"),
    *("dataloader", "data"),
)

# Tables of forks that a switch turns on: NousResearch's `[peft]`, and `[qat]` and `[gcs_dataset]` of others. By table:
# the keys that are such a switch, and what to write instead of true.
SWITCHES: dict[str, tuple[tuple[str, ...], str]] = {
    "peft": (("enable_peft", "use_lora", "enable", "enabled"), "All weights are trained. Write false."),
    "qat": (("enable", "enabled"), "Weights are not rounded while they are trained. Write false."),
    "gcs_dataset": (("enable", "enabled"), "Write false, and a copy's folder as dataset_path."),
}

HOLDS: dict[str, dict[str, Any]] = {
    "model": {"converters": [], "norm_type": ("rmsnorm", "fused_rmsnorm", "compiled_rmsnorm")},
    "optimizer": {"early_step_in_backward": False, "state_dtype": "float32"},
    "training": {
        **dict.fromkeys(("skip_optimizer_step", "pack_samples", "pad_samples", "mask_non_assistant"), False),
        **dict.fromkeys(("dynamic_batch", "synthetic_data", "fp8_linear"), False),
        **dict.fromkeys(("enable_float8_linear", "enable_fp8_linear"), False),
        "dtype": "float32",
        "mixed_precision_reduce": "float32",
        "add_bos_eos": True,
        "epochs": -1,
    },
    "checkpoint": {
        "load_step": -1,
        "load_only": False,
        "create_seed_checkpoint": False,
        "interval_type": "steps",
        **dict.fromkeys(("initial_load_in_hf_quantized", "initial_load_legacy", "initial_load_multipart"), False),
        **dict.fromkeys(("initial_load_dequantize", "load_seed_checkpoint_only", "model_weights_only"), False),
    },
    "float8": {"enable_float8_linear": False},
    "comm": {"mode": "default"},
    "atropos_api": {"enabled": False},
    "fault_tolerance": {"enable": False},
}

NOT_HERE: dict[str, dict[str, str]] = {
    "model": {
        "converters": 'Write ["float8"], or remove it.',
        "extra_losses": EXTRA_LOSSES,
        "norm_type": 'Norms are RMSNorm here. Write norm_type = "rmsnorm".',
    },
    "optimizer": {
        "early_step_in_backward": "The gradient is clipped as a whole before the update. Write false.",
        "state_dtype": 'The optimizer\'s state is kept in float32. Write "float32".',
        "lr_multipliers": "Remove it, and give learning rates by group: optimizer.lr={ matrix = 0.02, rest = 3e-4 }.",
        "weight_decay_multipliers": 'Remove it; optimizer.no_decay=["norms"] spares groups of parameters.',
    },
    "training": {
        "dtype": 'Weights and the optimizer\'s state are kept in float32. Write "float32".',
        "mixed_precision_reduce": 'Gradients are added up in float32. Write "float32".',
        "epochs": "The run's length is training.steps. Remove it, and give stages.default.epochs=1 instead.",
        "target_tokens": "The run's length is training.steps. Remove it, and give stages.default.tokens=2B instead.",
        "skip_optimizer_step": "Every step has an update. Write false.",
        "pack_samples": "Remove it, and give defaults.packing=bestfit for rows of whole documents.",
        "pad_samples": "Remove it, and give defaults.packing=pad for one document a row.",
        "mask_non_assistant": "Remove it, and give a source of conversations: sources.chat.kind=chat.",
        "add_bos_eos": "Write true, or give sources.c4.add=[] instead.",
        "synthetic_data": "There are no random tokens to read. Write false.",
        "subset_size": "A source is read whole. Remove it.",
        "extra_losses": EXTRA_LOSSES,
        "max_seq_len": "Remove it: seq_len is the row length.",
        "data": "Remove it, and write dataset and dataset_path.",
        **dict.fromkeys(("fp8_linear", "enable_float8_linear", "enable_fp8_linear"), FLOAT8),
        "dynamic_batch": "A step has the same rows all through a stage. Write false.",
    },
    "checkpoint": {
        "load_step": "A run resumes from its last checkpoint. Remove it; trivium fork RUN CONFIG --at STEP goes back.",
        "load_only": "Remove it; trivium train --dry-run writes no checkpoints.",
        "create_seed_checkpoint": "Initial weights follow from the seed, whatever the ranks. Write false.",
        "exclude_from_loading": "A run resumes with all of its state. Remove it; model.init=PATH takes weights alone.",
        "interval_type": "Remove it, and give checkpoint.every={ minutes = 30 } for minutes.",
        "additional_load_paths": "Weights come from one folder. Remove it.",
        "model_weights_only": "A checkpoint holds all of the run's state. Write false.",
        **dict.fromkeys(
            ("initial_load_in_hf_quantized", "initial_load_dequantize"), "Weights are read as they are. Write false."
        ),
        **dict.fromkeys(
            ("initial_load_legacy", "initial_load_multipart", "load_seed_checkpoint_only"),
            "Weights come from a Hugging Face folder, or from a run of trivium. Write false.",
        ),
    },
    "experimental": dict.fromkeys(("custom_import", "custom_args_module", "custom_model_path"), NO_CODE),
    "job": {"custom_config_module": NO_CODE},
    "float8": {"enable_float8_linear": FLOAT8},
    "comm": {"mode": 'Ranks really talk to each other here. Write "default"; trivium train --dry-run tries a config.'},
    "atropos_api": {"enabled": "Rows come from sources, not from a server. Write false."},
    "gcs_dataset": dict.fromkeys(
        ("project_id", "bucket_name", "data_prefix"), "Remove the table, and write a copy's folder as dataset_path."
    ),
    "fault_tolerance": {"enable": "All ranks take every step together. Write false; the launcher resumes the run."},
    "": {
        "grpo": "trivium does not train by rewards. Remove the table.",
        "lora": "All weights are trained. Remove the table.",
        "model_converters": FLOAT8,
    },
}

WITHOUT_EFFECT: dict[str, dict[str, str]] = {
    "job": dict.fromkeys(("config_file", "description", "use_for_integration_test", *SHOWN), NO_NUMBER),
    "profiling": dict.fromkeys(PROFILING, WATCHED),
    "memory_estimation": dict.fromkeys(("enable", "enabled", "disable_fake_mode"), REHEARSED),
    "estimate": dict.fromkeys(("memory", "mode"), REHEARSED),
    "metrics": dict.fromkeys(
        ("disable_color_printing", "enable_color_printing", "save_tb_folder", "save_for_all_ranks", "rank_0_only"),
        "figures are written into the run's folder",
    ),
    "comm": dict.fromkeys(
        ("init_timeout_seconds", "train_timeout_seconds", "trace_buf_size", "save_traces_folder", *TRACES), RANKS
    ),
    "experimental": {**dict.fromkeys(PIPELINES, LAYERS_WHOLE), **dict.fromkeys(MESSAGES, RANKS)},
    "parallelism": {
        **dict.fromkeys(PIPELINES, LAYERS_WHOLE),
        **dict.fromkeys(MESSAGES, RANKS),
        **dict.fromkeys(
            ("expert_parallel_degree", "expert_tensor_parallel_degree", "expert_parallel_comm_backend"), NO_EXPERTS
        ),
    },
    "model": {
        "print_after_conversion": WATCHED,
        "use_flex_attn": "the fastest attention that a device has is taken",
    },
    "optimizer": {
        **dict.fromkeys(("implementation", "fused"), "the fastest update that a device has is taken"),
        "cpu_offload": "it decides where the state is kept, and no number",
    },
    "training": {
        **dict.fromkeys(("gc_freq", "gc_debug", "shutdown_signal_file", "data_parallel_type"), NO_NUMBER),
        **dict.fromkeys(("enable_detailed_memory_tracking", "clear_cache_between_steps"), NO_NUMBER),
        **dict.fromkeys(("aggressive_memory_mode", "aggressive_memory_verbose", "enable_cpu_offload"), NO_NUMBER),
        **dict.fromkeys(("enable_loss_parallel", "disable_loss_parallel", "fsdp_reshard_after_forward"), RANKS),
        **dict.fromkeys(("freeze_router_bias", "freeze_expert_bias", "expert_orthogonality_coeff"), NO_EXPERTS),
        "debug_moe_force_load_balance": NO_EXPERTS,
        **dict.fromkeys(
            ("dynamic_batch_alignment", "dynamic_batch_max_levels", "dynamic_batch_buckets"), "dynamic_batch is false"
        ),
        **dict.fromkeys(
            ("enable_fsdp_float8_all_gather", "enable_fsdp_fp8_all_gather", "precompute_float8_dynamic_scale_for_fsdp"),
            GATHERED,
        ),
        "deterministic_warn_only": NO_NUMBER,
    },
    "training.dataloader": {
        "pin_memory": "the engine copies batches to the device in its own way",
        "persistent_workers": "the loader's threads live as long as the run",
    },
    "checkpoint": {
        "folder": "checkpoints are in the run's folder",
        "enable_first_step_checkpoint": "trivium rehearse tries out a save",
        **dict.fromkeys(("last_save_model_only", "last_save_model_weights_only", "last_save_in_hf"), SHIPPED),
        **dict.fromkeys(("last_save_in_safetensors_format", "export_dtype", "unshard_weights"), SHIPPED),
        **dict.fromkeys(
            ("enable_save_safetensors_format", "enable_hf_safetensors_format", "safetensors_json"), SHIPPED
        ),
        **dict.fromkeys(("enable_ft_dataloader_checkpoints", "enable_ft", "enable_fail_fast"), RANKS),
    },
    "activation_checkpoint": dict.fromkeys(
        ("selective_ac_option", "per_op_sac_force_recompute_mm_shapes_by_fqns", "early_stop", "memory_budget", *AGAIN),
        "activations that are computed again decide no number",
    ),
    "compile": dict.fromkeys(
        ("components", "backend", "fullgraph", "max_autotune", "prune_configs_by_shared_mem", "triton_cudagraphs"),
        "how the model is compiled is torch's choice",
    ),
    "quantize": dict.fromkeys(("linear", "grouped_mm", "dense", "moe"), "it belongs to model.converters"),
    "float8": {
        **dict.fromkeys(("enable_fsdp_float8_all_gather", "precompute_float8_dynamic_scale_for_fsdp"), GATHERED),
        **dict.fromkeys((*QUANTIZED, *SCALINGS), OF_FLOAT8),
    },
    "mx": dict.fromkeys(("use_fp8_dim1_cast_triton_kernel", "mxfp8_dim1_cast_kernel_choice", *QUANTIZED), OF_FLOAT8),
    "peft": dict.fromkeys(PEFT, "peft.enable_peft is absent, which means false"),
    "atropos_api": dict.fromkeys(
        ("api_url", "poll_interval", "timeout", "distill_kl_coef"), "atropos_api.enabled is false"
    ),
    "fault_tolerance": dict.fromkeys(FAULTS, "fault_tolerance.enable is false"),
    "deepep": {"*": NO_EXPERTS},
    "llep": {"*": NO_EXPERTS},
    "mx_moe": {"*": NO_EXPERTS},
    "lm_eval": {"*": "lm-evaluation-harness scores what trivium export writes"},
    "offloading": {"*": "it decides where activations are kept, and no number"},
    "liger_kernel": {"*": "the loss is taken in slices"},
    "debug": {
        **dict.fromkeys(("deterministic_warn_only", "enable_nan_tracker", "nan_tracker_verbose"), NO_NUMBER),
        "moe_force_load_balance": NO_EXPERTS,
    },
}
