"""nanotron's configs: learning rates, models, weights to start from, faults; nothing is dropped silently."""

import math
from pathlib import Path
from typing import Any

import pytest

from tests.support.dialects import EXAMPLES, notes, plan_of, refusal, shares, spans, unsaid_of
from tests.support.nanotron import their_problems, written
from trivium.config.load import load


def their_multiplier(step: int, warmup: int, start: int, decay: int, style: str, to: float) -> float:
    """Warm-up, stable, decay, stable, as they write it; a warm-up's first step has no learning rate."""
    if step < warmup:
        return step / warmup
    if step < start:
        return 1.0
    part = min(1.0, (step - start) / decay)
    falls = {"linear": 1 - part, "1-sqrt": 1 - math.sqrt(part), "cosine": (1 + math.cos(math.pi * part)) / 2}
    return to + (1 - to) * falls[style]


@pytest.mark.parametrize("style", ["linear", "cosine", "1-sqrt"])
@pytest.mark.parametrize(("start", "decay"), [(None, None), (None, 7), (12, None), (12, 8), (12, 30)])
@pytest.mark.parametrize("warmup", [0, 4])
def test_the_learning_rate_is_theirs_at_every_step(
    file: Path, style: str, start: int | None, decay: int | None, warmup: int
) -> None:
    table = ("optimizer", "learning_rate_scheduler")
    keys = {"lr_decay_style": style, "lr_warmup_style": "linear", "lr_warmup_steps": warmup, "min_decay_lr": 1e-4}
    keys |= {"lr_decay_starting_step": start, "lr_decay_steps": decay}
    plan = plan_of(written(file, {(*table, key): value for key, value in keys.items()}))
    begin = warmup if start is None else start
    length = 20 - begin if decay is None else decay
    expected = [their_multiplier(step, warmup, begin, length, style, 0.1) for step in range(20)]
    assert [plan.lr_multiplier(step) for step in range(20)] == pytest.approx(expected)


def test_a_decay_without_a_length_ends_with_the_run_and_both_readings_are_told(file: Path) -> None:
    table = ("optimizer", "learning_rate_scheduler")
    keys = {"lr_warmup_steps": 4, "lr_decay_starting_step": 12, "lr_decay_steps": None, "min_decay_lr": 1e-4}
    what = "is absent, taken as 8, from lr_decay_starting_step to the last step. Newer versions of nanotron take 16"
    said = f"lr_decay_steps: {what}, train_steps minus lr_warmup_steps: write the number that is meant."
    written(file, {(*table, key): value for key, value in keys.items()})
    assert notes(file) == [f"{'.'.join(table)}.{said}"]


def test_without_a_lowest_rate_it_is_constant(file: Path) -> None:
    assert {plan_of(written(file)).lr_multiplier(step) for step in range(20)} == {1.0}


def test_a_vocabulary_is_rounded_up_for_the_tensor_ranks(file: Path) -> None:
    changes: dict[tuple[str | int, ...], Any] = {
        ("parallelism", "tp"): 4,
        ("model", "make_vocab_size_divisible_by"): 64,
    }
    raw = load(written(file, {**changes, ("model", "model_config", "vocab_size"): 50_257})).raw
    assert raw["model"]["vocab"] == 50_432
    assert raw["engine"]["parallel"] == {"tensor": 4}


def test_ranks_that_share_rows_in_theirs_share_them_here_and_read_the_same(file: Path) -> None:
    alone = load(written(file, {})).raw
    raw = load(written(file, {("parallelism", "context_parallel_size"): 4})).raw
    assert raw["engine"]["parallel"] == {"context": 4}
    assert raw["defaults"] == alone["defaults"]


def test_a_run_keeps_one_name(file: Path) -> None:
    written(file, {("general", "run"): "tiny_%date_%jobid"})
    said = 'general.run: is "tiny_%date_%jobid", called "tiny" here: a run keeps its name when it resumes.'
    assert notes(file) == [said]
    assert load(file).config.run.name == "tiny"
    assert load(written(file, {("general", "run"): "%date"})).config.run.name == "their"


FAULTS: list[tuple[tuple[str | int, ...], Any, str]] = [
    (("tokens", "train_steps"), None, "tokens.train_steps: is missing. It must be a whole number, at least 1."),
    (("parallelism", "dp"), 0, "parallelism.dp: is 0. It must be a whole number, at least 1."),
    (
        ("optimizer", "optimizer_factory"),
        {"name": "sgd"},
        'optimizer.optimizer_factory.name: is "sgd". Write "adamw".',
    ),
    (
        ("optimizer", "learning_rate_scheduler", "min_decay_lr"),
        1.0,
        "optimizer.learning_rate_scheduler.min_decay_lr: is 1, over the learning_rate of 0.001. Lower it.",
    ),
    (
        ("model", "model_config", "rope_scaling"),
        {"rope_type": "longrope", "factor": 4.0},
        (
            'model.model_config.rope_scaling: is { factor = 4.0, rope_type = "longrope" }. Write rope_type: linear, '
            "yarn or llama3, with some of factor, original_max_position_embeddings, low_freq_factor, high_freq_factor."
        ),
    ),
    (("model", "dtype"), "float16", 'model.dtype: is "float16". Write "bfloat16" or "float32".'),
    (
        ("model", "model_config", "rope_interleaved"),
        True,
        (
            "model.model_config.rope_interleaved: is true. "
            "A head's two halves are rotated here, as in Llama, not its neighbours. Write false: that is another "
            "model, and weights that were trained with true do not fit it."
        ),
    ),
    (
        ("model", "model_config", "sliding_window_size"),
        1024,
        (
            "model.model_config.sliding_window_size: is 1024. Only flex_attention has one window in all versions of "
            "theirs. Write sliding_window_size: null, or _attn_implementation: flex_attention."
        ),
    ),
    (
        ("model", "model_config", "attention_bias"),
        True,
        (
            "model.model_config.attention_bias: is true. Only their Qwen 2 has biases (is_qwen2_config). "
            "Write attention_bias: false."
        ),
    ),
    (
        ("model", "model_config", "flex_attention_mask"),
        "sliding_window_document",
        (
            'model.model_config.flex_attention_mask: is "sliding_window_document". A window is sliding_window_size. '
            "Write flex_attention_mask: document, or causal."
        ),
    ),
    (
        ("model", "model_config", "flex_attention_mask"),
        "documents",
        'model.model_config.flex_attention_mask: is "documents". Write flex_attention_mask: document, or causal.',
    ),
    (
        ("model", "model_config", "no_rope_layer"),
        3,
        (
            "model.model_config.no_rope_layer: is 3. It must divide the number of layers, 4, in nanotron too. "
            "Write one that does."
        ),
    ),
    (
        ("model", "model_config", "hidden_act"),
        "gelu",
        (
            'model.model_config.hidden_act: is "gelu". The feed-forward layer here is a gated SiLU. '
            "Write hidden_act: silu."
        ),
    ),
    (
        ("model", "init_method"),
        {"std": 0.02, "scaling_method": "NONE"},
        (
            'model.init_method.scaling_method: is "NONE". What writes into the residual stream starts smaller here, '
            "by depth. Write NUM_LAYERS."
        ),
    ),
    (
        ("optimizer", "weight_decay_exclude_named_params"),
        [".*qkv_proj.*", ".*token_embedding.*"],
        (
            'optimizer.weight_decay_exclude_named_params: is [".*qkv_proj.*", ".*token_embedding.*"]. Only the '
            "embedding and the norms can go without weight decay here. Write patterns that match these."
        ),
    ),
    (
        ("optimizer", "accumulate_grad_in_fp32"),
        False,
        (
            "optimizer.accumulate_grad_in_fp32: is false. Gradients are summed in float32. "
            "Write accumulate_grad_in_fp32: true."
        ),
    ),
    (
        ("model", "model_config", "odd"),
        3,
        "model.model_config.odd: is 3. trivium does not know this key. Remove it to train without what it does.",
    ),
]


@pytest.mark.parametrize(
    ("path", "value", "what"), FAULTS, ids=[f"{number} {fault[2].split(':')[0]}" for number, fault in enumerate(FAULTS)]
)
def test_a_fault_is_refused_by_their_key(file: Path, path: tuple[str | int, ...], value: Any, what: str) -> None:
    assert their_problems(written(file, {path: value})) == [what]


@pytest.mark.parametrize(
    ("path", "value", "what"),
    [
        (
            ("model", "init_method", "path"),
            "old/run",
            'is "old/run": other weights, and not a Hugging Face folder that is there. Give one: model.init=FOLDER.',
        ),
        (
            ("checkpoints", "resume_checkpoint_path"),
            "s3://old",
            (
                'is "s3://old": another run, and theirs goes on at its step. Continue a run of trivium with trivium '
                "fork RUN CONFIG, or begin at step 0 with model.init=RUN model.init_optimizer=true."
            ),
        ),
        (("model", "model_config", "is_mamba_config"), True, "is true: a Mamba, which is not built here. "),
        (
            ("model", "model_config", "is_llamoe_config"),
            True,
            "is true: a mixture of experts, which is not built here. ",
        ),
        (("model", "model_config", "moe_num_experts"), 8, "is 8: a mixture of experts, which is not built here. "),
        (
            ("model", "model_config", "moe_config"),
            {"top_k": 2},
            "is { top_k = 2 }: a mixture of experts, which is not built here. ",
        ),
        (
            ("model", "model_config", "is_starcoder2_config"),
            True,
            "is true: a Starcoder 2, which is not built here. ",
        ),
    ],
    ids=["weights", "resume", "mamba", "llamoe", "experts", "moe", "starcoder"],
)
def test_a_model_that_is_not_known_asks_for_one(file: Path, path: tuple[str, ...], value: Any, what: str) -> None:
    written(file, {path: value})
    more = "" if "model.init=" in what else "Give a model of ours: model.size=1b."
    assert refusal(file) == [f"{'.'.join(path)}: {what}{more}"]
    assert load(file, ["model.size=1b"]).config.model.size == "1b"


@pytest.mark.parametrize("key", [("model", "init_method", "path"), ("checkpoints", "resume_checkpoint_path")])
def test_other_weights_in_hugging_face_form_are_where_the_model_starts(
    file: Path, key: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights/config.json").write_text("{}")
    alone = {"load_optimizer": False, "load_lr_scheduler": False}
    written(file, {("checkpoints",): alone, key: str(tmp_path / "weights")})
    assert load(file).raw["model"] == {"init": str(tmp_path / "weights")}


@pytest.mark.parametrize(
    ("optimizer", "step", "what"),
    [
        (False, False, "other weights, and not a Hugging Face folder that is there. Give one: model.init=FOLDER."),
        (
            True,
            False,
            "other weights, with their optimizer's state. Give model.init=RUN model.init_optimizer=true.",
        ),
        (
            False,
            True,
            (
                "another run, and theirs goes on at its step. Continue a run of trivium with trivium fork RUN CONFIG, "
                "or begin at step 0 with model.init=FOLDER."
            ),
        ),
    ],
    ids=["weights", "with the optimizer", "at its step"],
)
@pytest.mark.parametrize("place", ["checkpoints", "checkpoints/smollm2-135m", "checkpoints/10"])
def test_weights_without_their_state_are_never_the_runs_own(
    file: Path, place: str, optimizer: bool, step: bool, what: str
) -> None:
    keys = {"checkpoints_path": "checkpoints", "resume_checkpoint_path": place, "checkpoint_interval": 10}
    written(file, {("checkpoints",): {**keys, "load_optimizer": optimizer, "load_lr_scheduler": step}})
    assert refusal(file) == [f'checkpoints.resume_checkpoint_path: is "{place}": {what}']


def test_another_folder_below_that_of_the_checkpoints_is_another_run(file: Path) -> None:
    keys = {"checkpoints_path": "checkpoints", "checkpoint_interval": 10}
    written(file, {("checkpoints",): {**keys, "resume_checkpoint_path": "checkpoints/other"}})
    (said,) = refusal(file)
    start = 'checkpoints.resume_checkpoint_path: is "checkpoints/other": another run, and theirs goes on at its step.'
    assert said.startswith(start)
    assert load(file, ["model.init=runs/a", "model.init_optimizer=true"]).config.model.init_optimizer


@pytest.mark.parametrize("place", ["checkpoints/run", "checkpoints/run/2000", "s3://bucket/run"])
def test_a_run_that_resumes_from_its_own_checkpoints_needs_no_weights(file: Path, place: str) -> None:
    checkpoints = {"checkpoints_path": "checkpoints/run", "checkpoint_interval": 10, "resume_checkpoint_path": place}
    written(file, {("checkpoints",): checkpoints, ("s3_upload",): {"upload_s3_path": "s3://bucket/run"}})
    said = f'checkpoints.resume_checkpoint_path: is "{place}", where the run itself saves: '
    assert f"{said}a run resumes by itself, with all of its state." in notes(file)
    assert load(file).config.model.init is None


def test_patterns_name_what_is_not_decayed(file: Path) -> None:
    key = ("optimizer", "weight_decay_exclude_named_params")
    for patterns, groups in (
        ([], ()),
        ([".*token_embedding.*"], ("embeddings",)),
        ([".*norm.*"], ("norms",)),
        ([".*(token_embedding|layernorm|layer_norm).*"], ("embeddings", "norms")),
    ):
        assert load(written(file, {key: patterns})).config.optimizer.no_decay == groups


@pytest.mark.parametrize(
    ("config", "rope"),
    [
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, {"scaling": "linear", "factor": 4.0}),
        ({"rope_seq_len_interpolation_factor": 2.0}, {"scaling": "linear", "factor": 2.0}),
        (
            {
                "rope_scaling": {
                    "rope_type": "llama3",
                    "factor": 32.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 8.0,
                    "original_max_position_embeddings": 8192,
                }
            },
            {
                "scaling": "llama3",
                "factor": 32.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 8.0,
                "original_seq_len": 8192,
            },
        ),
    ],
    ids=["linear", "interpolated", "llama3"],
)
def test_positions_are_stretched_as_theirs(file: Path, config: dict[str, Any], rope: dict[str, Any]) -> None:
    written(file, {("model", "model_config", key): value for key, value in config.items()})
    assert load(file).raw["model"]["rope"] == {"theta": 10_000.0, **rope}
    what = "is applied here; no model in nanotron's own code reads it. Remove it to train without."
    assert notes(file) == ([f"model.model_config.rope_scaling: {what}"] if "rope_scaling" in config else [])


def test_norms_and_layers_without_rotary_positions_are_theirs(file: Path) -> None:
    config = ("model", "model_config")
    model = load(written(file, {(*config, "rms_norm_eps"): 1e-5, (*config, "no_rope_layer"): 2})).config.model
    assert (model.norm_eps, model.no_rope_every) == (1e-5, 2)


def test_windows_and_biases_are_theirs(file: Path) -> None:
    keys = {"sliding_window_size": 1024, "_attn_implementation": "flex_attention", "attention_bias": True}
    config = ("model", "model_config")
    model = load(written(file, {(*config, key): each for key, each in (keys | {"is_qwen2_config": True}).items()}))
    assert (model.config.model.window, model.config.model.qkv_bias) == (1025, True)
    assert "model.model_config.sliding_window_size: is 1,024 tokens before one: 1,025 with itself." in notes(file)


def test_rows_may_be_longer_than_their_table_of_positions(file: Path) -> None:
    written(file, {("model", "model_config", "max_position_embeddings"): 128})
    assert plan_of(file).config.model.max_seq_len == 256
    assert notes(file) == [
        "model.model_config.max_position_embeddings: is 128, under the longest row of 256, as which it is taken."
    ]


def test_a_key_that_says_it_is_no_other_model_changes_nothing(file: Path) -> None:
    config = ("model", "model_config")
    plain = load(written(file)).config
    said = {"is_mamba_config": False, "is_llamoe_config": False, "moe_num_experts": 0}
    assert load(written(file, {(*config, key): value for key, value in said.items()})).config == plain


def test_a_published_run_of_three_stages_plans_as_it_is() -> None:
    file = EXAMPLES / "smollm3.yaml"
    plan = plan_of(file)
    assert spans(plan) == [
        ("stable", 0, 3_450_000),
        ("stable stage 2", 3_450_000, 4_198_000),
        ("decay", 4_198_000, 4_720_000),
    ]
    assert sum(stage.tokens or 0 for stage in plan.stages) == 11_135_877_120_000
    assert shares(plan)[2]["dclm"] == pytest.approx(0.32)
    assert [plan.lr_multiplier(step) for step in (0, 1000, 2000, 4_198_001)] == [0.0, 0.5, 1.0, 1.0]
    assert plan.lr_multiplier(4_719_999) == pytest.approx(2 / 522_000, rel=1e-6)
    spec = plan.model
    assert spec is not None
    assert (spec.layers, spec.norm_eps, spec.rope.dropped) == (36, 1e-6, tuple(range(3, 36, 4)))
    assert round(spec.parameters / 1e9, 2) == 3.08
    assert plan.config.optimizer.no_decay == ("embeddings",)
    assert load(file).notes.differs == ()


def test_problems_of_all_tables_come_at_once(file: Path) -> None:
    written(file, {("tokens", "micro_batch_size"): 0, ("data_stages", 0, "name"): None, ("model", "dtype"): "int8"})
    assert [said.split(":")[0] for said in refusal(file)] == [
        "tokens.micro_batch_size",
        "data_stages[0].name",
        "model.dtype",
    ]


def test_nothing_is_dropped_silently() -> None:
    """Every key with an odd value of its own turns up: in our tables, in a note, or in a problem."""
    assert unsaid_of("nanotron", Path(__file__).parent / "odd_nanotron.yaml") == []


def test_the_example_goes_on_with_what_is_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    plan = plan_of(EXAMPLES / "nanotron.yaml")
    assert spans(plan) == [("General", 0, 60), ("Annealing", 60, 80)]
    assert shares(plan) == [{"web": 0.8, "talk": 0.2}, {"web": 0.25, "talk": 0.75}]
