"""torchtitan's data fields: every rule about stages, folders, weights and datasets, in their own key paths."""

from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from tests.support.dialects import spans
from tests.support.torchtitan import notes, plan_of, read, refusal, stage
from trivium.config.dialects.translation import Notes

TYPES = 'Write one of "huggingface", "nanoset", "preprocessed" or "packed_memmap".'
NAMES = 'Write one of "c4", "c4_validation" or "c4_test".'
C4 = {"kind": "stream", "dataset": "allenai/c4", "subset": "en", "split": "train", "add": ["bos", "eos"]}


def test_without_stages_there_is_one_stage_default_from_training(file: Path) -> None:
    loaded = read(file, 'dataset = "c4"', "seq_len = 128", "dataset_random_seed = 7")
    (only,) = loaded.config.stages
    assert (only.name, only.steps, only.seq_len, only.seed) == ("default", 20, 128, 7)
    assert loaded.raw["sources"] == {"c4": C4}
    assert loaded.notes == Notes()


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


def test_a_stage_seed_falls_back_to_that_of_training_and_then_to_their_default(file: Path) -> None:
    own = stage("a", 0, "dataset_random_seed = 9", end=5)
    assert [each.seed for each in plan_of(file, "dataset_random_seed = 7", own, stage("b", 5)).stages] == [9, 7]
    assert [each.seed for each in plan_of(file, own, stage("b", 5), "[debug]\nseed = 3").stages] == [9, 1234]


def test_with_stages_from_step_0_a_note_lists_the_overridden_fields(file: Path) -> None:
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
        [stage("a", 0, 'dataset_folders = ["a", "  "]')],
        'dataset_folders: is ["a", "  "]. It must be a list of folders. Write dataset_folders = ["/data/web"].',
    ),
    (
        [stage("a", 0, 'dataset_type = "huggingface"', "dataset_folders = absent", 'dataset = " "')],
        f'dataset: is " ". It must be the name of a dataset. {NAMES}',
    ),
    (
        [stage("a", 0, 'dataset_type = "huggingface"', "dataset_folders = absent", 'dataset = "c5"')],
        (
            f'dataset: is "c5". torchtitan registers no such dataset. {NAMES} '
            'Or say where it is: dataset_path = "/data/c5".'
        ),
    ),
    (
        [stage("a", 0, "dataset_weights = []")],
        "dataset_weights: is [], but there is 1 source. Write a list with one weight for each.",
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
        f"dataset: is 5. It must be the name of a dataset. {NAMES}",
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


def test_two_stages_with_one_name_are_refused(file: Path) -> None:
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
            {"c4": {**C4, "dataset": "/x/y"}},
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
    assert loaded.notes == Notes()


HUB = ('dataset_type = "huggingface"', "dataset_folders = absent")
C4_TEST = {"kind": "huggingface", "dataset": "tests/assets/c4_test", "split": "train", "add": ["bos", "eos"]}
FOUND = (
    'is "c4_test": read from tests/assets/c4_test, below the folder of this command. dataset_path names another place.'
)


def test_the_datasets_that_they_register_are_read_from_where_theirs_are(file: Path) -> None:
    names = {"c4": C4, "c4_validation": {**C4, "split": "validation"}, "C4_Test": C4_TEST}
    for name, source in names.items():
        assert read(file, stage("a", 0, *HUB, f'dataset = "{name}"')).raw["sources"] == {name: source}
    stages = [stage("a", 0, *HUB, 'dataset = "c4_test"', end=5), stage("b", 5, *HUB, 'dataset = "c4_test"')]
    assert notes(file, *stages) == [f"training.data_stages[0].dataset: {FOUND}"]
    moved = stage("a", 0, *HUB, 'dataset = "c4_test"', 'dataset_path = "here"')
    assert read(file, moved).raw["sources"] == {"c4_test": {**C4_TEST, "dataset": "here"}}
    assert notes(file, moved) == []


def test_without_a_dataset_training_reads_their_default(file: Path) -> None:
    loaded = read(file, "")
    assert loaded.raw["sources"] == {"c4_test": C4_TEST}
    assert loaded.raw["tokenizer"] == {"path": "./tests/assets/tokenizer"}


def test_a_name_of_ones_own_is_read_from_its_path_and_that_is_said(file: Path) -> None:
    own = stage("a", 0, *HUB, 'dataset = "wiki"', 'dataset_path = "/d/wiki"')
    assert read(file, own).raw["sources"] == {
        "wiki": {"kind": "huggingface", "dataset": "/d/wiki", "add": ["bos", "eos"]}
    }
    said = 'is "wiki", which is not a name of torchtitan\'s own: the column text of /d/wiki.'
    assert notes(file, own) == [f"training.data_stages[0].dataset: {said}"]


def test_texts_of_qwen3_have_no_bos(file: Path) -> None:
    qwen = '[model]\nname = "qwen3"\nflavor = "0.6B"\n'
    assert read(file, stage("a", 0, *HUB, 'dataset = "c4"'), qwen).raw["sources"]["c4"]["add"] == ["eos"]


def test_a_field_that_a_dataset_type_does_not_read_decides_nothing(file: Path) -> None:
    loaded = read(file, stage("a", 0, 'dataset = "c4"'))
    assert [str(note) for note in loaded.notes.decides_nothing] == [
        (
            'their.toml: training.data_stages[0].dataset: has no effect here (it is "c4"): '
            'dataset_type = "nanoset" does not read it.'
        )
    ]


def test_a_folder_that_several_stages_read_is_one_source(file: Path) -> None:
    assert list(read(file, stage("a", 0, end=5), stage("b", 5)).config.sources) == ["web"]


def test_an_empty_list_of_weights_is_told_beside_a_blank_folder(file: Path) -> None:
    said = refusal(file, stage("a", 0, 'dataset_folders = [" "]', "dataset_weights = []"))
    assert said == [
        (
            'training.data_stages[0].dataset_folders: is [" "]. It must be a list of folders. '
            'Write dataset_folders = ["/data/web"].'
        ),
        (
            "training.data_stages[0].dataset_weights: is []. "
            "Write a list with one weight for each source, or leave it out."
        ),
    ]
