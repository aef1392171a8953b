"""theseus's configs: a stage for every entry of tokens and dataset, in either way to write keys."""

import itertools
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from tests.support.dialects import EXAMPLES, shares, spans, unsaid_of
from tests.support.dialects import notes as all_notes
from tests.support.dialects import refusal as problems_of
from trivium.config.dialects.theseus_jobs import JOBS
from trivium.config.load import Loaded
from trivium.config.load import load as load_theirs
from trivium.loader.loader import Loader
from trivium.plan.make import make_plan
from trivium.plan.plan import Plan
from trivium.rows.batch import PADDING

PMD = {"name": "fineweb", "rate": 1.0, "style": "PMD", "suffix": ""}
PADDED = {"name": "mnli", "rate": 1.0, "style": "PADDED"}
BASE: dict[str, Any] = {
    "architecture/n_embd": 256,
    "architecture/n_layers": 4,
    "architecture/n_head": 4,
    "architecture/block_size": 512,
    "training/batch_size": 8,
    "training/tokens": [409_600, 40_960],
    "training/dataset": [[PMD], [PADDED]],
    "training/validation": False,
}
OURS = ("model.size=tiny",)
GPT_NOTE = (
    "job: is a GPT there: LayerNorm, an ungated GELU and biases. "
    "The overrides give another model: RMSNorm, a gated SiLU and no biases."
)
LLAMA: dict[str, Any] = {
    "job": "llama/train/pretrain",
    "architecture__attention_bias": False,
    "architecture__rope_theta": 5e5,
}
FOLDER = (
    'training/dataset: their data folder is not in the config: taken as "data". '
    "Elsewhere: sources.fineweb.path=/path/fineweb/train.bin."
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "their.yaml"


def written(file: Path, **keys: Any) -> Path:
    """The base with other keys, their slashes written as two underscores; None takes one out."""
    others = {key.replace("__", "/"): value for key, value in keys.items()}
    file.write_text(yaml.safe_dump({key: value for key, value in (BASE | others).items() if value is not None}))
    return file


def load(file: Path, overrides: Sequence[str] = OURS) -> Loaded:
    return load_theirs(file, overrides)


def plan_of(file: Path) -> Plan:
    return make_plan(load(file).config)


def notes(file: Path) -> list[str]:
    """All notes but the one about a GPT."""
    return [note for note in all_notes(file, overrides=OURS) if note != GPT_NOTE]


def refusal(file: Path, overrides: Sequence[str] = OURS) -> list[str]:
    return problems_of(file, overrides=overrides)


def test_an_entry_is_a_stage(file: Path) -> None:
    plan = plan_of(written(file))
    assert spans(plan) == [("stage-0", 0, 100), ("stage-1", 100, 110)]
    assert shares(plan) == [{"fineweb": 1.0}, {"mnli": 1.0}]
    assert [stage.config.packing for stage in plan.stages] == ["concat", "pad"]
    assert [(stage.seq_len, stage.batch_size) for stage in plan.stages] == [(512, 8), (512, 8)]
    assert notes(file) == [FOLDER]


def test_keys_may_be_slashed_dotted_or_nested(file: Path) -> None:
    slashed = load(written(file)).raw
    nested: dict[str, Any] = {}
    for key, value in BASE.items():
        table, _, name = key.partition("/")
        nested.setdefault(table, {})[name] = value
    file.write_text(yaml.safe_dump(nested))
    assert load(file).raw == slashed
    file.write_text(yaml.safe_dump({key.replace("/", "."): value for key, value in BASE.items()}))
    assert load(file).raw == slashed


def test_a_key_that_is_said_twice_is_refused(file: Path) -> None:
    written(file, training={"batch_size": 4})
    assert refusal(file) == ["training/batch_size: is given twice. Keep one."]
    written(file, optimization=5, optimization__lr=1e-3)
    assert refusal(file) == ["optimization: is a value and a table. Keep one."]


def test_a_bare_number_and_a_bare_list_are_one_stage(file: Path) -> None:
    plan = plan_of(written(file, training__tokens=40_960.0, training__dataset=[PMD]))
    assert spans(plan) == [("stage-0", 0, 10)]


def test_a_suffix_selects_a_folder_of_its_own(file: Path) -> None:
    written(file, training__dataset=[[PMD], [PMD | {"suffix": "v2"}]])
    paths = {name: table["path"] for name, table in load(file).raw["sources"].items()}
    assert paths == {"fineweb": "data/fineweb/train.bin", "fineweb_v2": "data/fineweb_v2/train.bin"}


def test_a_stage_of_both_styles_is_padded(file: Path) -> None:
    both = [PMD | {"rate": 0.25}, PADDED | {"rate": 0.75}]
    plan = plan_of(written(file, training__dataset=[[PMD], both]))
    assert shares(plan)[1] == {"fineweb": 0.25, "mnli": 0.75}
    assert plan.stages[1].config.packing == "pad"


def test_validation_reads_the_other_split(file: Path) -> None:
    written(file, training__validation=True, training__validation_steps=100, logging__validation_interval=7)
    tables = load(file).raw
    assert tables["evaluate"] == {"every": 7, "tokens": 51_200, "sources": ["fineweb-val", "mnli-val"]}
    assert tables["sources"]["mnli-val"] == {
        "kind": "tokens",
        "path": "data/mnli/val.bin",
        "dtype": "uint32",
        "validation_only": True,
        "padding": "left",
    }


def test_kl_counts_from_the_second_stage_on_as_theirs_computes_it(file: Path) -> None:
    written(file, optimization__kl__beta=0.2)
    kls = [stage.kl for stage in load(file).config.stages]
    assert kls[0] is None
    assert kls[1] is not None
    assert (kls[1].beta, kls[1].direction, kls[1].reference) == (0.2, "nll_gap", None)
    assert kls[1].precision == "bfloat16"  # in which theirs keeps its reference
    assert notes(file)[0] == (
        'optimization/kl: is the difference of two token losses there (direction = "nll_gap"), '
        "which holds nothing back. KL itself: stages.1.kl.direction=forward."
    )


def test_betas_by_stage_have_the_reference_of_the_last_update(file: Path) -> None:
    three = {"training__tokens": [4096] * 3, "training__dataset": [[PMD]] * 3}
    kl = {"betas": [0.0, 0.1, 0.3]}  # theirs updates the reference when stage 1 begins, unless it says otherwise
    kls = [stage.kl for stage in load(written(file, **three, optimization={"kl": kl})).config.stages]
    assert kls[2] is not None
    assert kls[2].reference is not None
    assert (kls[2].beta, kls[2].reference.stage) == (0.3, "stage-1")
    kl["reference_update_stages"] = [1, 2]
    kls = [stage.kl for stage in load(written(file, **three, optimization={"kl": kl})).config.stages]
    assert kls[2] is not None
    assert kls[2].reference is None  # the model as it was when its stage began


@pytest.mark.parametrize("job", sorted(JOBS))
def test_a_job_with_a_known_model_is_taken(file: Path, job: str) -> None:
    more: dict[str, Any] = {"optimization__kl__betas": [0.0, 0.1]} if job.endswith("kl") else {}
    if job.endswith("finetune"):
        more = {"architecture__backbone": {"implementation": "llama", "weights": "weights/llama"}}
    elif job.startswith(("llama", "qwen")):
        more = LLAMA
    is_gpt = JOBS[job].model == "gpt"
    overrides = OURS if is_gpt else ()
    raw = load(written(file, **(more | {"job": job})), overrides).raw
    if job.endswith("finetune"):
        assert raw["model"] == {"init": "weights/llama"}
    else:
        assert raw["model"]["tied_embeddings"] is is_gpt
    assert (GPT_NOTE in all_notes(file, overrides=overrides)) is is_gpt


@pytest.mark.parametrize(("job", "what"), [("gpt/train/pretrain", "is"), (None, "is absent, which is")])
def test_a_gpt_asks_for_a_model_of_ours_and_gives_its_sizes(file: Path, job: str | None, what: str) -> None:
    written(file, job=job, architecture__bias=True, architecture__layer_norm_eps=1e-5, architecture__vocab_size=512)
    gpt = f"job: {what} a GPT there: LayerNorm, an ungated GELU and biases, which are not built here."
    sizes = ["model.layers=4", "model.width=256", "model.heads=4"]
    assert refusal(file, ()) == [
        f"{gpt} For our decoder in its sizes add {' '.join(sizes)}; for another, model.size=125m."
    ]
    kept = {"vocab": 512, "max_seq_len": 512, "tied_embeddings": True}
    assert load(file, sizes).raw["model"] == {**kept, "layers": 4, "width": 256, "heads": 4}
    assert load(file).raw["model"] == {**kept, "size": "tiny"}
    assert not any("same sizes" in note for note in all_notes(file, overrides=OURS))
    assert "architecture/bias: has no effect here (it is true): the overrides give a model without it." in notes(file)


def test_a_gpt_has_their_default_sizes_where_none_are_written(file: Path) -> None:
    sizes = dict.fromkeys(("architecture__n_embd", "architecture__n_layers", "architecture__n_head"))
    (said,) = refusal(written(file, **sizes, architecture__intermediate_size=5000), ())
    assert "add model.layers=32 model.width=2048 model.heads=16 model.ffn=5000;" in said


@pytest.mark.parametrize(
    ("job", "why"),
    [
        ("continual/train/benchmark_mamba", "Mamba layers are not built here."),
        ("continual/train/benchmark_hybrid", "Mamba layers are not built here."),
        ("continual/train/benchmark_lact", "LaCT layers are not built here."),
        ("lact/train/pretrain", "LaCT layers are not built here."),
        ("continual/train/benchmark_moe", "Experts are not built here."),
        ("moe/train/pretrain", "Experts are not built here."),
        ("thoughtbubbles/train/pretrain", "Layers that fork are not built here."),
        ("scratchbubbles/train/pretrain", "Layers that fork are not built here."),
        ("gpt_neox/train/pretrain", "GPT-NeoX layers are not built here."),
        ("continual/train/benchmark_lora", "LoRA is not built here."),
        ("continual/train/benchmark_lact_lora", "LoRA is not built here."),
        ("qwen/rl/grpo", "Rewards are not trained here."),
        ("backbone/evaluate", "It scores a model, which is trivium eval here."),
        ("data/tokenize_variable_dataset", "It prepares data, which is trivium prepare here."),
        ("my/own/job", "It is not a job that is known here."),
    ],
)
def test_a_job_with_another_model_is_refused_by_name(file: Path, job: str, why: str) -> None:
    known = ", ".join(JOBS)
    assert refusal(written(file, job=job)) == [f'job: is "{job}". {why} For a dense decoder write one of {known}.']


def test_a_llama_has_its_own_sizes_norms_and_positions(file: Path) -> None:
    keys = {"n_kv_head": 2, "intermediate_size": 512, "rope_theta": 5e5, "rms_norm_eps": 1e-5, "attention_bias": False}
    written(file, job="llama/train/pretrain", **{f"architecture__{key}": value for key, value in keys.items()})
    assert load(file, ()).raw["model"] == {
        "vocab": 32_000,
        "max_seq_len": 512,
        "tied_embeddings": False,
        "norm_eps": 1e-5,
        "rope": {"theta": 5e5},
        "layers": 4,
        "width": 256,
        "heads": 4,
        "ffn": 512,
        "kv_heads": 2,
    }


def test_a_llama_writes_what_its_layers_have_by_default(file: Path) -> None:
    bias = (
        "architecture/attention_bias: is missing, and attention there has biases unless it is false. "
        "Write attention_bias: false."
    )
    theta = (
        "architecture/rope_theta: is missing: a Llama's is 10000 there, but its attention takes 1000000. "
        "Write rope_theta: 1000000.0."
    )
    assert refusal(written(file, job="llama/train/pretrain"), ()) == [bias, theta]
    assert refusal(written(file, job="qwen/train/pretrain"), ()) == [bias]
    written(file, job="qwen/train/pretrain", architecture__attention_bias=False)
    assert load(file, ()).raw["model"]["rope"] == {"theta": 1e6}


def test_the_activations_type_is_the_precision(file: Path) -> None:
    assert load(written(file)).raw["engine"]["precision"] == "bfloat16"  # as theirs is by default
    dtypes = {"param": "float32", "activation": "float32"}
    assert load(written(file, architecture__dtype=dtypes)).raw["engine"]["precision"] == "float32"


def test_the_optimizer_is_reset_with_every_stage_but_the_first(file: Path) -> None:
    three = {"training__tokens": [4096] * 3, "training__dataset": [[PMD]] * 3}
    written(file, **three, optimization__reset_optimizer=True)
    assert [stage.reset_optimizer for stage in load(file).config.stages] == [False, True, True]
    assert notes(file) == [FOLDER]
    stages = load(written(file, optimization__reset_optimizer=False)).raw["stages"]
    assert stages[1].keys() & {"reset_optimizer", "lr"} == set()


@pytest.mark.parametrize("steps", [[60, 30, 10], [4, 96], [3, 4, 93]], ids=["stable", "decay", "short warm-up"])
@pytest.mark.parametrize("job", ["continual/train/benchmark", None])
def test_a_reset_begins_the_schedule_again(file: Path, job: str | None, steps: list[int]) -> None:
    keys = {"reset_optimizer": True, "warmup_pct": 0.06, "decay_pct": 0.2}
    stages = {"training__tokens": [4096 * each for each in steps], "training__dataset": [[PMD]] * len(steps)}
    plan = plan_of(written(file, job=job, optimization=keys, **stages))
    schedule = their_schedule("wsd", 100, keys, steps)
    expected = [float(schedule(step)) for each in steps for step in range(each)]
    assert [plan.lr_multiplier(step) for step in range(100)] == pytest.approx(expected, abs=1e-6)


def test_a_reset_is_refused_where_no_stage_can_begin_the_schedule_again(file: Path) -> None:
    resets = {"reset_optimizer": True}
    assert refusal(written(file, optimization=resets | {"schedule": "cosine_rewarm"})) == [
        (
            "optimization/reset_optimizer: is true, and theirs begins the first stage's cosine again with every reset. "
            "Write reset_optimizer: false, or schedule: wsd."
        )
    ]
    stages = {"training__tokens": [4096 * 10, 4096 * 90]}
    assert refusal(written(file, optimization=resets | {"schedule": "wsds"}, **stages)) == [
        (
            "optimization/reset_optimizer: is true, but stage 1 goes on after the end of the decay that begins "
            "again with it. Write reset_optimizer: false."
        )
    ]


UNREAD: list[tuple[str, dict[str, Any], str]] = [
    ("continual/train/benchmark", {"optimization__kl": {"beta": 0.5}}, "optimization/kl"),
    ("continual/train/abcd", {"optimization__kl": {"betas": [0.0, 0.5]}}, "optimization/kl"),
    ("continual/train/abcd", {"optimization__reset_optimizer": True}, "optimization/reset_optimizer"),
    ("continual/train/abcd_kl", {"optimization__reset_optimizer": True}, "optimization/reset_optimizer"),
    ("gpt/train/pretrain", {"optimization__reset_optimizer": True}, "optimization/reset_optimizer"),
    ("gpt/train/pretrain", {"training__fade": {"overlap": 0.5}}, "training/fade"),
    ("llama/train/pretrain", {"training__fade": {"overlap": 0.5}}, "training/fade"),
    ("llama/train/pretrain", {"optimization__kl": {"beta": 0.5}}, "optimization/kl"),
]


@pytest.mark.parametrize(("job", "keys", "key"), UNREAD)
def test_a_key_that_a_jobs_trainer_does_not_read_decides_nothing(
    file: Path, job: str, keys: dict[str, Any], key: str
) -> None:
    more: dict[str, Any] = {"optimization__kl__betas": [0.0, 0.1]} if job.endswith("kl") else {}
    if job.startswith("llama"):
        more = LLAMA
    overrides = () if job.startswith("llama") else OURS
    without = load(written(file, **(more | {"job": job})), overrides).raw
    assert load(written(file, **(more | {"job": job} | keys)), overrides).raw == without
    (said,) = [note for note in all_notes(file, overrides=overrides) if note.startswith(f"{key}: has no effect here")]
    assert said.endswith(f": the trainer of {job} does not read it.")


def test_a_continual_job_has_five_stages_where_none_are_written(file: Path) -> None:
    written(file, job="continual/train/abcd_kl", training__tokens=None, training__dataset=None)
    stages = load(file).raw["stages"]
    assert [[*stage["mixture"]] for stage in stages] == [["fineweb"], ["mnli"], ["qqp"], ["sst2"], ["siqa"]]
    assert [stage.get("kl", {}).get("beta", 0) for stage in stages] == [0, 0.1, 0.1, 0.1, 0.1]
    assert [stage["steps"] for stage in stages] == [244_141, 24_414, 24_414, 24_414, 24_413]


def their_parts(token: float, budgets: list[int], overlap: float, curve: str, steepness: float) -> list[float]:
    """Each dataset's part at a token, as they document it: ramps centred on the boundaries, normalised."""
    ends = list(itertools.accumulate(budgets))
    curves: dict[str, Callable[[float], float]] = {
        "linear": lambda t: t,
        "cosine": lambda t: (1 - math.cos(math.pi * t)) / 2,
        "sigmoid": lambda t: 1 / (1 + math.exp(-steepness * (t - 0.5))),
    }

    def risen(boundary: int) -> float:
        half = overlap * min(budgets[boundary], budgets[boundary + 1]) / 2
        if token < ends[boundary] - half:
            return 0.0
        return 1.0 if token >= ends[boundary] + half else curves[curve]((token - ends[boundary] + half) / (2 * half))

    rises = [1.0, *(risen(boundary) for boundary in range(len(budgets) - 1)), 0.0]
    parts = [min(before, 1 - after) for before, after in itertools.pairwise(rises)]
    return [part / sum(parts) for part in parts]


@pytest.mark.parametrize("curve", ["linear", "cosine", "sigmoid"])
def test_a_fade_has_their_rows_in_every_step(file: Path, curve: str) -> None:
    budgets, overlap, batch, step_tokens = [409_600, 204_800, 102_400], 0.5, 200, 200 * 8
    written(
        file,
        architecture__block_size=8,
        training__batch_size=batch,
        training__tokens=budgets,
        training__dataset=[[PMD], [PADDED], [PMD | {"suffix": "end"}]],
        training__fade={"overlap": overlap, "curve": curve, "steepness": 12.0},
    )
    plan = plan_of(file)
    names = ["fineweb", "mnli", "fineweb_end"]
    for stage in plan.stages:
        assert stage.mixture is not None
        before = dict.fromkeys(names, 0)
        for step in range(stage.start or 0, stage.end or 0):
            rows = (step + 1 - (stage.start or 0)) * batch
            counts = {
                **dict.fromkeys(names, 0),
                **dict(zip(stage.mixture.names, stage.mixture.count(rows), strict=True)),
            }
            given = [(counts[name] - before[name]) / batch for name in names]
            middle = (step + 0.5) * step_tokens
            assert given == pytest.approx(their_parts(middle, budgets, overlap, curve, 12.0), abs=0.011)
            before = counts
    fade = load(file).config.stages[1].fade
    assert fade is not None
    assert (fade.tokens, fade.shape, fade.center) == (102_400, curve, True)
    assert {stage.config.packing for stage in plan.stages} == {"pad"}  # rows of the padded source are its documents


def test_an_overlap_for_each_boundary_counts_before_the_one_for_all(file: Path) -> None:
    three = {"training__tokens": [40_960] * 3, "training__dataset": [[PMD], [PADDED], [PMD]]}
    fade = {"overlap": 0.5, "per_boundary_overlap": [0.0, 0.25]}
    fades = [stage.fade for stage in load(written(file, **three, training__fade=fade)).config.stages]
    assert [None if each is None else each.tokens for each in fades] == [None, None, 10_240]


def their_schedule(name: str, steps: int, keys: dict[str, Any], stages: list[int]) -> Any:
    """Their three schedules, in optax, from what their pages say of them; the peak is 1."""
    optax = pytest.importorskip("optax")
    rise, fall = (int(steps * keys.get(key, usual)) for key, usual in (("warmup_pct", 0.005), ("decay_pct", 0.01)))
    if name == "wsd":
        parts = [optax.linear_schedule(0.01, 1, rise), optax.constant_schedule(1), optax.linear_schedule(1, 0.01, fall)]
        return optax.join_schedules(parts, [rise, steps - fall])
    if name == "wsds":
        rise, stable = int(steps * keys.get("warmup_pct", 0.01)), int(steps * keys.get("constant_pct", 0.5))
        to = keys.get("decay_lr_mult", 0.1)
        parts = [
            optax.linear_schedule(keys.get("warmup_lr_mult", 0.01), 1, rise),
            optax.constant_schedule(1),
            optax.linear_schedule(1, to, fall),
            optax.constant_schedule(to),
        ]
        return optax.join_schedules(parts, [rise, steps - fall - stable, steps - stable])
    lowest, parts, boundaries = keys.get("min_lr_mult", 0.01), [], []
    for number, length in enumerate(stages):
        peak = 1 if number == 0 else keys.get("rewarm_lr", 1e-4) / keys.get("lr", 3e-4)
        rise = max(1, int(length * keys.get("warmup_pct", 0.01)))
        parts += [optax.linear_schedule(lowest, peak, rise), optax.cosine_decay_schedule(peak, length - rise, lowest)]
        boundaries += [sum(stages[:number]), sum(stages[:number]) + rise]
    return optax.join_schedules(parts, boundaries[1:])


ABCD, BENCHMARK = "continual/train/abcd", "continual/train/benchmark"
LENGTHS = {"warmup_pct": 0.1, "decay_pct": 0.2, "constant_pct": 0.25}


@pytest.mark.parametrize(
    ("job", "keys", "name"),
    [
        (None, {}, "wsd"),
        ("gpt/train/pretrain", {"warmup_pct": 0.05, "decay_pct": 0.3}, "wsd"),
        (BENCHMARK, LENGTHS, "wsd"),
        (BENCHMARK, LENGTHS | {"schedule": "wsd"}, "wsd"),
        (BENCHMARK, LENGTHS | {"schedule": "wsd_reset"}, "wsd"),
        (BENCHMARK, LENGTHS | {"schedule": "wsds", "decay_lr_mult": 0.5, "warmup_lr_mult": 0.2}, "wsd"),
        (BENCHMARK, LENGTHS | {"schedule": "cosine_rewarm", "rewarm_lr": 2e-4}, "wsd"),
        ("gpt/train/pretrain", {"rewarm_lr": 2e-4}, "wsd"),
        (ABCD, {"schedule": "cosine_rewarm", "rewarm_lr": 2e-4}, "wsds"),
        (ABCD, {}, "wsds"),
        (ABCD, LENGTHS | {"decay_lr_mult": 0.5}, "wsds"),
        (None, LENGTHS, "wsds"),
        (None, LENGTHS | {"schedule": "wsds", "decay_lr_mult": 0.5, "warmup_lr_mult": 0.2}, "wsds"),
        (None, LENGTHS | {"schedule": "cosine_rewarm"}, "cosine_rewarm"),
        (None, {"lr": 1e-3, "rewarm_lr": 5e-4, "warmup_pct": 0.1, "min_lr_mult": 0.1}, "cosine_rewarm"),
    ],
)
def test_the_learning_rate_is_theirs_at_every_step(
    file: Path, job: str | None, keys: dict[str, Any], name: str
) -> None:
    plan = plan_of(written(file, job=job, optimization=keys, training__warmup_pct=0.5, training__decay_pct=0.5))
    schedule = their_schedule(name, 110, keys, [100, 10])
    expected = [float(schedule(step)) for step in range(110)]
    assert [plan.lr_multiplier(step) for step in range(110)] == pytest.approx(expected, abs=1e-6)


def test_a_schedule_that_their_trainer_does_not_take_decides_nothing(file: Path) -> None:
    written(file, job=BENCHMARK, optimization={"schedule": "cosine_rewarm", "rewarm_lr": 2e-4})
    assert [note for note in notes(file) if note.startswith("optimization")] == [
        (
            'optimization/schedule: has no effect here (it is "cosine_rewarm"): '
            "the trainer of this job trains with wsd whatever it says."
        ),
        "optimization/rewarm_lr: has no effect here (it is 0.0002): wsd does not read it.",
    ]
    written(file, job=BENCHMARK, optimization__schedule="wsd")
    assert not any(note.startswith("optimization") for note in notes(file))


def test_a_stage_has_the_steps_whose_first_token_is_its_own(file: Path) -> None:
    """Theirs counts tokens through the run: 100.5 steps, then 9.75, end after 110 whole steps."""
    plan = plan_of(written(file, training__tokens=[411_648, 39_936]))
    assert spans(plan) == [("stage-0", 0, 101), ("stage-1", 101, 110)]


def test_rows_padded_on_the_left_are_read_without_their_padding(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    folder = file.parent / "data" / "mnli"
    folder.mkdir(parents=True)
    texts = [[5, 6, 7], [8], [9, 10, 11, 12]]
    rows = [[0] * (4 - len(text)) + text for text in texts]
    np.array(rows, np.uint32).tofile(folder / "train.bin")
    np.array([[token > 0 for token in row] for row in rows], np.bool_).tofile(folder / "train.bin.mask")
    (folder / "shape.json").write_text(json.dumps({"train": [3, 4]}))
    keys = {"architecture__block_size": 4, "training__batch_size": 3, "architecture__vocab_size": 16}
    written(file, training__tokens=[12], training__dataset=[[PADDED]], **keys)
    batch = Loader(plan_of(file)).batch(0)
    read = [row[segments != PADDING].tolist() for row, segments in zip(batch.tokens, batch.segments, strict=True)]
    assert sorted(read) == sorted(texts)


def test_rows_are_padded_on_the_left_also_where_one_ends_masked(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    folder = file.parent / "data" / "mnli"
    folder.mkdir(parents=True)
    np.array([[0, 5, 6, 7], [0, 0, 0, 8], [9, 10, 11, 12]], np.uint32).tofile(folder / "train.bin")
    np.array([[0, 0, 1, 1], [0, 0, 0, 1], [0, 1, 1, 0]], np.bool_).tofile(folder / "train.bin.mask")
    (folder / "shape.json").write_text(json.dumps({"train": [3, 4]}))
    keys = {"architecture__block_size": 4, "training__batch_size": 3, "architecture__vocab_size": 16}
    written(file, training__tokens=[12], training__dataset=[[PADDED]], **keys)
    batch = Loader(plan_of(file)).batch(0)
    read = [row[segments != PADDING].tolist() for row, segments in zip(batch.tokens, batch.segments, strict=True)]
    assert sorted(read) == [[5, 6, 7], [8], [9, 10, 11, 12]]


FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"training__batch_size": 0}, "training/batch_size: is 0. It must be a whole number, at least 1."),
    (
        {"training__tokens": [4096, "x"]},
        'training/tokens[1]: is "x". It must be a whole number, at least 1.',
    ),
    (
        {"training__tokens": [4096]},
        "training/dataset: has 2 entries, but training/tokens has 1. Give one for each stage.",
    ),
    (
        {"training__dataset": [[PMD], [PADDED | {"rate": 0.5}]]},
        "training/dataset[1]: has rates that add up to 0.5, not 1. Change them, so that they do.",
    ),
    (
        {"training__dataset": [[PMD], [PADDED | {"rate": 2}]]},
        "training/dataset[1][0]/rate: is 2. It must be a number between 0 and 1.",
    ),
    (
        {"training__dataset": [[PMD], [PADDED | {"style": "CONTRASTIVE"}]]},
        'training/dataset[1][0]/style: is "CONTRASTIVE". Write one of "PMD" or "PADDED".',
    ),
    (
        {"training__dataset": [[PMD], [{"rate": 1.0}]]},
        "training/dataset[1][0]/name: is missing. It must be text. Write name: fineweb.",
    ),
    (
        {"training__dataset": [[PMD], [PMD | {"rate": 0.5}, PMD | {"rate": 0.5}]]},
        "training/dataset[1][1]/name: is twice in its stage. Name it once, with the sum of rates.",
    ),
    (
        {"training__dataset": "fineweb"},
        (
            'training/dataset: is "fineweb". It must be a list of samplings for each stage. '
            "Write - - { name: fineweb, rate: 1.0, style: PMD }."
        ),
    ),
    (
        {"optimization__warmup_pct": 2},
        "optimization/warmup_pct: is 2. It must be a number between 0 and 1.",
    ),
    (
        {"optimization__warmup_pct": 0.5, "optimization__decay_pct": 0.75},
        "optimization/warmup_pct: and decay_pct and constant_pct are 1.25 of the run. Lower one of them.",
    ),
    (
        {"optimization__kl__betas": [0.1]},
        "optimization/kl/betas: is [0.1]. Give a number for each of the 2 stages.",
    ),
    (
        {"training__fade__curve": "steps"},
        'training/fade/curve: is "steps". Write "linear", "cosine" or "sigmoid".',
    ),
    (
        {"training__fade__per_boundary_overlap": [0.1, 0.2]},
        "training/fade/per_boundary_overlap: is [0.1, 0.2]. Give a number, at least 0, for each of the 1 boundaries.",
    ),
    (
        {"training__fade__per_boundary_overlap": [-0.5]},
        "training/fade/per_boundary_overlap: is [-0.5]. Give a number, at least 0, for each of the 1 boundaries.",
    ),
    (
        {"training__tokens": []},
        "training/tokens: is []. A step has 4,096 (batch_size x block_size). Write that, or more, for each stage.",
    ),
    (
        {"training__tokens": [2000, 2000]},
        (
            "training/tokens: is [2000, 2000]. A step has 4,096 (batch_size x block_size). "
            "Write that, or more, for each stage."
        ),
    ),
    (
        {"optimization__kl": {"betas": [0.0, 0.1], "reference_update_stages": [2]}},
        "optimization/kl/reference_update_stages: is [2]. Give numbers of stages, from 0 to 1.",
    ),
    (
        {"optimization__kl": {"betas": [0.1, 0.1]}},
        (
            "optimization/kl/reference_update_stages: is [1]. Stage 0 has a beta of 0.1 and no reference. "
            "Add the stage it begins with, after 0."
        ),
    ),
    (
        {"architecture__dtype__activation": "float16"},
        'architecture/dtype/activation: is "float16". Write "bfloat16" or "float32".',
    ),
    (
        {"architecture__dtype__param": "bfloat16"},
        'architecture/dtype/param: is "bfloat16". Weights here are float32. Write param: float32.',
    ),
    ({"architecture__dropout": 0.1}, "architecture/dropout: is 0.1. Nothing is dropped here. Write dropout: 0.0."),
    ({"architecture__rope": False}, "architecture/rope: is false. Positions here are rotary. Write rope: true."),
    (
        {"architecture__moe__experts": 8},
        "architecture/moe/experts: is 8. Experts are not built here. Remove the table moe to train a dense model.",
    ),
    (
        {"architecture__d_state": 128},
        (
            "architecture/d_state: is 128. Layers that read this key are not built here. "
            "Remove it to train without them."
        ),
    ),
    (
        {"optimization__lora": {"rank": 16}},
        (
            "optimization/lora: is { rank = 16 }. LoRA is not built here: all parameters are trained. "
            "Remove it to train them."
        ),
    ),
    (
        {"optimization__schedule": "cosine"},
        'optimization/schedule: is "cosine". Write "wsd", "wsd_reset", "wsds" or "cosine_rewarm".',
    ),
    (
        {"training__dataset": [[PMD], [PADDED | {"weight": 3}]]},
        (
            "training/dataset[1][0]/weight: is 3. trivium does not know this key. "
            "Remove it to train without what it does."
        ),
    ),
]


@pytest.mark.parametrize(("keys", "what"), FAULTS, ids=[what.split(":")[0] for _, what in FAULTS])
def test_a_fault_is_refused_by_their_key(file: Path, keys: dict[str, Any], what: str) -> None:
    assert refusal(written(file, **keys)) == [what]


def test_problems_come_at_once(file: Path) -> None:
    keys = {"training__batch_size": -1, "optimization__warmup_pct": -1, "logging__report_interval": 0}
    told = ["training/batch_size", "optimization/warmup_pct", "logging/report_interval"]
    assert [said.split(":")[0] for said in refusal(written(file, **keys))] == told
    assert [said.split(":")[0] for said in refusal(file, ())] == [*told, "job"]


def test_a_job_that_is_refused_hides_no_other_problem_and_is_not_refused_twice(file: Path) -> None:
    keys = {"architecture__d_state": 4, "optimization__lora": {"rank": 2}, "optimization__odd": 3}
    written(file, job="continual/train/benchmark_mamba_lora", training__batch_size=0, **keys)
    for overrides in (OURS, ()):
        assert [said.split(":")[0] for said in refusal(file, overrides)] == [
            "job",
            "training/batch_size",
            "optimization/odd",
        ]


def test_a_model_without_sizes_asks_for_one_on_the_command_line(file: Path) -> None:
    written(file, **LLAMA, architecture__n_embd=None)
    said = "architecture: has no n_embd and n_layers. Give a size on the command line: model.size=125m."
    assert refusal(file, ()) == [said]
    assert load(file).config.model.size == "tiny"


def test_nothing_is_dropped_silently() -> None:
    """Every key with an odd value of its own turns up: in our tables, in a note, or in a problem."""
    assert unsaid_of("theseus", Path(__file__).parent / "odd_theseus.yaml") == []


def test_the_example_is_planned_as_the_page_says() -> None:
    sizes = ["model.layers=8", "model.width=512", "model.heads=8"]
    plan = make_plan(load(EXAMPLES / "theseus.yaml", sizes).config)
    assert spans(plan) == [("stage-0", 0, 1000), ("stage-1", 1000, 1050), ("stage-2", 1050, 1100)]
