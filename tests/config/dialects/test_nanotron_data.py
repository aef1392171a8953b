"""nanotron's data stages: their steps, their folders, weights and datasets, and what is wrong with them."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.dialects import notes, plan_of, refusal, spans
from tests.support.nanotron import BASE, DATASET, WEB, their_problems, written
from trivium.config.dialects.nanotron_data import different_parts
from trivium.config.load import load
from trivium.errors import ConfigError


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


def test_documents_are_kept_apart_where_theirs_are(file: Path) -> None:
    assert not plan_of(written(file)).stages[0].config.document_mask
    masked = written(file, {("model", "model_config", "_use_doc_masking"): True})
    assert plan_of(masked).stages[0].config.document_mask
    for mask, apart in (("document", True), ("causal", False)):
        written(file, {("model", "model_config", "flex_attention_mask"): mask})
        assert plan_of(file).stages[0].config.document_mask is apart


def test_a_stage_after_the_end_is_left_out(file: Path) -> None:
    written(file, {("data_stages", 1, "start_training_step"): 21})
    assert spans(plan_of(file)) == [("first", 0, 20)]
    assert notes(file)[0] == (
        "data_stages[1].start_training_step: is 21, and the run ends with step 20: "
        "the stage is not reached, and left out here."
    )


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


def test_a_folder_that_is_a_number_is_one_problem(tmp_path: Path) -> None:
    file = tmp_path / "their.yaml"
    file.write_text(
        "tokens: {train_steps: 10, sequence_length: 16, micro_batch_size: 1, batch_accumulation_per_replica: 1}\n"
        "parallelism: {dp: 1}\n"
        "data_stages: [{name: a, start_training_step: 1, data: {dataset: {dataset_folder: [1.5, web]}}}]\n"
    )
    said = 'data_stages[0].data.dataset.dataset_folder: is [1.5, "web"]. '
    assert [one for one in refusal(file) if one.startswith(said)]


FAULTS: list[tuple[tuple[str | int, ...], Any, str]] = [
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
]


@pytest.mark.parametrize(
    ("path", "value", "what"), FAULTS, ids=[f"{number} {fault[2].split(':')[0]}" for number, fault in enumerate(FAULTS)]
)
def test_a_fault_is_refused_by_their_key(file: Path, path: tuple[str | int, ...], value: Any, what: str) -> None:
    assert their_problems(written(file, {path: value})) == [what]


@pytest.mark.parametrize(
    "changes",
    [
        {("model", "model_config"): 3, ("model", "init_method"): {"path": "weights"}},
        {DATASET: {"dataset_folder": [["a"], "b"], "dataset_read_path": ["c", "d"]}},
    ],
)
def test_what_is_no_table_or_no_path_is_refused(file: Path, changes: dict[tuple[str | int, ...], Any]) -> None:
    with pytest.raises(ConfigError):
        load(written(file, changes))
