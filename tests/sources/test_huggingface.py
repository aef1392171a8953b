"""Sources that are Hugging Face datasets: saved to disk, folders of data files, or tokenised already."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.prepared import STAGE, TEXTS, THREE_STEPS, plan_of, prepared, targets_of, unprepared_plan
from tests.support.texts import EOS, write_parquet
from trivium.errors import PlanError
from trivium.tokenfiles.open import open_source


@pytest.fixture
def datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    module = pytest.importorskip("datasets")
    monkeypatch.setattr(module.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    module.disable_progress_bars()
    return module


def saved(datasets: Any, folder: Path, columns: dict[str, Any]) -> str:
    datasets.Dataset.from_dict(columns).save_to_disk(str(folder))
    return str(folder)


@pytest.mark.filterwarnings("ignore")
def test_a_dataset_saved_to_disk_is_prepared(tmp_path: Path, datasets: Any) -> None:
    rows = datasets.Dataset.from_dict({"text": [*TEXTS, None, ""], "id": list(range(22))})
    rows.select(range(21, -1, -1)).save_to_disk(str(tmp_path / "saved"))
    plan = plan_of({"kind": "huggingface", "dataset": str(tmp_path / "saved"), "bad_lines": 0.1})
    assert plan.sources["web"].documents == len(TEXTS)
    datasets.DatasetDict({"train": rows, "test": rows.select([0])}).save_to_disk(str(tmp_path / "both"))
    plan = plan_of({"kind": "huggingface", "dataset": str(tmp_path / "both"), "split": "test"})
    assert plan.sources["web"].documents == 1
    with pytest.raises(PlanError, match=r'has no split "dev", but train, test\. Name one of these\.'):
        plan_of({"kind": "huggingface", "dataset": str(tmp_path / "both"), "split": "dev"})
    with pytest.raises(PlanError, match=r'there is no column "body", but text, id\. Write column = "text"\.'):
        plan_of({"kind": "huggingface", "dataset": str(tmp_path / "saved"), "column": "body"})


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("datasets")
def test_a_folder_of_data_files_is_prepared_through_datasets(tmp_path: Path) -> None:
    write_parquet(tmp_path / "files" / "train.parquet", TEXTS)
    plan = plan_of({"kind": "huggingface", "dataset": str(tmp_path / "files")})
    assert plan.sources["web"].documents == len(TEXTS)
    part = plan_of({"kind": "huggingface", "dataset": str(tmp_path / "files"), "split": "train[12:15]"})
    assert sorted(targets_of(part)) == sorted(byte for text in TEXTS[12:15] for byte in [*text.encode()[1:], EOS])


@pytest.mark.filterwarnings("ignore")
def test_a_tokenised_dataset_keeps_its_labels_and_documents(tmp_path: Path, datasets: Any, own_cache: Path) -> None:
    columns = {
        "input_ids": [[5, 6, 7, 8, 9], [1, 2, 3, 0, 0]],
        "labels": [[-100, 6, 7, -100, 9], [-100, 2, 3, -100, -100]],
        "position_ids": [[0, 1, 2, 0, 1], [0, 1, 2, 0, 0]],
    }
    folder = saved(datasets, tmp_path / "saved", columns)
    plan_of({"kind": "huggingface", "dataset": folder, "tokenised": True}, [{**STAGE, "seq_len": 4}])
    (file,) = open_source(prepared(own_cache)[0])
    assert file.tokens.tolist() == [5, 6, 7, 8, 9, 1, 2, 3]
    assert file.ends.tolist() == [3, 5, 8]
    assert file.loss is not None
    assert file.loss.tolist() == [0, 1, 1, 0, 1, 0, 1, 1]
    assert file.dtype.name == "uint32"


@pytest.mark.filterwarnings("ignore")
def test_inputs_without_labels_are_all_learnt(tmp_path: Path, datasets: Any, own_cache: Path) -> None:
    columns = {"inputs": [[5, 6], [7]], "attention_mask": [[1, 0], [1]]}
    folder = saved(datasets, tmp_path / "saved", columns)
    plan_of({"kind": "huggingface", "dataset": folder, "tokenised": True}, [THREE_STEPS])
    (file,) = open_source(prepared(own_cache)[0])
    assert (file.tokens.tolist(), file.ends.tolist()) == ([5, 7], [1, 2])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            {"input_ids": [[1, 2], [3, 4]], "labels": [[1, 2], [4, -100]]},
            (
                "row 1: its label 0 is 4, and the token there is 3. Labels are at their own tokens, not shifted, "
                "with -100 for what has no loss: save them so."
            ),
        ),
        (
            {"input_ids": [[1, 2], [3, 4]], "labels": [[1, 2], [3]]},
            "row 1: labels and input_ids differ in length. Each token has one of each.",
        ),
        ({"ids": [[1]]}, "tokenised = true: there is neither input_ids nor inputs, but ids."),
        ({"input_ids": ["x"]}, 'column "input_ids" holds string, and lists of integers are needed.'),
    ],
    ids=["shifted", "uneven", "missing", "text"],
)
def test_a_tokenised_dataset_that_does_not_fit_is_refused(
    tmp_path: Path, datasets: Any, columns: dict[str, Any], message: str
) -> None:
    folder = saved(datasets, tmp_path / "saved", columns)
    with pytest.raises(PlanError) as error:
        plan_of({"kind": "huggingface", "dataset": folder, "tokenised": True})
    assert str(error.value) == f"sources.web: {message}"


@pytest.mark.filterwarnings("ignore")
def test_a_dataset_on_disk_is_a_gap_until_it_is_prepared(tmp_path: Path, datasets: Any, own_cache: Path) -> None:
    source = {"kind": "huggingface", "dataset": saved(datasets, tmp_path / "saved", {"text": TEXTS})}
    assert str(unprepared_plan(source).gaps[0]).startswith(
        f"sources.web: {tmp_path}/saved is not prepared yet (3 files"
    )
    assert not any(own_cache.iterdir())
    plan_of(source)
    assert unprepared_plan(source).sources["web"].documents == len(TEXTS)
    saved(datasets, tmp_path / "saved", {"text": TEXTS[1:]})
    assert "web" not in unprepared_plan(source).sources


@pytest.mark.filterwarnings("ignore")
def test_a_hub_that_cannot_be_reached_is_told_from_a_wrong_name(datasets: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(PlanError) as caught:
        plan_of({"kind": "huggingface", "dataset": "some-org/some-data"})
    assert str(caught.value) == (
        "sources.web: some-org/some-data: is not on disk: the Hub cannot be reached from here, and it was not fetched "
        "before. Run trivium prepare CONFIG where there is a network, with HF_HOME and TRIVIUM_CACHE in folders that "
        "this machine reads too."
    )
