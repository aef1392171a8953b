"""Documents by a number beside their text, from files of every kind."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.plans import config_of
from trivium.errors import PlanError
from trivium.plan.make import make_plan
from trivium.plan.show import source_list

ROWS: list[dict[str, Any]] = [{"text": f"document {number}", "grade": number / 2, "id": number} for number in range(12)]


def write_rows(folder: Path, kind: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The keys of a source of them."""
    folder.mkdir()
    if kind == "jsonl":
        (folder / "web.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        return {"kind": "text", "path": str(folder)}
    if kind == "parquet":
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "web.parquet", row_group_size=5)
        return {"kind": "text", "path": str(folder)}
    import datasets

    datasets.Dataset.from_list(rows).save_to_disk(str(folder / "saved"))
    return {"kind": "huggingface", "dataset": str(folder / "saved")}


def planned(source: dict[str, Any], score: dict[str, Any]) -> Any:
    tables = {"tokenizer": {"kind": "bytes"}, "sources": {"web": {**source, "score": score}}}
    return make_plan(config_of([{"steps": 1}], **tables), prepare=True)


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "huggingface"])
@pytest.mark.parametrize(
    ("score", "kept"),
    [({"at_least": 2.5}, range(5, 12)), ({"below": 2.5}, range(5)), ({"at_least": 1, "below": 2}, range(2, 4))],
    ids=["least", "below", "both"],
)
def test_the_documents_of_a_range_stay(kind: str, score: dict[str, float], kept: range, tmp_path: Path) -> None:
    source = write_rows(tmp_path / "data", kind, ROWS)
    plan = planned(source, {"column": "grade", **score})
    expected = [ROWS[number]["text"] for number in kept]
    opened = plan.sources["web"]
    assert opened.documents == len(expected)
    assert opened.tokens == sum(len(text) + 1 for text in expected)


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "huggingface"])
def test_a_document_without_a_number_is_a_bad_line(kind: str, tmp_path: Path) -> None:
    rows = [*ROWS, {"text": "nobody graded this", "grade": None, "id": 12}]
    source = write_rows(tmp_path / "data", kind, rows)
    with pytest.raises(PlanError, match='1 no number in "grade"'):
        planned(source, {"column": "grade", "at_least": 0})
    assert planned({**source, "bad_lines": 0.5}, {"column": "grade", "at_least": 0}).sources["web"].documents == 12


def test_another_range_is_another_content_and_the_plan_names_it(tmp_path: Path) -> None:
    source = write_rows(tmp_path / "data", "jsonl", ROWS)
    one, other = (planned(source, {"column": "grade", "at_least": least}) for least in (2, 3))
    assert one.sources["web"].content != other.sources["web"].content
    (where,) = list(source_list(one).columns[2].cells)
    assert str(where).endswith("(grade from 2)")


@pytest.mark.parametrize("kind", ["parquet", "huggingface"])
def test_a_column_that_is_not_there_is_named(kind: str, tmp_path: Path) -> None:
    source = write_rows(tmp_path / "data", kind, ROWS)
    with pytest.raises(PlanError, match='no column "score"'):
        planned(source, {"at_least": 1})


def test_plain_text_has_no_scores(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/a.txt").write_text("words")
    with pytest.raises(PlanError, match="is plain text, which has no scores"):
        planned({"kind": "text", "path": str(tmp_path / "data")}, {"at_least": 1})
