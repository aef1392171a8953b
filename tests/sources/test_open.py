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
from tests.support.prepared import (
    BYTES,
    STAGE,
    TEXTS,
    THREE_STEPS,
    gap_of,
    plan_of,
    prepared,
    refused,
    targets_of,
    unprepared_plan,
)
from tests.support.texts import EOS, write_lines
from tests.support.writers import write_megatron
from trivium.errors import PlanError
from trivium.loader.loader import Loader
from trivium.plan.make import make_plan
from trivium.sources.open import open_sources

TALK = [
    [("user", "two and two?"), ("assistant", "four")],
    [("user", "and one more?"), ("assistant", "five"), ("user", "thanks"), ("assistant", "any time")],
]


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
