"""Sources of text, datasets and conversations, as plans and loaders see them."""

import json
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.corpus import make_config
from tests.support.texts import EOS, write_lines, write_parquet
from tests.support.writers import write_megatron
from trivium.errors import PlanError
from trivium.loader.loader import Loader
from trivium.plan.make import make_plan
from trivium.plan.plan import Plan
from trivium.sources.open import open_sources
from trivium.tokenfiles.open import open_source

TEXTS = [f"text {number} " * 5 for number in range(20)]
BYTES = {"kind": "bytes"}
STAGE: dict[str, Any] = {"epochs": 1, "seq_len": 64, "batch_size": 1}
THREE_STEPS: dict[str, Any] = {"steps": 3, "seq_len": 64, "batch_size": 1}
TALK = [
    [("user", "two and two?"), ("assistant", "four")],
    [("user", "and one more?"), ("assistant", "five"), ("user", "thanks"), ("assistant", "any time")],
]


def plan_of(
    source: dict[str, Any], stages: Sequence[dict[str, Any]] = (STAGE,), tokenizer: dict[str, str] | None = None
) -> Plan:
    tables = {"tokenizer": BYTES if tokenizer is None else tokenizer}
    return make_plan(make_config({"web": source}, stages, **tables), prepare=True)


def unprepared_plan(source: dict[str, Any]) -> Plan:
    return make_plan(make_config({"web": source}, [THREE_STEPS], tokenizer=BYTES))


def targets_of(plan: Plan) -> list[int]:
    """All targets that are learnt, in the order of the run."""
    found = []
    for _, batch in Loader(plan, prefetch=0).batches():
        found += batch.targets[batch.targets != -100].tolist()
    return found


def tokens_in(folder: Path) -> list[int]:
    return [token for file in open_source(folder) for token in file.tokens.tolist()]


def prepared(cache: Path) -> list[Path]:
    return sorted((cache / "prepared").iterdir())


def test_megatron_s_prefix_is_found_by_the_plan_and_read(tmp_path: Path) -> None:
    write_megatron(tmp_path / "mega.bin", [[[5, 6, 7, 8]], [[1, 2, 3, 4]]])
    plan = plan_of({"kind": "tokens", "path": str(tmp_path / "mega")}, [{**STAGE, "seq_len": 4}])
    assert (plan.gaps, plan.sources["web"].documents) == ((), 2)
    assert sorted(targets_of(plan)) == [2, 3, 4, 6, 7, 8]


def test_text_is_prepared_once_and_read_as_token_files(tmp_path: Path, own_cache: Path) -> None:
    write_lines(tmp_path / "a.jsonl", TEXTS)
    plan = plan_of({"kind": "text", "path": str(tmp_path)})
    assert plan.sources["web"].documents == len(TEXTS)
    (folder,) = prepared(own_cache)
    stamp = (folder / "manifest.json").stat().st_mtime_ns
    plan_of({"kind": "text", "path": str(tmp_path)})
    assert prepared(own_cache) == [folder]
    assert (folder / "manifest.json").stat().st_mtime_ns == stamp
    learnt = targets_of(plan)
    # Every document has a target for each of its bytes but the first, and for its end.
    assert sorted(learnt) == sorted(byte for text in TEXTS for byte in [*text.encode()[1:], EOS])


def test_what_decides_the_tokens_decides_the_place(tmp_path: Path, own_cache: Path) -> None:
    write_lines(tmp_path / "in/a.jsonl", TEXTS)
    source = {"kind": "text", "path": str(tmp_path / "in")}
    plan_of(source)
    plan_of({**source, "add": ["bos"]})
    assert len(prepared(own_cache)) == 2
    (tmp_path / "in").rename(tmp_path / "moved")
    plan_of({**source, "path": str(tmp_path / "moved"), "bad_lines": 0.5})
    assert len(prepared(own_cache)) == 2
    write_lines(tmp_path / "moved/a.jsonl", TEXTS[:-1])
    plan_of({**source, "path": str(tmp_path / "moved")})
    assert len(prepared(own_cache)) == 3


def test_a_folder_of_an_older_version_is_prepared_again(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = {"kind": "text", "path": str(write_lines(tmp_path / "a.jsonl", TEXTS))}
    with monkeypatch.context() as older:
        older.setattr("trivium.prepare.folder.VERSION", 1)
        plan_of(source)
    (folder,) = prepared(own_cache)
    summary = json.loads((folder / "prepared.json").read_text())
    summary["left_out"] = summary.pop("skipped")  # as that version wrote it
    (folder / "prepared.json").write_text(json.dumps(summary))
    assert "web" not in unprepared_plan(source).sources
    assert plan_of(source).sources["web"].documents == len(TEXTS)
    assert len(prepared(own_cache)) == 2


def test_text_without_a_tokenizer_is_an_error_that_says_what_to_write(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", TEXTS)
    sources = {name: {"kind": "text", "path": str(tmp_path)} for name in ("web", "code", "books")}
    with pytest.raises(PlanError) as error:
        make_plan(make_config(sources, [STAGE]))
    command = "trivium tokenizer train CONFIG --out FOLDER makes one."
    needed = "Needed by sources.web, sources.code and sources.books."
    assert str(error.value) == (
        'tokenizer: is missing. Write tokenizer.path = "tokenizer.json", or tokenizer.kind = "bytes". '
        f"{command} {needed}"
    )
    with pytest.raises(PlanError) as error:
        make_plan(make_config(sources, [STAGE], tokenizer={"path": "nowhere.json"}))
    fix = f"Write the path of a tokenizer.json or its folder. {command}"
    assert str(error.value) == f"tokenizer.path: nowhere.json does not exist. {fix} {needed}"
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(PlanError) as error:
        make_plan(make_config(sources, [STAGE], tokenizer={"path": str(tmp_path / "broken.json")}))
    assert str(error.value).startswith(f"tokenizer: {tmp_path / 'broken.json'}: ")
    assert str(error.value).endswith(needed)
    assert "tokenizer train" not in str(error.value)


@pytest.mark.parametrize(
    ("source", "gap"),
    [
        ({"kind": "text", "path": "nowhere"}, "nowhere does not exist"),
        ({"kind": "chat", "path": "nowhere.jsonl"}, "nowhere.jsonl does not exist"),
        (
            {"kind": "huggingface", "dataset": "some/where"},
            "some/where is not on disk, and trivium prepare has not fetched it",
        ),
    ],
    ids=["text", "chat", "huggingface"],
)
def test_a_source_that_is_not_there_is_a_gap_of_the_plan(source: dict[str, Any], gap: str) -> None:
    plan = unprepared_plan(source)
    assert str(plan.gaps[0]) == f"sources.web: {gap}: its size and epochs are not known."


# Plans that prepare nothing.


def refused(plan: Plan) -> str:
    with pytest.raises(PlanError) as error:
        Loader(plan)
    return str(error.value)


def gap_of(where: object, size: str = "") -> str:
    return (
        f"sources.web: {where} is not prepared yet{size}: its size and epochs are not known. "
        "Run trivium prepare CONFIG, or trivium plan --prepare CONFIG."
    )


def test_a_plan_of_unprepared_text_says_how_much_there_is_and_reads_none_of_it(tmp_path: Path, own_cache: Path) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).touch()
        os.truncate(tmp_path / name, 1 << 42)  # four terabytes that take no room: nobody reads these in a test
    plan = unprepared_plan({"kind": "text", "path": str(tmp_path)})
    gap = gap_of(tmp_path, " (2 files, 8.8T bytes)")
    assert (list(plan.sources), [str(each) for each in plan.gaps]) == ([], [gap])
    assert not any(own_cache.iterdir())
    assert refused(plan) == f"{gap}\nthe plan is not complete, so that nothing can be read yet."


@pytest.mark.parametrize(
    ("source", "where", "size"),
    [
        ({"kind": "chat", "path": "talk.jsonl"}, "talk.jsonl", " (1 file, 290 bytes)"),
        ({"kind": "chat", "path": "talk.jsonl", "start": 1}, "talk.jsonl", " (1 file, 290 bytes)"),
        ({"kind": "chat", "task": "jsonl", "path": "talk.jsonl"}, "talk.jsonl", " (1 file, 290 bytes)"),
        ({"kind": "chat", "task": "spelling", "size": 9}, "task spelling", ""),
    ],
    ids=["chat", "some-of-chat", "task-of-a-file", "generated"],
)
def test_every_kind_is_a_gap_until_it_is_prepared_and_then_opens(
    talk: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch, source: dict[str, Any], where: str, size: str
) -> None:
    monkeypatch.chdir(talk.parent)
    assert str(unprepared_plan(source).gaps[0]) == gap_of(where, size)
    assert not any(own_cache.iterdir())
    prepared_once = plan_of(source, [THREE_STEPS])
    opened = unprepared_plan(source)
    assert (opened.gaps, opened.fingerprint(3)) == ((), prepared_once.fingerprint(3))


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


def test_text_that_changed_since_it_was_prepared_is_a_gap(tmp_path: Path) -> None:
    source = {"kind": "text", "path": str(write_lines(tmp_path / "a.jsonl", TEXTS))}
    plan_of(source)
    assert not unprepared_plan(source).gaps
    write_lines(tmp_path / "a.jsonl", TEXTS[1:])
    assert str(unprepared_plan(source).gaps[0]).startswith(f"sources.web: {tmp_path}/a.jsonl is not prepared yet")


def test_a_preparation_that_was_broken_off_is_a_gap(tmp_path: Path, own_cache: Path) -> None:
    source = {"kind": "text", "path": str(write_lines(tmp_path / "a.jsonl", TEXTS))}
    plan_of(source)
    (prepared(own_cache)[0] / ".prepare").mkdir()
    assert str(unprepared_plan(source).gaps[0]).startswith(f"sources.web: {tmp_path}/a.jsonl is not prepared yet")
    plan_of(source)
    assert not unprepared_plan(source).gaps


def test_a_damaged_file_in_the_cache_is_deleted_with_its_folder(talk: Path, own_cache: Path) -> None:
    source = {"kind": "chat", "path": str(talk)}
    plan_of(source)
    (folder,) = prepared(own_cache)
    os.truncate(folder / "00000.ds.loss", 3)
    with pytest.raises(PlanError) as error:
        plan_of(source)
    said = str(error.value)
    assert re.fullmatch(
        rf"sources\.web: {folder}/00000\.ds\.loss: has 3 bytes, and 00000\.ds has \d+ tokens, one byte each\. "
        rf"Delete {folder}: trivium prepares it again\.",
        said,
    ), said
    shutil.rmtree(folder)
    assert plan_of(source).sources["web"].documents == len(TALK)


# Hugging Face datasets.


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


# Conversations.


def conversation(turns: Sequence[tuple[str, str]]) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": content} for role, content in turns]}


@pytest.fixture
def talk(tmp_path: Path) -> Path:
    lines = [json.dumps(conversation(turns)) for turns in TALK]
    (tmp_path / "talk.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path / "talk.jsonl"


def spoken(targets: Sequence[int]) -> str:
    return bytes(token for token in targets if token < 256).decode()


def test_a_conversation_is_learnt_where_the_assistant_speaks(talk: Path) -> None:
    plan = plan_of({"kind": "chat", "path": str(talk)})
    learnt = targets_of(plan)
    assert sorted(spoken(learnt)) == sorted("four" + "five" + "any time")
    assert plan.stages[0].uses["web"].loss_tokens == len(learnt)


@pytest.mark.parametrize(
    ("of_source", "of_stage", "all_learnt"),
    [
        ("assistant", None, False),
        ("all", None, True),
        ("assistant", "all", True),
        ("all", "assistant", False),
        ("all", "all", True),
    ],
)
def test_the_stage_decides_what_is_learnt_then_the_source(
    talk: Path, of_source: str, of_stage: str | None, all_learnt: bool
) -> None:
    stage = {**STAGE, **({} if of_stage is None else {"loss_on": of_stage})}
    plan = plan_of({"kind": "chat", "path": str(talk), "loss_on": of_source}, [stage])
    learnt = targets_of(plan)
    assert (
        "two and two?" in "".join(sorted(spoken(learnt))) or "q" in spoken(learnt) or len(learnt) > 40
    ) == all_learnt
    assert plan.stages[0].uses["web"].loss_tokens == len(learnt)


def test_what_is_learnt_changes_no_row(talk: Path) -> None:
    plans = [plan_of({"kind": "chat", "path": str(talk), "loss_on": each}) for each in ("all", "assistant")]
    rows = [np.concatenate([batch.tokens for _, batch in Loader(plan, prefetch=0).batches()]) for plan in plans]
    assert np.array_equal(rows[0], rows[1])
    assert plans[0].fingerprint(0) == plans[1].fingerprint(0)
    assert plans[0].fingerprint(1) != plans[1].fingerprint(1)


def test_some_of_the_conversations_may_be_taken(talk: Path) -> None:
    assert plan_of({"kind": "chat", "path": str(talk), "start": 1}).sources["web"].documents == 1
    assert spoken(targets_of(plan_of({"kind": "chat", "path": str(talk), "stop": 1}))) == "four"


def test_malformed_conversations_are_counted_like_bad_lines(talk: Path) -> None:
    with open(talk, "a") as file:
        file.write(json.dumps(conversation([("user", "hello?")])) + "\n" + '{"messages": []}\nbroken\n')
    with pytest.raises(PlanError) as error:
        plan_of({"kind": "chat", "path": str(talk)})
    assert str(error.value) == (
        "sources.web: web: 3 of 5 lines hold no document, 60.00%: over the limit of 0.001. "
        "Fix them, or allow 1 with --bad-lines, or with bad_lines in the source.\n"
        "  1 a conversation that has no assistant's message: talk.jsonl line 3\n"
        "  1 a conversation that has no messages: talk.jsonl line 4\n"
        "  1 broken JSON: talk.jsonl line 5"
    )
    assert plan_of({"kind": "chat", "path": str(talk), "bad_lines": 1.0}).sources["web"].documents == 2


def test_a_source_listed_twice_counts_twice_in_proportional_shares(talk: Path, tmp_path: Path) -> None:
    write_lines(tmp_path / "text" / "a.jsonl", TEXTS)
    sources = {
        "talk": {"kind": "chat", "path": str(talk), "repeat": 2},
        "web": {"kind": "text", "path": str(tmp_path / "text")},
    }
    plan = make_plan(make_config(sources, [THREE_STEPS], tokenizer=BYTES), prepare=True)
    shares, opened = plan.stages[0].shares, plan.sources
    assert shares is not None
    talk_tokens, web_tokens = (opened[name].tokens for name in ("talk", "web"))
    assert float(shares["talk"]) == pytest.approx(2 * talk_tokens / (2 * talk_tokens + web_tokens))


def test_open_sources_names_every_source_that_is_broken(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("broken\n" * 3)
    (tmp_path / "talk.txt").write_text("no lines")
    sources = {
        "web": {"kind": "text", "path": str(tmp_path / "a.jsonl")},
        "talk": {"kind": "chat", "path": str(tmp_path / "talk.txt")},
    }
    with pytest.raises(PlanError) as error:
        open_sources(make_config(sources, [THREE_STEPS], tokenizer=BYTES), prepare=True)
    assert [problem.where for problem in error.value.problems] == ["sources.web", "sources.talk"]
    assert error.value.problems[1].what == (
        f"{tmp_path}/talk.txt: holds no conversations: these come as JSONL, one a line."
    )


def test_a_generated_task_is_a_source(own_cache: Path) -> None:
    source = {"kind": "chat", "task": "spelling", "size": 12}
    plan = plan_of(source)
    assert plan.sources["web"].documents == 12
    assert plan.stages[0].uses["web"].loss_tokens == len(targets_of(plan))
    plan_of({**source, "split": "test"})
    assert len(prepared(own_cache)) == 2


def test_a_task_that_makes_other_conversations_than_before_is_prepared_again(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = {"kind": "chat", "task": "spelling", "size": 12}
    with monkeypatch.context() as older:
        older.setattr("trivium.sources.chat.TASKS_VERSION", 1)
        plan_of(source)
    assert "web" not in unprepared_plan(source).sources
    plan_of({**source, "split_by": "rows"})
    assert len(prepared(own_cache)) == 2


def test_a_task_may_read_a_path(tmp_path: Path) -> None:
    rows = [{"question": f"what is {number} + 1?", "answer": f"#### {number + 1}"} for number in range(5)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = {"kind": "chat", "task": "gsm8k", "path": str(tmp_path / "train.jsonl"), "start": 1, "stop": 4}
    assert plan_of(source).sources["web"].documents == 3


def test_a_task_of_the_hub_is_a_gap_until_it_is_fetched() -> None:
    plan = unprepared_plan({"kind": "chat", "task": "gsm8k"})
    assert str(plan.gaps[0]) == (
        "sources.web: task gsm8k is not on disk, and trivium prepare has not fetched it: "
        "its size and epochs are not known."
    )
