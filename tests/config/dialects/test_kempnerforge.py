"""KempnerForge's configs: four ways to read, weights that change, and nothing dropped silently."""

import math
from pathlib import Path
from typing import Any

import pytest

from tests.support.dialects import (
    EXAMPLES,
    converted_is_the_same,
    left_unsaid,
    notes,
    plan_of,
    refusal,
    shares,
    spans,
)
from trivium.config.dialects.kempnerforge import NOT_HERE
from trivium.config.load import load, read_tables

TRAIN = "[train]\nmax_steps = 100\nbatch_size = 4\n[scheduler]\nwarmup_steps = 10\n[distributed]\ndp_shard = 2\n"
WEB = '[[data.datasets]]\nname = "web"\npath = "/d/web"\nweight = 3\n'
CODE = '[[data.datasets]]\nname = "code"\npath = "/d/code"\n'


def written(file: Path, *parts: str, train: str = TRAIN) -> Path:
    """A config; in float32 unless it says otherwise, for bfloat16 is theirs alone."""
    text = train + "\n".join(parts)
    if "mixed_precision" not in text:
        text = text.replace("[train]\n", '[train]\nmixed_precision = "fp32"\n', 1)
    file.write_text(text)
    return file


def raw(file: Path, *parts: str, **settings: Any) -> dict[str, Any]:
    return load(written(file, *parts), **settings).raw


@pytest.mark.parametrize(
    ("data", "sources"),
    [
        ('dataset_path = "/d/web"', {"web": {"kind": "tokens", "path": "/d/web/*.npy"}}),
        (
            'dataset_path = "/d/web/"\nfile_pattern = "tok_*.npy"',
            {"web": {"kind": "tokens", "path": "/d/web/tok_*.npy"}},
        ),
        (
            'hf_dataset_name = "allenai/c4"\nhf_dataset_config = "en"\ntokenizer_path = "gpt2"',
            {
                "c4": {
                    "kind": "huggingface",
                    "dataset": "allenai/c4",
                    "subset": "en",
                    "split": "train",
                    "column": "text",
                }
            },
        ),
        (
            (
                'hf_dataset_name = "c4"\nhf_streaming = true\ntokenizer_path = "gpt2"\nhf_dataset_split = "test"\n'
                'hf_dataset_text_field = "body"'
            ),
            {"c4": {"kind": "stream", "dataset": "c4", "split": "test", "column": "body"}},
        ),
    ],
    ids=["mapped", "mapped by a pattern", "eager", "streaming"],
)
def test_each_single_source_is_read(file: Path, data: str, sources: dict[str, Any]) -> None:
    loaded = load(written(file, "[data]", data))
    assert loaded.raw["sources"] == sources
    assert loaded.warnings == ()
    assert spans(plan_of(file)) == [("default", 0, 100)]


def test_a_mixture_overrides_the_single_source_and_it_is_said(file: Path) -> None:
    single = '[data]\ndataset_path = "/d/one"\nhf_dataset_name = "c4"\nhf_streaming = true'
    written(file, single, WEB, CODE)
    assert shares(plan_of(file)) == [{"web": 0.75, "code": 0.25}]
    assert notes(file) == [
        'data.dataset_path: has no effect here (it is "/d/one"): overridden by data.datasets.',
        'data.hf_dataset_name: has no effect here (it is "c4"): overridden by data.datasets.',
        "data.hf_streaming: has no effect here (it is true): overridden by data.datasets.",
    ]


def test_a_path_comes_before_a_dataset_of_the_hub(file: Path) -> None:
    written(file, '[data]\ndataset_path = "/d/one"\nhf_dataset_name = "c4"')
    assert notes(file) == ['data.hf_dataset_name: has no effect here (it is "c4"): dataset_path comes before it.']


def test_a_stage_gives_back_the_weights_it_does_not_name(file: Path) -> None:
    later = "[[data.phases]]\nstart_step = 60\ndataset_weights = { web = 1 }\nlr_scale = 0.5\n"
    last = "[[data.phases]]\nstart_step = 90\ndataset_weights = { code = 0 }\n"
    plan = plan_of(written(file, WEB, CODE, later, last))
    assert spans(plan) == [("default", 0, 60), ("stage-1", 60, 90), ("stage-2", 90, 100)]
    assert shares(plan) == [{"web": 0.75, "code": 0.25}, {"web": 0.5, "code": 0.5}, {"web": 1.0, "code": 0.0}]
    ratio = plan.lr_multiplier(60) / plan_of(written(file, WEB, CODE)).lr_multiplier(60)
    assert ratio == pytest.approx(0.5)


def test_a_phase_from_step_0_is_the_first_stage(file: Path) -> None:
    plan = plan_of(written(file, WEB, CODE, "[[data.phases]]\ndataset_weights = { web = 1 }\n"))
    assert spans(plan) == [("stage-1", 0, 100)]
    assert shares(plan) == [{"web": 0.5, "code": 0.5}]


def test_an_anneal_is_one_stage_more(file: Path) -> None:
    plan = plan_of(written(file, "[data]\nanneal_start_step = 80\nanneal_weights = { web = 1 }", WEB, CODE))
    assert spans(plan) == [("default", 0, 80), ("anneal", 80, 100)]
    assert shares(plan)[1] == {"web": 0.5, "code": 0.5}


@pytest.mark.parametrize(("temperature", "web"), [(1.0, 0.75), (2.0, math.sqrt(3) / (math.sqrt(3) + 1))])
def test_a_higher_temperature_makes_shares_more_uniform(file: Path, temperature: float, web: float) -> None:
    plan = plan_of(written(file, f"[data]\nmix_temperature = {temperature}", WEB, CODE))
    assert shares(plan)[0]["web"] == pytest.approx(web)


def test_names_that_ours_cannot_have_are_changed_and_still_found_by_weights(file: Path) -> None:
    numbered = '[[data.datasets]]\nname = "2024"\npath = "/d/a"\n[[data.datasets]]\npath = "/d/code"\n'
    later = '[[data.phases]]\nstart_step = 50\ndataset_weights = { 2024 = 3, "/d/code" = 1 }\n'
    written(file, numbered, later)
    assert notes(file) == ['data.datasets[0].name: is "2024", called "source-2024" here.']
    assert shares(plan_of(file))[1] == {"source-2024": 0.75, "code": 0.25}


def test_packed_rows_need_the_number_of_the_end_of_a_document(file: Path) -> None:
    written(file, '[data]\ndataset_path = "/d/web"\npack_sequences = true\ntokenizer_path = "gpt2"')
    said = (
        "data.pack_sequences: documents end with the tokenizer's EOS, whose number is not in the config. "
        "Give it: sources.web.eos=2."
    )
    assert refusal(file) == [said]
    (only,) = plan_of(file, overrides=["sources.web.eos=50256"]).stages
    assert (only.config.packing, only.config.document_mask) == ("concat", True)
    (joined,) = plan_of(written(file, '[data]\ndataset_path = "/d/web"')).stages
    assert (joined.config.packing, joined.config.document_mask) == ("concat", False)


def test_bin_files_do_not_say_their_integers(file: Path) -> None:
    written(file, '[data]\nfile_pattern = "*.bin"', WEB, CODE)
    assert notes(file) == [
        (
            'data.file_pattern: is "*.bin": a .bin does not record its integer type, which is never guessed here. '
            "Without metadata, give for example sources.web.dtype=uint16."
        )
    ]


@pytest.mark.parametrize(
    ("parallel", "world_size", "batch_size"),
    [("dp_shard = 2", None, 8), ("dp_shard = 2\ndp_replicate = 3", None, 24), ("", 8, 32), ("tp = 2\npp = 2", 8, 8)],
)
def test_rows_per_rank_become_rows_on_all(file: Path, parallel: str, world_size: int | None, batch_size: int) -> None:
    train = f"[train]\nbatch_size = 2\ngrad_accum_steps = 2\nmax_steps = 3000\n[distributed]\n{parallel}\n"
    written(file, WEB, train=train)
    assert plan_of(file, world_size=world_size).stages[0].batch_size == batch_size
    assert load(file, world_size=world_size).config.engine.micro_batch_size == 2


def test_ranks_that_are_not_said_are_one_and_it_is_said(file: Path) -> None:
    written(file, WEB, train="[train]\nmax_steps = 3000\n")
    said = "is 8 rows on each rank: taken as 1 rank. For more, give --world-size 8, or distributed.dp_shard."
    assert notes(file) == [f"train.batch_size: {said}"]
    assert plan_of(file).stages[0].batch_size == 8
    written(file, WEB, train="[train]\nmax_steps = 3000\n[distributed]\ntp = 3\n")
    said = "3 ranks (dp_replicate, tp, cp, pp and ep), which does not divide --world-size 8. Change one of them."
    assert refusal(file, world_size=8) == [f"distributed: {said}"]


def their_multiplier(step: int, name: str, warmup: int, stable: int, decay: int, to: float) -> float:
    """Their schedule as they write it."""
    if step < warmup:
        return min(1.0, step / warmup)
    if name in ("constant", "none") or step < warmup + stable:
        return 1.0
    part = min(1.0, (step - warmup - stable) / decay)
    falls = {"linear": 1 - part, "sqrt": math.sqrt(1 - part), "cosine": (1 + math.cos(math.pi * part)) / 2}
    return to + (1 - to) * falls[name.removeprefix("wsd ")]


@pytest.mark.parametrize("name", ["cosine", "linear", "constant", "none", "wsd cosine", "wsd linear", "wsd sqrt"])
@pytest.mark.parametrize("decay", [None, 30, 200])
@pytest.mark.parametrize("warmup", [0, 10, 150])
def test_the_learning_rate_is_theirs_at_every_step(file: Path, name: str, decay: int | None, warmup: int) -> None:
    shape, _, fall = name.partition(" ")
    lines = [f'name = "{shape}"', f"warmup_steps = {warmup}", "min_lr_ratio = 0.2"]
    lines += [f'wsd_decay_type = "{fall}"', "stable_steps = 20"] if fall else []
    lines += [] if decay is None else [f"decay_steps = {decay}"]
    train = "[train]\nmax_steps = 100\n[distributed]\ndp_shard = 2\n[scheduler]\n" + "\n".join(lines) + "\n"
    plan = plan_of(written(file, WEB, train=train))
    stable, warm = 20 if fall else 0, 0 if name == "none" else warmup
    length = decay or max(1, 100 - warm - stable)
    expected = [their_multiplier(step, name, warm, stable, length, 0.2) for step in range(100)]
    assert [plan.lr_multiplier(step) for step in range(100)] == pytest.approx(expected)


FAULTS = [
    ("[data]\nnum_workers = -1", "data.num_workers: is -1. It must be a whole number, at least 0."),
    ("[data]\nmix_temperature = 0", "data.mix_temperature: is 0. It must be a number, over 0."),
    ("[data]\ntokenizer_path = 5", 'data.tokenizer_path: is 5. It must be text in quotes. Write tokenizer_path = "5".'),
    ('[optimizer]\nname = "lion"', 'optimizer.name: is "lion". Write "adamw" or "muon".'),
    (
        '[scheduler]\nname = "rex"',
        ('scheduler.name: is "rex", which falls as here only with rex_alpha = 1 and min_lr_ratio = 0. Write "linear".'),
    ),
    ("[vlm]\nmax_text_len = 5", "vlm: trains on images, which are not read here. Remove the table."),
    ("[eval]\nenabled = true", 'eval: is enabled, but has no source. Write dataset_path = "/data/held-out".'),
    (
        '[[data.datasets]]\nhf_name = "c4"',
        (
            "data.tokenizer_path: is missing, with which Hugging Face datasets become tokens. "
            'Write tokenizer_path = "gpt2".'
        ),
    ),
    ("[[data.datasets]]\nweight = 1", 'data.datasets[2]: has neither path nor hf_name. Write path = "/data/web".'),
    (
        '[[data.datasets]]\npath = "/d/x"\nweight = 0',
        "data.datasets[2].weight: is 0. It must be a number, over 0.",
    ),
    (
        '[[data.datasets]]\nname = "web"\npath = "/d/x"',
        'data.datasets[2].name: "web" is twice in data.datasets. Give each a name of its own.',
    ),
    (
        '[[data.datasets]]\npath = "/d/web"',
        'data.datasets[2]: is the same place as "web". Name it once, with the sum of their weights.',
    ),
    (
        "[[data.phases]]\nstart_step = 5\n[[data.phases]]\nstart_step = 5",
        (
            "data.phases[1].start_step: is 5, but the one before starts at 5: they must rise. "
            "Write start_step = 6 or more."
        ),
    ),
    (
        "[[data.phases]]\nstart_step = 5\nlr_scale = 0",
        "data.phases[0].lr_scale: is 0. It must be a number, over 0.",
    ),
    (
        "[[data.phases]]\nstart_step = 5\ndataset_weights = { wbe = 1 }",
        'data.phases[0].dataset_weights.wbe: there is no such source in data.datasets. Did you mean "web"?',
    ),
    (
        "[[data.phases]]\nstart_step = 5\ndataset_weights = { web = -1 }",
        "data.phases[0].dataset_weights.web: is -1. It must be a number, at least 0.",
    ),
    (
        "[[data.phases]]\nstart_step = 5\ndataset_weights = { web = 0, code = 0 }",
        ("data.phases[0].dataset_weights: is { web = 0, code = 0 }: nothing to read. Give a source a positive weight."),
    ),
    (
        "[data]\nanneal_start_step = 5",
        "data.anneal_weights: is missing beside anneal_start_step = 5. Write it, or leave both out.",
    ),
    (
        "[data]\nanneal_start_step = 5\nanneal_weights = { web = 1 }\n[[data.phases]]\nstart_step = 5",
        "data.anneal_start_step: is 5 beside data.phases. Keep one: write it as one more of [[data.phases]].",
    ),
]


@pytest.mark.parametrize(("table", "what"), FAULTS, ids=[what.split(":")[0] for _, what in FAULTS])
def test_a_fault_is_refused_by_their_key(file: Path, table: str, what: str) -> None:
    train = "[train]\nmax_steps = 3000\n[distributed]\ndp_shard = 2\n"
    own, _, data = table.partition("[[") if table.startswith("[data]") else ("", "", table)
    parts = [own, WEB, CODE, f"[[{data}" if own and data else data]
    assert refusal(written(file, *parts, train=train)) == [what]


def test_without_a_mixture_there_is_nothing_to_weigh(file: Path) -> None:
    written(file, '[data]\ndataset_path = "/d/web"\n[[data.phases]]\nstart_step = 5')
    said = "data.phases: change weights, but there is no [[data.datasets]] to weigh. Write it."
    assert refusal(file) == [said]
    said = 'data: has no source. Write dataset_path = "/data/web", hf_dataset_name = "allenai/c4" or [[data.datasets]].'
    assert refusal(written(file)) == [said]


def test_problems_of_all_tables_come_at_once(file: Path) -> None:
    train = "[train]\nmax_steps = 0\n[model]\nnum_experts = 8\ndim = 0\n"
    written(file, '[optimizer]\nname = "sgd"', "[data]\nnum_workers = 1.5", WEB, train=train)
    assert [said.split(":")[0] for said in refusal(file)] == [
        "train.max_steps",
        "optimizer.name",
        "data.num_workers",
        "model.num_experts",
        "model.width",
        "model.ffn",
    ]


def test_what_is_never_reached_or_off_is_said(file: Path) -> None:
    written(file, "[data]\nanneal_weights = { web = 1 }", WEB, CODE, "[[data.phases]]\nstart_step = 100")
    assert notes(file) == [
        "data.anneal_weights: has no effect here: anneal_start_step is 0, which is off.",
        "data.phases[0].start_step: is 100, which is never reached: the run ends at step 100.",
    ]


def test_pinned_memory_decides_nothing_and_is_said(file: Path) -> None:
    reason = "the engine copies batches to the device in its own way"
    assert notes(written(file, "[data]\npin_memory = false", WEB)) == [
        f"data.pin_memory: has no effect here (it is false): {reason}."
    ]


def with_line(file: Path, table: str, line: str) -> Path:
    """The small config with one line more, in a table that it has or in a new one."""
    head = f"[{table}]\n" if table else ""
    whole = TRAIN if head in TRAIN else f"{head}{TRAIN}"
    return written(file, WEB, train=whole.replace(head, f"{head}{line}\n", 1))


@pytest.mark.parametrize(("table", "key"), [(table, key) for table, keys in NOT_HERE.items() for key in keys])
def test_a_key_that_cannot_be_honoured_is_refused_with_what_to_write(file: Path, table: str, key: str) -> None:
    said = f'{table}.{key}: is "odd". {NOT_HERE[table][key]}'.removeprefix(".")
    assert refusal(with_line(file, table, f'{key} = "odd"')) == [said]


def test_values_that_hold_here_anyway_are_taken(file: Path) -> None:
    model = '[model]\nnorm_type = "rmsnorm"\nactivation = "silu"\nmodel_type = "transformer"\nnum_experts = 0\n'
    assert notes(written(file, WEB, model)) == []
    assert notes(with_line(file, "train", 'loss_fn = "chunked_cross_entropy"')) == []


@pytest.mark.parametrize(
    ("table", "line", "what"),
    [
        ("train", 'mixed_precision = "fp8"', 'mixed_precision: is "fp8". Write "bf16" or "fp32".'),
        ("train", 'mixed_precision = "fp16"', 'mixed_precision: is "fp16". Write "bf16" or "fp32".'),
        ("optimizer", 'name = "schedule_free_adamw"', 'name: is "schedule_free_adamw". Write "adamw" or "muon".'),
        (
            "optimizer",
            'name = "muon"\nmuon_ns_steps = 7',
            "muon_ns_steps: is 7. Muon here has 5 steps of Newton-Schulz. Write 5.",
        ),
    ],
)
def test_what_changes_the_numbers_is_refused(file: Path, table: str, line: str, what: str) -> None:
    assert refusal(with_line(file, table, line), overrides=["optimizer.name=muon"]) == [f"{table}.{what}"]


def test_muon_must_be_asked_for(file: Path) -> None:
    muon = '[optimizer]\nname = "muon"\nmuon_ns_steps = 5\n'
    what = "trivium's has Nesterov's momentum, and updates scaled by sqrt(max(1, outputs / inputs))."
    said = f'is "muon": {what} To train with it, give optimizer.name=muon; or write adamw.'
    assert refusal(written(file, WEB, muon)) == [f"optimizer.name: {said}"]
    loaded = load(file, ["optimizer.name=muon"])
    assert (loaded.config.optimizer.name, loaded.raw["optimizer"]["momentum"]["end"]) == ("muon", 0.95)
    assert notes(written(file, WEB, "[optimizer]\nmuon_ns_steps = 7\n")) == [
        "optimizer.muon_ns_steps: has no effect here (it is 7): the optimizer is not muon."
    ]


@pytest.mark.parametrize(
    ("line", "found"), [('mixed_precision = "bf16"', 'is "bf16"'), ("", 'is absent, which means "bf16"')]
)
def test_weights_in_bfloat16_are_refused_unless_float32_is_accepted(file: Path, line: str, found: str) -> None:
    file.write_text(f"[train]\nmax_steps = 3000\n{line}\n[distributed]\ndp_shard = 2\n{WEB}")
    what = "theirs keeps the weights and the optimizer's state in bfloat16, and trivium in float32."
    rule = 'To train with bfloat16 matrices and float32 weights, give engine.precision=bfloat16; or write "fp32".'
    assert refusal(file) == [f"train.mixed_precision: {found}: {what} {rule}"]
    assert load(file, ["engine.precision=bfloat16"]).config.engine.precision == "bfloat16"


def test_layers_that_theirs_splits_over_ranks_are_not_split_here(file: Path) -> None:
    written(file, WEB, train="[train]\nmax_steps = 3000\n[distributed]\npp = 2\n")
    what = "are not split over ranks here; ranks share the parameters (FSDP)."
    assert notes(file, world_size=8) == [f"distributed.pp: is 2: layers {what}"]


def test_ranks_that_share_rows_in_theirs_share_them_here_and_read_the_same(file: Path) -> None:
    written(file, WEB, train="[train]\nmax_steps = 3000\n[distributed]\n")
    rows = load(file, world_size=4).config.defaults.batch_size
    written(file, WEB, train="[train]\nmax_steps = 3000\n[distributed]\ncp = 2\n")
    config = load(file, world_size=8).config
    assert (config.engine.parallel.context, config.defaults.batch_size) == (2, rows)


@pytest.mark.parametrize("table", ["adapter", "profiling", "train", "model", "metrics"])
def test_a_key_that_is_not_known_is_refused(file: Path, table: str) -> None:
    unknown = "trivium does not know this key. Remove it to train without what it does."
    assert refusal(with_line(file, table, 'odd = "x"')) == [f'{table}.odd: is "x". {unknown}']


def test_validation_reads_a_source_of_its_own(file: Path) -> None:
    tables = raw(file, WEB, '[eval]\nenabled = true\ninterval = 7\nsteps = 3\ndataset_path = "/d/held"')
    assert tables["evaluate"] == {"every": 7, "sources": ["eval"], "tokens": 3 * 4 * 2 * 2048}
    assert tables["sources"]["eval"] == {"kind": "tokens", "path": "/d/held/*.npy", "validation_only": True}
    assert notes(written(file, WEB, "[eval]\ninterval = 7")) == [
        "eval.interval: has no effect here (it is 7): eval.enabled is false."
    ]


def test_the_other_tables_are_carried_over(file: Path) -> None:
    asked = ["optimizer.name=muon", "engine.precision=bfloat16"]
    tables = load(EXAMPLES / "kempnerforge.toml", asked, world_size=8).raw
    assert tables["model"]["ffn"] == 2048
    assert tables["optimizer"]["lr"] == {"matrix": 0.003, "rest": 3e-4}
    assert tables["optimizer"]["momentum"] == {"start": 0.95, "end": 0.95, "steps": 0}
    assert tables["engine"]["parallel"] == {"replicate": 1, "tensor": 2}
    assert tables["engine"]["recompute"] == "full"
    assert tables["checkpoint"] == {"every": 250, "keep": 3, "async": True}
    assert tables["defaults"]["batch_size"] == 4 * 2 * 4
    assert tables["schedule"]["decay_shape"] == "sqrt"
    assert tables["model"]["norm_eps"] == 1e-5
    written(file, WEB, "[checkpoint]\nkeep_last_n = 0")
    assert notes(file) == ["checkpoint.keep_last_n: is 0, which keeps all of them: taken as keep = 1000000."]


def test_nothing_is_dropped_silently(file: Path) -> None:
    """Every key with an odd value of its own turns up: in our tables, or in a note."""
    odd = Path(__file__).parent / "odd_kempnerforge.toml"
    assert left_unsaid(read_tables(odd), repr(load(odd).raw) + " ".join(notes(odd))) == []


def test_overrides_act_on_our_keys(file: Path) -> None:
    written(file, WEB, CODE)
    assert plan_of(file, overrides=["stages.default.steps=70"]).stages[0].end == 70
    converted_is_the_same(file, file.parent / "ours.toml", overrides=["stages.0.steps=70"])
