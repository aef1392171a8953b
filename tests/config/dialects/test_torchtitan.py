"""torchtitan's configs: the model, the optimizer, the schedule and the rest, by their own keys."""

from pathlib import Path
from typing import Any

import pytest
import tomli_w

from tests.support.dialects import spans
from tests.support.torchtitan import notes, plan_of, read, refusal, stage, tables
from trivium.config.dialects.torchtitan_keys import HOLDS, NOT_HERE, SWITCHES, WITHOUT_EFFECT
from trivium.config.dialects.translation import Notes
from trivium.config.load import load
from trivium.plan.export import plan_json
from trivium.plan.make import make_plan

CONFIGS = Path(__file__).parents[3] / "docs" / "data_stages" / "configs"


def test_a_key_that_is_not_known_is_refused(file: Path) -> None:
    left = ("foo = 1", stage("a", 0, "bar = 2"), "[zoo]\nx = 1\n[zoo.y]\nz = [1, 2]\n[[many]]\na = 1")
    unknown = "trivium does not know this key. Remove it to train without what it does."
    assert refusal(file, *left) == [
        f"training.foo: is 1. {unknown}",
        f"training.data_stages[0].bar: is 2. {unknown}",
        f"zoo.x: is 1. {unknown}",
        f"zoo.y.z: is [1, 2]. {unknown}",
        f"many[0].a: is 1. {unknown}",
    ]


def test_every_key_that_cannot_be_honoured_is_refused_with_what_to_write(file: Path) -> None:
    odd: dict[str, dict[str, Any]] = {table: dict.fromkeys(keys, "odd") for table, keys in NOT_HERE.items()}
    odd["training"] |= {"steps": 20, "global_batch_size": 8}
    said = refusal(file, training=tables(odd))
    for table, reasons in NOT_HERE.items():
        for key, instead in reasons.items():
            assert f'{table}.{key}: is "odd". {instead}'.removeprefix(".") in said


def test_the_values_that_hold_here_anyway_are_taken(file: Path) -> None:
    first = {
        table: {key: value[0] if isinstance(value, tuple) else value for key, value in keys.items()}
        for table, keys in HOLDS.items()
    }
    first["training"] |= {"steps": 20, "global_batch_size": 8, "dataset": "c4"}
    assert read(file, training=tables(first) + "[lr_scheduler]\nwarmup_steps = 2\n").notes == Notes()


def test_every_key_that_decides_nothing_is_named_with_its_reason(file: Path) -> None:
    odd: dict[str, dict[str, Any]] = {
        table: dict.fromkeys(("odd_key" if key == "*" else key for key in reasons), "odd")
        for table, reasons in WITHOUT_EFFECT.items()
    }
    odd["training"] |= {"steps": 20, "global_batch_size": 8, "dataset": "c4"}
    loaded = read(file, training=tables(odd) + "[lr_scheduler]\nwarmup_steps = 2\n")
    said = [str(note) for note in loaded.notes.decides_nothing]
    for table, reasons in WITHOUT_EFFECT.items():
        for key, reason in reasons.items():
            named = f"{table}.{'odd_key' if key == '*' else key}"
            assert f'their.toml: {named}: has no effect here (it is "odd"): {reason}.' in said
    assert loaded.notes.differs == ()


def test_a_batch_per_rank_takes_one_rank_where_none_are_given_and_says_so(file: Path) -> None:
    training = "[lr_scheduler]\nwarmup_steps = 2\n[training]\nsteps = 20\nlocal_batch_size = 4\n"
    what = "is 4 rows on each rank: taken as 1 rank. For more, give --world-size 8, or training.global_batch_size."
    assert notes(file, stage("a", 0), training=training) == [f"training.local_batch_size: {what}"]
    assert notes(file, stage("a", 0), training=training.replace("size = 4", "size = 1")) == [
        f"training.local_batch_size: {what.replace('4 rows', '1 row')}"
    ]
    assert plan_of(file, stage("a", 0), training=training).stages[0].batch_size == 4
    assert plan_of(file, stage("a", 0), training=training, world_size=8).stages[0].batch_size == 32
    assert notes(file, stage("a", 0), training=training, world_size=8) == []
    pairs = "[parallelism]\ntensor_parallel_degree = 2\n"
    assert plan_of(file, stage("a", 0), pairs, training=training, world_size=8).stages[0].batch_size == 16
    thirds = "[parallelism]\ntensor_parallel_degree = 3\n"
    assert refusal(file, stage("a", 0), thirds, training=training, world_size=8) == [
        (
            "parallelism: 3 ranks share each row (tensor, context and pipeline degrees), which does not divide "
            "--world-size 8. Change one of them."
        )
    ]


FLOAT8 = '[model]\nconverters = ["float8"]\n'


@pytest.mark.parametrize(
    ("written", "scales"),
    [
        (FLOAT8, "tensorwise"),
        (FLOAT8 + '[float8]\nrecipe_name = "rowwise"\nfilter_fqns = ["output"]\n', "rowwise"),
        (FLOAT8 + '[quantize.linear.float8]\nrecipe_name = "rowwise"\n', "rowwise"),
    ],
)
def test_float8_is_taken_over_with_its_scales(file: Path, written: str, scales: str) -> None:
    assert plan_of(file, stage("a", 0), written).config.engine.float8 == scales
    assert notes(file, stage("a", 0), written) == []


def test_float8_that_is_not_ours_is_refused_or_said(file: Path) -> None:
    other = FLOAT8 + '[float8]\nrecipe_name = "rowwise_with_gw_hp"\n'
    assert refusal(file, stage("a", 0), other) == [
        'float8.recipe_name: is "rowwise_with_gw_hp". Write "tensorwise" or "rowwise".'
    ]
    assert refusal(file, stage("a", 0), FLOAT8.replace("float8", "mx")) == [
        'model.converters: is ["mx"]. Write ["float8"], or remove it.'
    ]
    some = FLOAT8 + '[float8]\nfilter_fqns = ["attention"]\n'
    what = "all matrices of the layers are multiplied in float8 whose sizes 16 divides."
    assert notes(file, stage("a", 0), some) == [f'float8.filter_fqns: is ["attention"]: {what}']


def test_layers_that_theirs_splits_over_ranks_are_not_split_here(file: Path) -> None:
    pipeline = "[parallelism]\npipeline_parallel_degree = 2\n"
    what = "are not split over ranks here; ranks share the parameters (FSDP)."
    said = f"parallelism.pipeline_parallel_degree: is 2: layers {what}"
    assert notes(file, stage("a", 0), pipeline, world_size=8) == [said]


def test_ranks_that_share_rows_in_theirs_share_them_here_and_read_the_same(file: Path) -> None:
    context = "[parallelism]\ncontext_parallel_degree = 2\ntensor_parallel_degree = 2\n"
    config = read(file, stage("a", 0), context, world_size=8).config
    assert (config.engine.parallel.context, config.engine.parallel.tensor) == (2, 2)
    assert config.defaults.batch_size == read(file, stage("a", 0), world_size=2).config.defaults.batch_size
    said = "parallelism: 3 ranks share each row (tensor, context and pipeline degrees), which does not divide"
    three = "[parallelism]\ncontext_parallel_degree = 3\n"
    assert refusal(file, stage("a", 0), three, world_size=8) == [f"{said} --world-size 8. Change one of them."]


@pytest.mark.parametrize(
    "line",
    [
        "[experimental]\nrope_theta = 123",
        "[parallelism]\ntensor_paralel_degree = 4",
        "[compile]\nenabel = true",
        "[metrics]\nenable_wanbd = true",
        "[debug]\nfreeze_embeddings = true",
        "[peft]\nlora_rnk = 8",
        "[qat]\nbits = 8",
        "[activation_checkpoint]\nmodee = true",
        "[profiling]\nodd = true",
        "[fault_tolerance]\nenabled = true",
    ],
)
def test_a_key_that_is_not_known_is_refused_in_tables_that_mostly_decide_nothing(file: Path, line: str) -> None:
    (said,) = refusal(file, stage("a", 0), line + "\n")
    assert said.endswith("trivium does not know this key. Remove it to train without what it does.")


PEFT = """
layers_to_train = [0, 1]
lora_rank = 16
lora_alpha = 2.0
lora_dropout = 0.1
lora_train_norm = true
train_embeddings = true
train_output_layer = true
"""
GCS = 'project_id = "p"\nbucket_name = "b"\ndata_prefix = "d"\n'


@pytest.mark.parametrize(
    ("table", "switch", "keys"),
    [
        ("peft", "enable_peft", PEFT),
        ("peft", "use_lora", PEFT),
        ("peft", "enabled", "lora_rank = 16\n"),
        ("qat", "enable", 'config = "NVFP4"\ncalib_steps = 8\n'),
        ("gcs_dataset", "enable", GCS),
    ],
)
def test_a_table_with_a_switch_decides_nothing_where_it_is_off_and_is_refused_where_it_is_on(
    file: Path, table: str, switch: str, keys: str
) -> None:
    off = read(file, stage("a", 0), f"[{table}]\n{switch} = false\n{keys}")
    assert off.raw == read(file, stage("a", 0)).raw
    assert off.notes.differs == ()
    said = [str(note) for note in off.notes.decides_nothing]
    assert len(said) == len(keys.strip().splitlines())
    assert all(
        note.startswith(f"their.toml: {table}.") and note.endswith(f": {table}.{switch} is false.") for note in said
    )
    on = refusal(file, stage("a", 0), f"[{table}]\n{switch} = true\n{keys}")
    assert on == [f"{table}.{switch}: is true. {SWITCHES[table][1]}"]


def test_a_table_without_its_switch_is_off_in_the_fork_of_the_stages_and_unknown_elsewhere(file: Path) -> None:
    said = notes(file, stage("a", 0), f"[peft]\n{PEFT}")
    assert len(said) == 7
    assert said[1] == "peft.lora_rank: has no effect here (it is 16): peft.enable_peft is absent, which means false."
    assert refusal(file, stage("a", 0), f"[gcs_dataset]\n{GCS}") == [
        f'gcs_dataset.{key}: is "{key[0]}". Remove the table, and write a copy\'s folder as dataset_path.'
        for key in ("project_id", "bucket_name", "data_prefix")
    ]


def test_extra_losses_hold_only_where_there_are_none(file: Path) -> None:
    none = "steps = 20\nglobal_batch_size = 8\nextra_losses = []\n"
    assert read(file, stage("a", 0), training=f"[training]\n{none}").config
    said = 'training.extra_losses: is ["mtp"]. The loss is the cross-entropy, with z_loss beside it. Remove it.'
    some = none.replace("[]", '["mtp"]')
    assert refusal(file, stage("a", 0), training=f"[training]\n{some}") == [said]


@pytest.mark.parametrize(
    ("lines", "what"),
    [
        ("steps = 20\nlocal_batch_size = 'x'", 'local_batch_size: is "x". It must be a whole number, at least 1.'),
        ("steps = 20\nglobal_batch_size = 0", "global_batch_size: is 0. It must be a whole number, at least 1."),
        (
            'steps = 20\nglobal_batch_size = 8\nmixed_precision_param = "float16"',
            'mixed_precision_param: is "float16". Write "bfloat16" or "float32".',
        ),
    ],
)
def test_a_batch_size_or_precision_that_is_none_is_refused_by_their_key(file: Path, lines: str, what: str) -> None:
    assert refusal(file, stage("a", 0), training=f"[training]\n{lines}\n", world_size=2) == [f"training.{what}"]


@pytest.mark.parametrize("mode", ["none", "full", "selective"])
def test_activations_are_kept_or_computed_again(file: Path, mode: str) -> None:
    table = f'[activation_checkpoint]\nmode = "{mode}"\nselective_ac_option = "op"\n'
    loaded = read(file, stage("a", 0), table)
    assert loaded.config.engine.recompute == mode
    assert loaded.notes.differs == ()


def test_a_memory_budget_for_activations_is_refused(file: Path) -> None:
    said = 'activation_checkpoint.mode: is "memory_budget". Write "none", "selective" or "full".'
    assert refusal(file, stage("a", 0), '[activation_checkpoint]\nmode = "memory_budget"\n') == [said]


def test_validation_reads_a_source_of_its_own(file: Path) -> None:
    table = (
        '[validation]\nenable = true\ndataset = "c4_test"\nfreq = 5\nsteps = 3\nlocal_batch_size = 2\nseq_len = 512\n'
    )
    loaded = read(file, stage("a", 0), table, world_size=4)
    assert loaded.raw["evaluate"] == {"every": 5, "sources": ["validation"], "tokens": 3 * 2 * 4 * 512, "seq_len": 512}
    assert loaded.raw["sources"]["validation"] == {
        "kind": "huggingface",
        "dataset": "tests/assets/c4_test",
        "split": "train",
        "add": ["bos", "eos"],
        "validation_only": True,
    }
    assert [str(note).split(": ")[1] for note in loaded.notes.differs] == ["validation.dataset"]


def test_validation_by_default_reads_all_of_c4s_validation_split(file: Path) -> None:
    loaded = read(file, stage("a", 0), "[validation]\nenable = true\n")
    assert loaded.raw["evaluate"] == {"every": 10, "sources": ["validation"], "tokens": 10**15, "seq_len": 2048}
    assert loaded.raw["sources"]["validation"]["split"] == "validation"
    assert notes(file, stage("a", 0), "[validation]\nenable = true\n") == [
        "validation.dataset: allenai/c4 is fetched and tokenised as a whole for a validation, not streamed.",
    ]
    assert notes(file, stage("a", 0), "[validation]\nfreq = 5\n") == [
        "validation.freq: has no effect here (it is 5): validation.enable is false."
    ]


def test_weights_to_start_from_are_the_models(file: Path) -> None:
    load = '[checkpoint]\nenable = true\ninitial_load_path = "hf/llama"\ninitial_load_in_hf = true\n'
    loaded = read(file, stage("a", 0), load)
    assert loaded.raw["model"] == {"init": "hf/llama"}
    assert loaded.notes.differs == ()
    ours = load.replace("initial_load_in_hf = true\n", "")
    what = "is taken as model.init: a Hugging Face folder or a run of trivium, not a folder that torchtitan saved."
    assert notes(file, stage("a", 0), ours) == [f"checkpoint.initial_load_path: {what}"]
    whole = f"{load}initial_load_model_only = false\n"
    rule = "It continues another run, step and optimizer too: trivium fork RUN CONFIG does. Or write true."
    assert refusal(file, stage("a", 0), whole) == [f"checkpoint.initial_load_model_only: is false. {rule}"]
    off = '[checkpoint]\ninitial_load_path = "hf/llama"\n'
    assert notes(file, stage("a", 0), off) == [
        'checkpoint.initial_load_path: has no effect here (it is "hf/llama"): checkpoint.enable is false.'
    ]


def test_checkpoints_that_are_off_are_still_written_at_boundaries_and_it_is_said(file: Path) -> None:
    loaded = read(file, stage("a", 0), "[checkpoint]\nenable = false\ninterval = 7\n")
    assert loaded.raw["checkpoint"] == {"async": False}
    what = "is false: one is still written where a stage begins and at the end; --dry-run writes none."
    assert [str(note) for note in loaded.notes.differs] == [f"their.toml: checkpoint.enable: {what}"]


def test_workers_and_what_they_make_ahead_are_the_loaders(file: Path) -> None:
    table = "[training.dataloader]\nnum_workers = 3\nprefetch_factor = 2\npin_memory = true\n"
    assert read(file, stage("a", 0), table).raw["loader"] == {"workers": 3, "prefetch": 6}


def test_adam_without_weight_decay_is_adamw(file: Path) -> None:
    adam = '[optimizer]\nname = "Adam"\nweight_decay = 0.0\nmu = 0.9\n'
    loaded = read(file, stage("a", 0), adam)
    assert (loaded.config.optimizer.name, loaded.config.optimizer.weight_decay) == ("adamw", 0)
    assert [str(note).split(": ")[1] for note in loaded.notes.decides_nothing] == ["optimizer.mu"]


def test_muon_is_ours_and_its_choices_are_refused(file: Path) -> None:
    muon = '[optimizer]\nname = "Muon"\nmu = 0.9\nnesterov = true\n'
    loaded = read(file, stage("a", 0), muon, overrides=["optimizer.name=muon"])
    assert loaded.raw["optimizer"]["momentum"] == {"start": 0.9, "end": 0.9, "steps": 0}
    (said,) = refusal(file, stage("a", 0), muon)
    assert said.startswith("optimizer.name: is \"Muon\": trivium's has Nesterov's momentum")
    other = muon.replace("nesterov = true", 'adjust_lr = "rms_norm"')
    said = 'optimizer.adjust_lr: is "rms_norm". trivium\'s Muon has no such choice. Remove it.'
    assert refusal(file, stage("a", 0), other, overrides=["optimizer.name=muon"]) == [said]


def test_keys_of_2024_are_read_where_they_were_then(file: Path) -> None:
    old = """
    [model]
    name = "llama2"
    flavor = "7B"
    norm_type = "fused_rmsnorm"
    [training]
    batch_size = 8
    seq_len = 2048
    warmup_steps = 5
    steps = 20
    data_parallel_degree = 4
    tensor_parallel_degree = 2
    compile = true
    dataset = "c4"
    [experimental]
    context_parallel_degree = 1
    pipeline_parallel_degree = 1
    [checkpoint]
    enable_checkpoint = true
    interval_type = "steps"
    interval = 7
    """
    loaded = read(file, training=old, world_size=8)
    assert loaded.raw["engine"] == {"compile": True, "parallel": {"replicate": 1, "tensor": 2, "shard": 4}}
    assert loaded.raw["schedule"]["warmup"] == {"steps": 5}
    assert loaded.raw["checkpoint"]["every"] == 7
    assert loaded.raw["defaults"]["batch_size"] == 32
    assert loaded.notes == Notes()


def test_a_dialect_is_recognised_named_or_refused(file: Path) -> None:
    assert read(file, stage("a", 0), dialect="torchtitan").config.run.name == "their"
    assert refusal(file, stage("a", 0), dialect="trivium")[0] == 'lr_scheduler: unknown key. Did you mean "schedule"?'
    assert refusal(file, stage("a", 0), dialect="torchtitn") == [
        '--dialect: "torchtitn" is not known. Did you mean "torchtitan"?'
    ]


def test_rows_are_made_as_theirs_are(file: Path) -> None:
    (only,) = plan_of(file, stage("a", 0)).stages
    assert (only.config.packing, only.config.document_mask) == ("concat", False)


@pytest.mark.parametrize(
    ("name", "stages"),
    [
        (
            "data_stages_test",
            [("stage_1_general", 0, 5), ("stage_2_reasoning", 5, 10), ("stage_3_final", 10, 15)],
        ),
        ("data_stages_backcompat_test", [("default", 0, 10)]),
        ("data_stages_ablation_test", [("default", 0, 5), ("ablation_stage", 5, 10)]),
    ],
)
def test_what_is_converted_loads_as_ours_and_gives_the_same_plan(
    name: str, stages: list[tuple[str, int, int]], tmp_path: Path
) -> None:
    theirs = load(CONFIGS / f"{name}.toml", world_size=2)
    plan = make_plan(theirs.config)
    assert spans(plan) == stages
    ours = tmp_path / "ours.toml"
    ours.write_text(tomli_w.dumps(theirs.raw))
    converted = load(ours)
    assert converted.config == theirs.config
    assert converted.notes == Notes()
    assert plan_json(make_plan(converted.config)) == plan_json(plan)


def test_the_three_configs_keep_their_seeds_shares_and_row_lengths() -> None:
    plan = make_plan(load(CONFIGS / "data_stages_test.toml", world_size=1).config)
    assert [stage.seed for stage in plan.stages] == [1234, 5678, 1234]
    assert [float(stage.shares["web"]) for stage in plan.stages if stage.shares] == [0.8, 0.3, 0.5]
    assert [stage.seq_len for stage in plan.stages] == [512, 512, 1024]
    ablation = make_plan(load(CONFIGS / "data_stages_ablation_test.toml", world_size=1).config)
    assert [stage.seed for stage in ablation.stages] == [1234, 9999]
