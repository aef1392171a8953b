"""nanotron's configs: stages counted from step 1, folders and their weights, and nothing dropped silently."""

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.dialects import EXAMPLES, notes, plan_of, refusal, shares, spans, unsaid_of
from trivium.config.dialects.nanotron_data import different_parts
from trivium.config.load import load

WEB = {"dataset_folder": "data/web"}
BASE: dict[str, Any] = {
    "general": {"run": "small", "seed": 42},
    "parallelism": {"dp": 2, "tp": 1, "pp": 1},
    "tokens": {"sequence_length": 256, "train_steps": 20, "micro_batch_size": 4, "batch_accumulation_per_replica": 3},
    "data_stages": [
        {"name": "first", "start_training_step": 1, "data": {"dataset": WEB, "seed": 5}},
        {"name": "second", "start_training_step": 11, "data": {"dataset": WEB, "seed": 6}},
    ],
    "model": {"model_config": {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4}},
    "optimizer": {"learning_rate_scheduler": {"learning_rate": 1e-3}},
}
DATASET = ("data_stages", 1, "data", "dataset")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "their.yaml"


def written(file: Path, changes: dict[tuple[str | int, ...], Any] | None = None) -> Path:
    """The base with other values at some paths; None takes a key out."""
    tables = copy.deepcopy(BASE)
    for path, value in (changes or {}).items():
        table: Any = tables
        for part in path[:-1]:
            table = table[part] if isinstance(part, int) else table.setdefault(part, {})
        table[path[-1]] = value
    file.write_text(yaml.safe_dump(tables))
    return file


def test_steps_are_counted_from_one(file: Path) -> None:
    plan = plan_of(written(file))
    assert spans(plan) == [("first", 0, 10), ("second", 10, 20)]
    assert [stage.seed for stage in plan.stages] == [5, 6]
    assert [stage.batch_size for stage in plan.stages] == [24, 24]
    assert notes(file) == []


def test_stages_are_sorted_and_may_have_rows_of_their_own_length(file: Path) -> None:
    stages = [{**BASE["data_stages"][1], "sequence_length": 512}, BASE["data_stages"][0]]
    plan = plan_of(written(file, {("data_stages",): stages}))
    assert spans(plan) == [("first", 0, 10), ("second", 10, 20)]
    assert [stage.seq_len for stage in plan.stages] == [256, 512]


def test_an_older_file_has_one_stage_in_data(file: Path) -> None:
    written(file, {("data_stages",): None, ("data",): {"dataset": WEB, "seed": 9}})
    plan = plan_of(file)
    assert spans(plan) == [("default", 0, 20)]
    assert plan.stages[0].seed == 9


@pytest.mark.parametrize(
    ("dataset", "stage", "sources"),
    [
        ({"dataset_folder": "data/code"}, {"sources": ["code"]}, {"code": {"kind": "tokens", "path": "data/code"}}),
        (
            {"dataset_folder": ["data/web", "data/code"]},
            {"sources": ["web", "code"]},
            {"code": {"kind": "tokens", "path": "data/code"}},
        ),
        (
            {"dataset_folder": ["data/web", "data/code"], "dataset_weights": [3, 1]},
            {"weights": {"web": 3, "code": 1}},
            {"code": {"kind": "tokens", "path": "data/code"}},
        ),
        (
            {"dataset_folder": {"data/web": 0.3, "data/code": 0.7}},
            {"weights": {"web": 0.3, "code": 0.7}},
            {"code": {"kind": "tokens", "path": "data/code"}},
        ),
        (
            {"dataset_folders": ["data/code"], "token_size_in_bytes": 2},
            {"sources": ["code"]},
            {"code": {"kind": "tokens", "dtype": "uint16", "path": "data/code"}},
        ),
        (
            {"hf_dataset_or_datasets": "stas/c4", "hf_dataset_splits": ["test"], "text_column_name": "body"},
            {"sources": ["c4"]},
            {"c4": {"kind": "huggingface", "dataset": "stas/c4", "split": "test", "column": "body"}},
        ),
        (
            {"hf_dataset_or_datasets": {"a/x": 1, "a/y": 2}, "hf_dataset_config_name": "en"},
            {"weights": {"x": 1, "y": 2}},
            {
                name: {
                    "kind": "huggingface",
                    "dataset": f"a/{name}",
                    "subset": "en",
                    "split": "train",
                    "column": "text",
                }
                for name in ("x", "y")
            },
        ),
    ],
    ids=["one", "list", "weights", "mapping", "bytes", "hub", "hub mapping"],
)
def test_each_form_of_a_dataset_becomes_sources(
    file: Path, dataset: dict[str, Any], stage: dict[str, Any], sources: dict[str, Any]
) -> None:
    raw = load(written(file, {DATASET: dataset})).raw
    assert raw["sources"] == {"web": {"kind": "tokens", "path": "data/web"}} | sources
    assert {key: raw["stages"][1][key] for key in stage} == stage
    assert notes(file) == []


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


def test_documents_are_kept_apart_where_theirs_are(file: Path) -> None:
    assert not plan_of(written(file)).stages[0].config.document_mask
    masked = written(file, {("model", "model_config", "_use_doc_masking"): True})
    assert plan_of(masked).stages[0].config.document_mask
    for mask, apart in (("document", True), ("causal", False)):
        written(file, {("model", "model_config", "flex_attention_mask"): mask})
        assert plan_of(file).stages[0].config.document_mask is apart


def test_a_vocabulary_is_rounded_up_for_the_tensor_ranks(file: Path) -> None:
    changes: dict[tuple[str | int, ...], Any] = {
        ("parallelism", "tp"): 4,
        ("model", "make_vocab_size_divisible_by"): 64,
    }
    raw = load(written(file, {**changes, ("model", "model_config", "vocab_size"): 50_257})).raw
    assert raw["model"]["vocab"] == 50_432
    assert raw["engine"]["parallel"] == {"tensor": 4}


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
        ("data_stages", 0, "start_training_step"),
        0,
        "data_stages[0].start_training_step: is 0. It must be a whole number, at least 1.",
    ),
    (
        ("data_stages", 0, "start_training_step"),
        2,
        "data_stages: begin with step 2. One must begin with the first: write start_training_step: 1.",
    ),
    (
        ("data_stages", 1, "start_training_step"),
        1,
        "data_stages[1].start_training_step: is 1, as is that of data_stages[0]: an overlap. Raise one of the two.",
    ),
    (
        ("data_stages", 1, "name"),
        "first",
        'data_stages[1].name: is "first", as is that of data_stages[0]. Give each one of its own.',
    ),
    (("data_stages", 1, "name"), None, "data_stages[1].name: is missing. Write name: general."),
    (DATASET, None, "data_stages[1].data.dataset: is missing. Write dataset: { dataset_folder: data/web }."),
    (
        DATASET,
        {},
        (
            "data_stages[1].data.dataset.dataset_folder: is missing. "
            "Write dataset_folder: data/web, a list, or a mapping to weights."
        ),
    ),
    (
        DATASET,
        {"dataset_folder": ["a", "a"]},
        (
            "data_stages[1].data.dataset.dataset_folder: names a place twice. "
            "Name it once, with the sum of their weights."
        ),
    ),
    (
        DATASET,
        {"dataset_folder": ["a", "b"], "dataset_weights": [1]},
        (
            "data_stages[1].data.dataset.dataset_weights: is [1], but there are 2 folders. "
            "Write a list with one weight for each."
        ),
    ),
    (
        DATASET,
        {"dataset_folder": {"a": 0, "b": 0}},
        (
            "data_stages[1].data.dataset.dataset_folder: is { a = 0, b = 0 }. "
            "Each must be a number, at least 0, and one of them over 0."
        ),
    ),
    (
        DATASET,
        {"hf_dataset_or_datasets": "x", "sft_dataloader": True},
        (
            "data_stages[1].data.dataset.sft_dataloader: is true: conversations are read by a source of kind chat. "
            "Write a config of ours for them."
        ),
    ),
    (
        DATASET,
        {"hf_dataset_or_datasets": "x", "hf_dataset_splits": ["a", "b"]},
        (
            'data_stages[1].data.dataset.hf_dataset_splits: is ["a", "b"], but a source has one split. '
            "Write hf_dataset_splits: train."
        ),
    ),
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
        ("parallelism", "context_parallel_size"),
        4,
        "parallelism.context_parallel_size: is 4. Rows are not split over ranks here. Write 1.",
    ),
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
            "model.model_config.sliding_window_size: is 1024. Attention here has no window. "
            "Write sliding_window_size: null."
        ),
    ),
    (
        ("model", "model_config", "flex_attention_mask"),
        "sliding_window_document",
        (
            'model.model_config.flex_attention_mask: is "sliding_window_document". Attention here has no window. '
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
        DATASET,
        {"dataset_folder": "data/web", "dataset_max_tokens": [1000]},
        (
            "data_stages[1].data.dataset.dataset_max_tokens: is [1000]. All of a folder is read here. "
            "Write a folder with less."
        ),
    ),
    (
        DATASET,
        {"dataset_folder": "data/web", "dataset_read_path": ["a", "b"]},
        ('data_stages[1].data.dataset.dataset_read_path: is ["a", "b"]. Write a list with one path for each folder.'),
    ),
    (
        DATASET,
        {"dataset_folder": ["a", "b"], "dataset_read_path": [1, None]},
        "data_stages[1].data.dataset.dataset_read_path: is [1, None]. Write a list with one path for each folder.",
    ),
    (
        DATASET,
        {"dataset_folder": ["a", "b"], "dataset_read_path": {"a": "c", "b": "d"}},
        (
            'data_stages[1].data.dataset.dataset_read_path: is { a = "c", b = "d" }. '
            "Write a list with one path for each folder."
        ),
    ),
    (
        DATASET,
        {"dataset_folder": ["a", "b"], "dataset_weights": [3, 1], "dataset_read_path": ["c", "c"]},
        (
            'data_stages[1].data.dataset.dataset_read_path: is ["c", "c"]. '
            "Two folders are read from one path. Write a path for each."
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
    said = refusal(written(file, {path: value}))
    assert [each for each in said if not each.startswith(("stages", "sources"))] == [what]  # ours follow from it


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


def test_rows_may_be_longer_than_their_table_of_positions(file: Path) -> None:
    written(file, {("model", "model_config", "max_position_embeddings"): 128})
    assert plan_of(file).config.model.max_seq_len == 256
    assert notes(file) == [
        "model.model_config.max_position_embeddings: is 128, under the longest row of 256, as which it is taken."
    ]


def test_a_stage_after_the_end_is_left_out(file: Path) -> None:
    written(file, {("data_stages", 1, "start_training_step"): 21})
    assert spans(plan_of(file)) == [("first", 0, 20)]
    assert notes(file)[0] == (
        "data_stages[1].start_training_step: is 21, and the run ends with step 20: "
        "the stage is not reached, and left out here."
    )


def test_a_key_that_says_it_is_no_other_model_changes_nothing(file: Path) -> None:
    config = ("model", "model_config")
    plain = load(written(file)).config
    said = {"is_mamba_config": False, "is_llamoe_config": False, "moe_num_experts": 0}
    assert load(written(file, {(*config, key): value for key, value in said.items()})).config == plain


def test_files_are_where_they_are_read(file: Path) -> None:
    dataset = {"dataset_folder": ["s3://a/web/tokenized", "s3://a/code/tokenized"], "dataset_weights": [3, 1]}
    read = ["/scratch/fineweb-edu", "/scratch/stack"]
    raw = load(written(file, {DATASET: {**dataset, "dataset_read_path": read}})).raw
    assert raw["sources"]["stack"] == {"kind": "tokens", "path": "/scratch/stack"}
    assert raw["stages"][1]["weights"] == {"fineweb-edu": 3, "stack": 1}


def test_sources_are_named_by_the_part_of_their_paths_that_differs() -> None:
    places = ["s3://a/fineweb-edu/tokenized/", "s3://a/dclm/tokenized", "b/dclm/tokenized", "wiki"]
    assert list(different_parts(places).values()) == ["fineweb-edu", "a", "b", "wiki"]
    assert different_parts(["data/web", "data/code"]) == {"data/web": "web", "data/code": "code"}
    assert different_parts(["same", "same"]) == {"same": "same"}


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
    assert (spec.layers, spec.norm_eps, spec.no_rope_every) == (36, 1e-6, 4)
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


def test_a_folder_that_is_a_number_is_one_problem(tmp_path: Path) -> None:
    file = tmp_path / "their.yaml"
    file.write_text(
        "tokens: {train_steps: 10, sequence_length: 16, micro_batch_size: 1, batch_accumulation_per_replica: 1}\n"
        "parallelism: {dp: 1}\n"
        "data_stages: [{name: a, start_training_step: 1, data: {dataset: {dataset_folder: [1.5, web]}}}]\n"
    )
    said = 'data_stages[0].data.dataset.dataset_folder: is [1.5, "web"]. '
    assert [one for one in refusal(file) if one.startswith(said)]
