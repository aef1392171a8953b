"""torchtitan's multi-stage configs: every rule of theirs, in their own key paths, and nothing dropped silently."""

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from trivium.config.load import Loaded, load
from trivium.errors import ConfigError
from trivium.plan.export import plan_json
from trivium.plan.make import make_plan
from trivium.plan.plan import Plan

TYPES = 'Write one of "huggingface", "nanoset", "preprocessed" or "packed_memmap".'
CONFIGS = Path(__file__).parents[3] / "docs" / "data_stages" / "configs"

TRAINING = """
[lr_scheduler]
warmup_steps = 2

[training]
steps = 20
global_batch_size = 8
"""


def stage(name: str, start: int, *fields: str, end: int | None = None) -> str:
    """A nanoset stage over data/web, unless its fields say something else."""
    written = {line.split(" = ")[0] for line in fields}
    usual = ('dataset_type = "nanoset"', 'dataset_folders = ["data/web"]', "seq_len = 512")
    lines = [f'name = "{name}"', f"start_step = {start}"]
    lines += [] if end is None else [f"end_step = {end}"]
    lines += [line for line in usual if line.split(" = ")[0] not in written]
    lines += [line for line in fields if not line.endswith(" = absent")]
    return "[[training.data_stages]]\n" + "\n".join(lines) + "\n\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "their.toml"


def read(file: Path, *parts: str, training: str = TRAINING, **settings: Any) -> Loaded:
    file.write_text(training + "\n".join(parts))
    return load(file, **settings)


def plan_of(file: Path, *parts: str, **settings: Any) -> Plan:
    return make_plan(read(file, *parts, **settings).config)


def notes(file: Path, *parts: str, **settings: Any) -> list[str]:
    return [str(note).removeprefix("their.toml: ") for note in read(file, *parts, **settings).warnings]


def refusal(file: Path, *parts: str, **settings: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(file, *parts, **settings)
    return [str(problem).removeprefix("their.toml: ") for problem in caught.value.problems]


def spans(plan: Plan) -> list[tuple[str, int | None, int | None]]:
    return [(stage.name, stage.start, stage.end) for stage in plan.stages]


def test_without_stages_there_is_one_stage_default_from_training(file: Path) -> None:
    loaded = read(file, 'dataset = "c4"', "seq_len = 128", "dataset_random_seed = 7")
    (only,) = loaded.config.stages
    assert (only.name, only.steps, only.seq_len, only.seed) == ("default", 20, 128, 7)
    assert loaded.raw["sources"] == {"c4": {"kind": "huggingface", "dataset": "c4"}}
    assert loaded.warnings == ()


def test_a_first_stage_after_step_0_gets_a_default_stage_from_training_before_it(file: Path) -> None:
    plan = plan_of(file, 'dataset = "c4"', stage("late", 5))
    assert spans(plan) == [("default", 0, 5), ("late", 5, 20)]
    assert [stage.seq_len for stage in plan.stages] == [2048, 512]
    assert plan.stages[0].shares == {"c4": Fraction(1)}
    assert plan.stages[1].shares == {"web": Fraction(1)}


def test_a_stage_of_theirs_called_default_makes_way_for_that_of_the_gap(file: Path) -> None:
    assert spans(plan_of(file, 'dataset = "c4"', stage("default", 5))) == [("default", 0, 5), ("stage-default", 5, 20)]
    said = ['training.data_stages[0].name: is "default", called "stage-default" here.']
    assert notes(file, 'dataset = "c4"', stage("default", 5)) == said
    assert spans(plan_of(file, stage("default", 0))) == [("default", 0, 20)]


def test_a_stage_of_steps_5_to_10_takes_exactly_5_steps(file: Path) -> None:
    plan = plan_of(file, stage("a", 0, end=5), stage("b", 5, "seq_len = 1024", end=10), stage("c", 10))
    assert spans(plan) == [("a", 0, 5), ("b", 5, 10), ("c", 10, 20)]
    assert [step for step in range(20) if plan.settings_at(step).seq_len == 1024] == [5, 6, 7, 8, 9]


def test_a_stage_without_an_end_lasts_until_the_next_or_the_end(file: Path) -> None:
    assert spans(plan_of(file, stage("a", 0), stage("b", 7))) == [("a", 0, 7), ("b", 7, 20)]


def test_stages_are_sorted_by_their_start(file: Path) -> None:
    assert spans(plan_of(file, stage("b", 10), stage("a", 0))) == [("a", 0, 10), ("b", 10, 20)]


def test_a_stage_seed_falls_back_to_that_of_training_and_then_to_the_run(file: Path) -> None:
    own = stage("a", 0, "dataset_random_seed = 9", end=5)
    assert [each.seed for each in plan_of(file, "dataset_random_seed = 7", own, stage("b", 5)).stages] == [9, 7]
    assert [each.seed for each in plan_of(file, own, stage("b", 5), "[debug]\nseed = 3").stages] == [9, 3]


def test_with_stages_from_step_0_a_warning_lists_the_overridden_fields(file: Path) -> None:
    fields = ('dataset = "c4"', 'dataset_type = "huggingface"', "seq_len = 77", "dataset_random_seed = 7")
    assert notes(file, *fields, stage("a", 0)) == [
        "training: dataset, dataset_type and seq_len are overridden by the stages. They start at step 0."
    ]
    assert notes(file, "dataset_random_seed = 7", stage("a", 0, "dataset_random_seed = 9")) == [
        "training: dataset_random_seed is overridden by the stages. They start at step 0."
    ]


def test_required_fields_are_all_asked_for_at_once(file: Path) -> None:
    assert refusal(file, "[[training.data_stages]]\n") == [
        'training.data_stages[0].name: is missing. Write name = "general".',
        "training.data_stages[0].start_step: is missing. It must be a whole number, at least 0.",
        "training.data_stages[0].seq_len: is missing. It must be a whole number, at least 1.",
        f"training.data_stages[0].dataset_type: is missing. {TYPES}",
    ]


FAULTS = [
    (
        [stage("a", 0, "dataset_folders = absent")],
        'dataset_folders: is missing, which dataset_type = "nanoset" reads. Write dataset_folders = ["/data/web"].',
    ),
    (
        [stage("a", 0, "dataset_folders = []")],
        'dataset_folders: is missing, which dataset_type = "nanoset" reads. Write dataset_folders = ["/data/web"].',
    ),
    (
        [stage("a", 0, 'dataset_folders = "data/web"')],
        'dataset_folders: is "data/web". It must be a list of folders. Write dataset_folders = ["/data/web"].',
    ),
    (
        [stage("a", 0, "dataset_folders = [1, 2]")],
        'dataset_folders: is [1, 2]. It must be a list of folders. Write dataset_folders = ["/data/web"].',
    ),
    (
        [stage("a", 0, 'dataset_folders = ["a", "a"]')],
        "dataset_folders: names a folder twice. Name it once, with the sum of their weights.",
    ),
    (
        [stage("a", 0, 'dataset_type = "huggingface"')],
        'dataset: is missing, which dataset_type = "huggingface" reads. Write dataset = "c4".',
    ),
    (
        [stage("a", 0, 'dataset_type = "huggingface"', "dataset = 5")],
        'dataset: is 5. It must be text in quotes. Write dataset = "5".',
    ),
    (
        [stage("a", 0, 'dataset_type = "preprocessed"')],
        'dataset_path: is missing, which dataset_type = "preprocessed" reads. Write dataset_path = "/data/packed".',
    ),
    (
        [stage("a", 0, 'dataset_type = "packed_memmap"', "dataset_folders = absent")],
        'dataset_path: is missing, which dataset_type = "packed_memmap" reads. Write dataset_path = "/data/packed".',
    ),
    ([stage("a", 0, 'dataset_type = "nanosets"')], 'dataset_type: is "nanosets". Did you mean "nanoset"?'),
    ([stage("a", 0, "seq_len = 0")], "seq_len: is 0. It must be a whole number, at least 1."),
    ([stage("a", 0, "seq_len = -8")], "seq_len: is -8. It must be a whole number, at least 1."),
    ([stage("a", 0, "seq_len = absent")], "seq_len: is missing. It must be a whole number, at least 1."),
    (
        [stage("a", 0, "dataset_random_seed = -9")],
        "dataset_random_seed: is -9. It must be a whole number, at least 0.",
    ),
    ([stage("a", -1)], "start_step: is -1. It must be a whole number, at least 0."),
    ([stage("a", 20)], "start_step: is 20, but the run ends at step 20. Lower it, or raise training.steps."),
    ([stage("", 0)], 'name: is "". Write name = "general".'),
    (
        [stage("a", 0, end=5), stage("b", 10)],
        'end_step: is 5, but "b" starts at 10: a gap. Write end_step = 10, or leave it out.',
    ),
    (
        [stage("a", 0, end=12), stage("b", 10)],
        'end_step: is 12, but "b" starts at 10: an overlap. Write end_step = 10, or leave it out.',
    ),
    (
        [stage("a", 0, end=15)],
        "end_step: is 15, but the run ends at step 20. Leave it out, or lower training.steps.",
    ),
    ([stage("a", 0, end=0)], "end_step: is 0, but the stage starts at 0. Write end_step = 20, or leave it out."),
    (
        [stage("a", 0, 'dataset_folders = ["a", "b"]', "dataset_weights = [1.0]")],
        "dataset_weights: is [1.0], but there are 2 sources. Write a list with one weight for each.",
    ),
    (
        [stage("a", 0, "dataset_weights = [0.5, 0.5]")],
        "dataset_weights: is [0.5, 0.5], but there is 1 source. Write a list with one weight for each.",
    ),
    (
        [stage("a", 0, "dataset_weights = 1.0")],
        "dataset_weights: is 1.0, but there is 1 source. Write a list with one weight for each.",
    ),
    (
        [stage("a", 0, 'dataset_folders = ["a", "b"]', "dataset_weights = [1.5, -0.5]")],
        "dataset_weights: is [1.5, -0.5]. Each must be a number between 0 and 1.",
    ),
    (
        [stage("a", 0, 'dataset_folders = ["a", "b"]', "dataset_weights = [nan, 0.5]")],
        "dataset_weights: is [nan, 0.5]. Each must be a number between 0 and 1.",
    ),
    (
        [stage("a", 0, 'dataset_folders = ["a", "b"]', "dataset_weights = [0.5, 0.4]")],
        "dataset_weights: adds up to 0.9, not 1. Change the weights, so that they do.",
    ),
    (
        [stage("a", 0, 'dataset_folders = ["a", "b"]', "dataset_weights = [0.5, 0.4989]")],
        "dataset_weights: adds up to 0.9989, not 1. Change the weights, so that they do.",
    ),
]


@pytest.mark.parametrize(("stages", "what"), FAULTS, ids=[what.split(".")[0] for _, what in FAULTS])
def test_a_fault_is_refused_by_their_key(file: Path, stages: list[str], what: str) -> None:
    assert refusal(file, *stages) == [f"training.data_stages[0].{what}"]


def test_two_stages_with_one_start_are_an_overlap(file: Path) -> None:
    assert refusal(file, stage("a", 0), stage("b", 0)) == [
        'training.data_stages[1].start_step: is 0, as is that of "a": an overlap. Raise one of the two.'
    ]


def test_a_name_that_stands_twice_is_refused(file: Path) -> None:
    assert refusal(file, stage("a", 0, end=5), stage("a", 5)) == [
        'training.data_stages[1].name: is "a", as is that of data_stages[0]. Give each one of its own.'
    ]


@pytest.mark.parametrize(("name", "ours"), [("5", "stage-5"), ("v1.5", "v1-5"), ("a=b", "a-b")])
def test_a_name_that_overrides_could_not_find_is_changed_and_said(file: Path, name: str, ours: str) -> None:
    assert spans(plan_of(file, stage(name, 0))) == [(ours, 0, 20)]
    assert notes(file, stage(name, 0)) == [f'training.data_stages[0].name: is "{name}", called "{ours}" here.']


def test_problems_of_all_stages_come_at_once(file: Path) -> None:
    stages = [stage("a", 0, "seq_len = 0", end=5), stage("b", 25, "seq_len = 0"), stage("c", 9, 'dataset_type = "x"')]
    assert refusal(file, "dataset_random_seed = -7", *stages) == [
        "training.dataset_random_seed: is -7. It must be a whole number, at least 0.",
        "training.data_stages[1].start_step: is 25, but the run ends at step 20. Lower it, or raise training.steps.",
        "training.data_stages[1].seq_len: is 0. It must be a whole number, at least 1.",
        "training.data_stages[0].seq_len: is 0. It must be a whole number, at least 1.",
        f'training.data_stages[2].dataset_type: is "x". {TYPES}',
    ]


@pytest.mark.parametrize("value", ["5", "[1, 2]"])
def test_stages_that_are_no_tables_are_refused(file: Path, value: str) -> None:
    what = "It must be a list of tables. Write [[training.data_stages]]."
    assert refusal(file, f"data_stages = {value}") == [f"training.data_stages: is {value}. {what}"]


@pytest.mark.parametrize("steps", ["0", "-1", "true", '"x"'])
def test_a_run_of_no_steps_is_refused(file: Path, steps: str) -> None:
    training = f"[training]\nsteps = {steps}\nglobal_batch_size = 8\n"
    assert refusal(file, stage("a", 0), training=training) == [
        f"training.steps: is {steps}. It must be a whole number, at least 1. Write steps = 1000."
    ]


def test_a_last_stage_that_ends_late_is_cut_and_warned_about(file: Path) -> None:
    assert spans(plan_of(file, stage("a", 0, end=25))) == [("a", 0, 20)]
    said = ["training.data_stages[0].end_step: is 25; the run ends before, at step 20."]
    assert notes(file, stage("a", 0, end=25)) == said


@pytest.mark.parametrize(
    ("weights", "total"), [("[0.5, 0.4995]", "0.9995"), ("[0.5, 0.499]", "0.999"), ("[0.5, 0.501]", "1.001")]
)
def test_weights_within_a_thousandth_of_1_are_normalised_and_it_is_said(file: Path, weights: str, total: str) -> None:
    two = stage("a", 0, 'dataset_folders = ["data/web", "data/code"]', f"dataset_weights = {weights}")
    assert notes(file, two) == [f"training.data_stages[0].dataset_weights: adds up to {total}: normalised to 1."]
    shares = plan_of(file, two).stages[0].shares
    assert shares is not None
    assert sum(shares.values()) == 1
    assert float(shares["web"]) == pytest.approx(0.5 / float(total))


def test_weights_that_add_up_in_decimals_are_not_called_normalised(file: Path) -> None:
    three = stage("a", 0, 'dataset_folders = ["a", "b", "c"]', "dataset_weights = [0.1, 0.2, 0.7]")
    assert notes(file, three) == []


def test_without_weights_shares_are_in_proportion_to_size(file: Path) -> None:
    loaded = read(file, stage("a", 0, 'dataset_folders = ["data/web", "data/code"]'))
    assert loaded.config.stages[0].sources == ("web", "code")


@pytest.mark.parametrize(
    ("fields", "sources"),
    [
        (
            ('dataset_type = "nanoset"', 'dataset_folders = ["/a/web", "/b/web"]'),
            {"web": {"kind": "tokens", "path": "/a/web"}, "web-2": {"kind": "tokens", "path": "/b/web"}},
        ),
        (
            ('dataset_type = "nanoset"', 'dataset_folders = ["/data/2024"]'),
            {"source-2024": {"kind": "tokens", "path": "/data/2024"}},
        ),
        (
            ('dataset_type = "huggingface"', "dataset_folders = absent", 'dataset = "c4"', 'dataset_path = "/x/y"'),
            {"c4": {"kind": "huggingface", "dataset": "/x/y"}},
        ),
        (
            ('dataset_type = "preprocessed"', "dataset_folders = absent", 'dataset_path = "/x/pre"'),
            {"pre": {"kind": "huggingface", "dataset": "/x/pre", "tokenised": True}},
        ),
        (
            ('dataset_type = "packed_memmap"', "dataset_folders = absent", 'dataset_path = "/x/packed"'),
            {"packed": {"kind": "tokens", "path": "/x/packed"}},
        ),
        (
            ('dataset_type = "packed_memmap"', 'dataset_folders = ["/x/one", "/x/two"]'),
            {"one": {"kind": "tokens", "path": "/x/one"}, "two": {"kind": "tokens", "path": "/x/two"}},
        ),
    ],
)
def test_each_dataset_type_becomes_a_source(file: Path, fields: tuple[str, ...], sources: dict[str, Any]) -> None:
    loaded = read(file, stage("a", 0, *fields))
    assert loaded.raw["sources"] == sources
    assert loaded.warnings == ()


def test_a_folder_that_several_stages_read_is_one_source(file: Path) -> None:
    assert list(read(file, stage("a", 0, end=5), stage("b", 5)).config.sources) == ["web"]


def test_what_is_not_carried_over_is_named_key_by_key(file: Path) -> None:
    left = ("foo = 1", stage("a", 0, "bar = 2", 'dataset = "c4"'), "[zoo]\nx = 1\n[zoo.y]\nz = [1, 2]\n[[many]]\na = 1")
    assert notes(file, *left) == [
        "training.foo: not carried over (it is 1): nothing here takes it.",
        "training.data_stages[0].bar: not carried over (it is 2): nothing here takes it.",
        'training.data_stages[0].dataset: not carried over (it is "c4"): nothing here takes it.',
        "zoo.x: not carried over (it is 1): nothing here takes it.",
        "zoo.y.z: not carried over (it is [1, 2]): nothing here takes it.",
        "many[0].a: not carried over (it is 1): nothing here takes it.",
    ]


def test_nothing_is_dropped_silently(file: Path) -> None:
    """Every key with an odd value of its own turns up: in our tables, or in a note."""
    text = """
    [job]
    dump_folder = "odd-folder"
    description = "odd-description"
    [optimizer]
    lr = 0.00123
    eps = 1.23e-9
    beta1 = 0.8123
    beta2 = 0.9123
    weight_decay = 0.123
    implementation = "odd-implementation"
    [metrics]
    log_freq = 123
    [checkpoint]
    interval = 1234
    [compile]
    components = ["odd-component"]
    """
    loaded = read(file, "local_batch_size = 3", "max_norm = 1.123", stage("a", 0), text)
    said = repr(loaded.raw) + " ".join(str(note) for note in loaded.warnings)
    for odd in ("folder", "description", "implementation", "component"):
        assert f"odd-{odd}" in said
    for number in (0.00123, 1.23e-9, 0.8123, 0.9123, 0.123, 123, 1234, 1.123):
        assert repr(number) in said
    assert loaded.config.engine.micro_batch_size == 3


def test_a_batch_per_rank_needs_the_world_size(file: Path) -> None:
    training = "[training]\nsteps = 20\nlocal_batch_size = 4\n"
    what = "4 rows on each rank: how many ranks? Give --world-size 8, or training.global_batch_size."
    assert refusal(file, stage("a", 0), training=training) == [f"training.local_batch_size: {what}"]
    assert plan_of(file, stage("a", 0), training=training, world_size=8).stages[0].batch_size == 32
    pairs = "[parallelism]\ntensor_parallel_degree = 2\n"
    assert plan_of(file, stage("a", 0), pairs, training=training, world_size=8).stages[0].batch_size == 16
    thirds = "[parallelism]\ntensor_parallel_degree = 3\n"
    assert refusal(file, stage("a", 0), thirds, training=training, world_size=8) == [
        (
            "parallelism: 3 ranks share each row (tensor, context and pipeline degrees), which does not divide "
            "--world-size 8. Change one of them."
        )
    ]


@pytest.mark.parametrize(
    ("lines", "what"),
    [
        ("steps = 20\nlocal_batch_size = 'x'", 'local_batch_size: is "x". It must be a whole number, at least 1.'),
        ("steps = 20\nglobal_batch_size = 0", "global_batch_size: is 0. It must be a whole number, at least 1."),
    ],
)
def test_a_batch_size_that_is_none_is_refused_by_their_key(file: Path, lines: str, what: str) -> None:
    assert refusal(file, stage("a", 0), training=f"[training]\n{lines}\n", world_size=2) == [f"training.{what}"]


def their_multiplier(step: int, steps: int, warmup: int, ratio: float | None, shape: str, to: float) -> float:
    """Their schedule as they write it: the run has one virtual step more, so that it does not end at its lowest."""
    decay = steps - warmup if ratio is None else min(round(steps * ratio), steps - warmup)
    stable = steps + 1 - decay
    if step < warmup:
        return (step + 1) / warmup
    if step < stable:
        return 1.0
    part = (step + 1 - stable) / decay
    fall = {"linear": 1 - part, "sqrt": 1 - math.sqrt(part), "cosine": (1 + math.cos(math.pi * part)) / 2}
    return to + (1 - to) * fall[shape]


@pytest.mark.parametrize("shape", ["linear", "cosine", "sqrt"])
@pytest.mark.parametrize("ratio", [None, 0.0, 0.3, 0.95])
@pytest.mark.parametrize("to", [0.0, 0.1])
def test_the_learning_rate_is_theirs_at_every_step(file: Path, shape: str, ratio: float | None, to: float) -> None:
    scheduler = f'[lr_scheduler]\nwarmup_steps = 3\ndecay_type = "{shape}"\nmin_lr_factor = {to}\n'
    scheduler += "" if ratio is None else f"decay_ratio = {ratio}\n"
    training = f"{scheduler}[training]\nsteps = 20\nglobal_batch_size = 8\n"
    plan = plan_of(file, stage("a", 0), training=training)
    expected = [their_multiplier(step, 20, 3, ratio, shape, to) for step in range(20)]
    assert [plan.lr_multiplier(step) for step in range(20)] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("scheduler", "said"),
    [
        ("", "warmup_steps: is absent, which means 200, over the run's 20 steps: taken as 20."),
        ("warmup_steps = 30", "warmup_steps: is 30, over the run's 20 steps: taken as 20."),
        (
            "warmup_steps = 10\ndecay_ratio = 0.75",
            "decay_ratio: makes 15 steps, over the 10 after the warm-up: taken as 10.",
        ),
    ],
)
def test_a_schedule_longer_than_the_run_is_cut_and_it_is_said(file: Path, scheduler: str, said: str) -> None:
    training = f"[lr_scheduler]\n{scheduler}\n[training]\nsteps = 20\nglobal_batch_size = 8\n"
    assert notes(file, stage("a", 0), training=training) == [f"lr_scheduler.{said}"]


@pytest.mark.parametrize(
    ("table", "what"),
    [
        ("[lr_scheduler]\nwarmup_steps = -1", "warmup_steps: is -1. It must be a whole number, at least 0."),
        (
            '[lr_scheduler]\nwarmup_steps = 2\ndecay_type = "exp"',
            'decay_type: is "exp". Write "linear", "cosine" or "sqrt".',
        ),
        (
            "[lr_scheduler]\nwarmup_steps = 2\ndecay_ratio = 2",
            "decay_ratio: is 2. It must be between 0 and 1. Write decay_ratio = 0.2.",
        ),
        ('[optimizer]\nname = "Adam"', 'name: is "Adam". Write AdamW or Muon.'),
    ],
)
def test_what_their_optimizer_and_schedule_cannot_be_is_refused(file: Path, table: str, what: str) -> None:
    training = f"{table}\n[training]\nsteps = 20\nglobal_batch_size = 8\n"
    where = table.split("]")[0].removeprefix("[")
    assert refusal(file, stage("a", 0), training=training) == [f"{where}.{what}"]


def test_a_model_that_is_not_known_asks_for_a_size_on_the_command_line(file: Path) -> None:
    model = '[model]\nname = "llama3"\nflavor = "1B"\n'
    assert refusal(file, stage("a", 0), model) == [
        'model.flavor: no shape is known for "llama3" "1B". Give one on the command line: model.size=1b.',
        'model: has no size. Write size = "125m", or layers and width, or init = "path/to/checkpoint".',
    ]
    assert read(file, stage("a", 0), model, overrides=["model.size=1b"]).config.model.size == "1b"


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
    assert converted.warnings == ()
    assert plan_json(make_plan(converted.config)) == plan_json(plan)


def test_the_three_configs_keep_their_seeds_shares_and_row_lengths() -> None:
    plan = make_plan(load(CONFIGS / "data_stages_test.toml", world_size=1).config)
    assert [stage.seed for stage in plan.stages] == [1234, 5678, 1234]
    assert [float(stage.shares["web"]) for stage in plan.stages if stage.shares] == [0.8, 0.3, 0.5]
    assert [stage.seq_len for stage in plan.stages] == [512, 512, 1024]
    ablation = make_plan(load(CONFIGS / "data_stages_ablation_test.toml", world_size=1).config)
    assert [stage.seed for stage in ablation.stages] == [1234, 9999]
