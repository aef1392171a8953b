"""theseus's configs: a stage for every entry of tokens and dataset, in either way to write keys."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.dialects import EXAMPLES, left_unsaid, notes, plan_of, refusal, shares, spans
from trivium.config.load import load, read_tables

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
    }


def test_kl_counts_from_the_second_stage_on_as_theirs_computes_it(file: Path) -> None:
    written(file, optimization__kl__beta=0.2)
    kls = [stage.kl for stage in load(file).config.stages]
    assert kls[0] is None
    assert kls[1] is not None
    assert (kls[1].beta, kls[1].direction, kls[1].reference) == (0.2, "nll_gap", None)
    assert notes(file)[0] == (
        'optimization/kl: is the difference of two token losses there (direction = "nll_gap"), '
        "which holds nothing back. KL itself: stages.1.kl.direction=forward."
    )


def test_betas_by_stage_have_the_reference_of_the_last_update(file: Path) -> None:
    three = {"training__tokens": [4096] * 3, "training__dataset": [[PMD]] * 3}
    kl = {"betas": [0.0, 0.1, 0.3], "reference_update_stages": [1]}
    kls = [stage.kl for stage in load(written(file, **three, optimization={"kl": kl})).config.stages]
    assert kls[2] is not None
    assert kls[2].reference is not None
    assert (kls[2].beta, kls[2].reference.stage) == (0.3, "stage-1")


def test_a_fade_begins_with_the_new_stage(file: Path) -> None:
    written(file, training__fade={"overlap": 0.5, "curve": "cosine"})
    fade = load(file).config.stages[1].fade
    assert fade is not None
    assert (fade.tokens, fade.shape) == (20_480, "cosine")
    assert notes(file)[0] == "training/fade: is centred on the boundary there; here it begins with the new stage."


def their_multiplier(step: int, steps: int, warmup: float, decay: float, constant: float, to: float) -> float:
    """Warm-up, stable, decay, stable, as they cut the run; a warm-up rises from zero here."""
    rise, fall, last = int(steps * warmup), int(steps * decay), int(steps * constant)
    if step < rise:
        return (step + 1) / rise
    begin = steps - last - fall
    if step < begin:
        return 1.0
    return max(to, 1 - (1 - to) * (step - begin) / fall) if fall else to


@pytest.mark.parametrize(
    ("keys", "parts"),
    [
        ({}, (0.01, 0.1, 0.0, 0.01)),
        ({"training__warmup_pct": 0.05, "training__decay_pct": 0.3}, (0.05, 0.3, 0.0, 0.01)),
        (
            {"optimization": {"warmup_pct": 0.1, "decay_pct": 0.2, "constant_pct": 0.25, "decay_lr_mult": 0.5}},
            (0.1, 0.2, 0.25, 0.5),
        ),
    ],
    ids=["defaults", "under training", "stable again"],
)
def test_the_learning_rate_is_theirs_at_every_step(
    file: Path, keys: dict[str, Any], parts: tuple[float, float, float, float]
) -> None:
    plan = plan_of(written(file, **keys))
    expected = [their_multiplier(step, 110, *parts) for step in range(110)]
    assert [plan.lr_multiplier(step) for step in range(110)] == pytest.approx(expected)


def test_every_stage_warms_up_again_where_theirs_does(file: Path) -> None:
    plan = plan_of(written(file, optimization={"lr": 1e-3, "rewarm_lr": 5e-4, "warmup_pct": 0.1, "min_lr_mult": 0.1}))
    assert plan.lr_multiplier(9) == pytest.approx(1.0)
    assert plan.lr_multiplier(100) == pytest.approx(0.5)
    assert plan.lr_multiplier(99) < 0.11


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
]


@pytest.mark.parametrize(("keys", "what"), FAULTS, ids=[what.split(":")[0] for _, what in FAULTS])
def test_a_fault_is_refused_by_their_key(file: Path, keys: dict[str, Any], what: str) -> None:
    assert refusal(written(file, **keys)) == [what]


def test_problems_come_at_once(file: Path) -> None:
    written(file, training__batch_size=-1, optimization__warmup_pct=-1, logging__report_interval=0)
    assert [said.split(":")[0] for said in refusal(file)] == [
        "training/batch_size",
        "optimization/warmup_pct",
        "logging/report_interval",
    ]


def test_a_model_without_sizes_asks_for_one_on_the_command_line(file: Path) -> None:
    written(file, architecture__n_embd=None)
    said = "architecture: has no n_embd and n_layers. Give a size on the command line: model.size=125m."
    assert refusal(file)[0] == said
    assert load(file, ["model.size=tiny"]).config.model.size == "tiny"


def test_nothing_is_dropped_silently() -> None:
    """Every key with an odd value of its own turns up: in our tables, or in a note."""
    odd = Path(__file__).parent / "odd_theseus.yaml"
    loaded = load(odd)
    assert left_unsaid(read_tables(odd), repr(loaded.raw) + " ".join(str(note) for note in loaded.warnings)) == []


def test_the_example_is_planned_as_the_page_says() -> None:
    plan = plan_of(EXAMPLES / "theseus.yaml")
    assert spans(plan) == [("stage-0", 0, 1000), ("stage-1", 1000, 1050), ("stage-2", 1050, 1100)]
