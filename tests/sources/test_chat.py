"""Sources that mix several tasks: what they hold, how it is read, and which conversation is of which task."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import trivium
from tests.support.corpus import make_config
from trivium.config.stages import Packing
from trivium.loader.trace import rows_of
from trivium.plan.export import plan_json
from trivium.plan.make import make_plan
from trivium.plan.plan import Plan
from trivium.rows.blocks import FileBlocks
from trivium.tasks.open import open_task
from trivium.text.chat import render
from trivium.text.tokenizer import ByteTokenizer

BYTES = {"kind": "bytes"}
TASKS = (("spelling", 60, 1), ("counting", 25, 1), ("talk.jsonl", 9, 2))
STAGE = {"epochs": 1, "seq_len": 96, "batch_size": 1, "packing": "crop-first"}


@pytest.fixture
def mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A source of three tasks, one of them twice; several windows of it, and conversations longer than a row."""
    monkeypatch.chdir(tmp_path)
    talks = [[said("user", f"line {number}?"), said("assistant", "so " * 8 * number)] for number in range(1, 10)]
    Path("talk.jsonl").write_text("".join(json.dumps({"messages": talk}) + "\n" for talk in talks))
    tasks = [
        {"task": "spelling", "size": 60},
        {"task": "counting", "size": 25},
        {"task": "jsonl", "path": "talk.jsonl", "repeat": 2},
    ]
    return {"kind": "chat", "tasks": tasks, "block_tokens": 1024, "window_blocks": 2}


def said(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def plan_over(source: dict[str, Any], **stage: Any) -> Plan:
    return make_plan(make_config({"mid": source}, [{**STAGE, **stage}], tokenizer=BYTES), prepare=True)


def documents_of(plan: Plan, name: str = "mid") -> list[tuple[int, ...]]:
    blocks = plan.sources[name].blocks
    assert isinstance(blocks, FileBlocks)
    spans = map(blocks.document_span, range(blocks.num_documents))
    return [tuple(blocks.files[file].open().tokens[start:end].tolist()) for file, start, end in spans]


def conversations(mixed: dict[str, Any]) -> Counter[tuple[int, ...]]:
    """The tokens of every conversation of every task, with the times that it is in the source."""
    counts: Counter[tuple[int, ...]] = Counter()
    for (_, _, repeat), keys in zip(TASKS, mixed["tasks"], strict=True):
        options = {key: value for key, value in keys.items() if key not in ("task", "repeat")}
        for each in open_task(keys["task"], **options):
            counts[tuple(render(each, ByteTokenizer()).tokens.tolist())] += repeat
    return counts


@pytest.mark.parametrize("packing", ["crop", "crop-first"])
def test_one_epoch_reads_every_conversation_of_every_task_once_whatever_is_cropped(
    mixed: dict[str, Any], packing: Packing
) -> None:
    plan = plan_over(mixed, packing=packing)
    documents = documents_of(plan)
    assert plan.total_steps is not None
    read: Counter[int] = Counter()
    shown: Counter[tuple[int, ...]] = Counter()
    cut = 0
    for step in range(plan.total_steps):
        for row in rows_of(plan, step):
            for piece in row.pieces:
                read[piece.document] += 1
                shown[documents[piece.document]] += 1
                assert piece.start == 0
                cut += piece.stop < piece.length
    assert read == Counter(range(len(documents)))
    assert shown == conversations(mixed)
    use = plan.stages[0].uses["mid"]
    assert cut > 0
    assert use.figures is not None
    assert use.figures.consumed == sum(map(len, documents))
    assert use.figures.consumed - use.figures.tokens > 0  # the plan's column "dropped"
    assert use.epochs == 1


def test_rows_hold_conversations_of_several_tasks(mixed: dict[str, Any]) -> None:
    plan = plan_over(mixed, seq_len=512)
    rows = [row for step in range(plan.total_steps or 0) for row in rows_of(plan, step)]
    tasks = [{piece.task for piece in row.pieces} for row in rows]
    assert set().union(*tasks) == {"spelling", "counting", "talk.jsonl"}
    assert any(len(each) == 3 for each in tasks)


def test_the_plan_counts_each_task_and_leaves_out_what_is_held_out(mixed: dict[str, Any]) -> None:
    plan = plan_over(mixed)
    counted = [(task.task, task.documents) for task in plan.sources["mid"].tasks]
    assert counted == [(name, size * repeat) for name, size, repeat in TASKS]
    assert sum(task.tokens for task in plan.sources["mid"].tasks) == plan.sources["mid"].tokens
    assert plan_json(plan)["sources"]["mid"]["tasks"][0] == {
        "task": "spelling",
        "documents": 60,
        "tokens": plan.sources["mid"].tasks[0].tokens,
    }
    del mixed["tasks"][2]["repeat"]
    some = plan_over({**mixed, "validation": 0.2}).sources["mid"]
    assert sum(task.documents for task in some.tasks) == some.documents < 60 + 25 + 9
    assert sum(task.tokens for task in some.tasks) == some.tokens


def test_another_order_or_repeat_of_tasks_is_another_source(mixed: dict[str, Any]) -> None:
    first = plan_over(mixed).fingerprint(3)
    assert plan_over(mixed).fingerprint(3) == first
    mixed["tasks"][2]["repeat"] = 3
    assert plan_over(mixed).fingerprint(3) != first


def test_a_malformed_conversation_is_skipped_and_the_others_keep_their_tasks(mixed: dict[str, Any]) -> None:
    with open("talk.jsonl", "a") as file:
        file.write(json.dumps({"messages": [said("user", "nobody answers")]}) + "\n")
    plan = plan_over({**mixed, "bad_lines": 0.1})
    assert [task.documents for task in plan.sources["mid"].tasks] == [60, 25, 18]
    lines = {number for number, tokens in enumerate(documents_of(plan)) if bytes(tokens[2:6]) == b"line"}
    assert {number for number in range(103) if plan.sources["mid"].task_of(number) == "talk.jsonl"} == lines


def test_tasks_of_the_hub_are_fetched_once_and_files_beside_them_may_change(
    mixed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def rows_of_hub(*_: object) -> list[dict[str, str]]:
        return [{"question": f"what is {number} + 1?", "answer": f"#### {number + 1}"} for number in range(5)]

    mixed["tasks"][0] = {"task": "gsm8k"}
    config = make_config({"mid": mixed}, [STAGE], tokenizer=BYTES)
    with monkeypatch.context() as online:
        online.setattr("trivium.tasks.open.hub_rows", rows_of_hub)
        assert [task.documents for task in plan_over(mixed).sources["mid"].tasks] == [5, 25, 18]
    assert [task.documents for task in make_plan(config).sources["mid"].tasks] == [5, 25, 18]
    with open("talk.jsonl", "a") as file:
        file.write(json.dumps({"messages": [said("user", "one more?"), said("assistant", "yes")]}) + "\n")
    assert "mid" not in make_plan(config).sources


def test_a_path_of_a_task_that_is_not_there_is_a_gap(mixed: dict[str, Any]) -> None:
    mixed["tasks"][2]["path"] = "nowhere.jsonl"
    plan = make_plan(make_config({"mid": mixed}, [STAGE], tokenizer=BYTES))
    assert str(plan.gaps[0]) == "sources.mid: nowhere.jsonl does not exist: its size and epochs are not known."


@pytest.mark.usefixtures("mixed")
def test_commands_show_the_tasks_of_a_source(tmp_path: Path, own_cache: Path) -> None:
    Path("run.toml").write_text(
        """
[run]
name = "test"
[model]
size = "tiny"
[tokenizer]
kind = "bytes"
[sources.mid]
kind = "chat"
tasks = ["arc", { task = "spelling", size = 60 }, { task = "jsonl", path = "talk.jsonl", repeat = 2 }]
[[stages]]
name = "mid"
epochs = 1
seq_len = 256
batch_size = 2
packing = "crop-first"
"""
    )
    _, out, _ = trivium(tmp_path, "plan", "run.toml")
    gap = "task arc + spelling + talk.jsonl is not on disk, and trivium prepare has not fetched it"
    assert gap in " ".join(out.split())
    tasks = 'sources.mid.tasks=[{ task = "spelling", size = 60 }, { task = "jsonl", path = "talk.jsonl", repeat = 2 }]'
    _, out, _ = trivium(tmp_path, "plan", "run.toml", tasks)
    assert "task spelling + talk.jsonl is not prepared yet" in out
    code, out, err = trivium(tmp_path, "prepare", "run.toml", tasks)
    assert (code, err) == (0, "")
    assert out.startswith("mid: 78 documents, ")
    code, out, err = trivium(tmp_path, "plan", "run.toml", tasks)
    lines = [line.split()[:-1] for line in out.splitlines()]
    for line in (["mid", "chat", "2", "tasks", "78"], ["spelling", "60"], ["talk.jsonl", "18"]):
        assert line in lines
    code, out, err = trivium(tmp_path, "inspect", "run.toml", tasks, "--step", "0")
    assert (code, err) == (0, "")
    head, counts = out.splitlines()[:2]
    assert head == "step 0: stage mid, 2 rows of 256, crop-first"
    pieces = {task: out.count(f" ({task}) in tasks, conversation ") for task in ("spelling", "talk.jsonl")}
    assert counts == f"pieces of tasks: {pieces['spelling']} spelling, {pieces['talk.jsonl']} talk.jsonl"
    code, out, err = trivium(tmp_path, "verify", "run.toml", tasks)
    assert (code, err) == (0, "")
    assert out.startswith("mid: 1 file, 78 documents, ")
    (labels,) = own_cache.glob("prepared/*/*.ds.task")
    labels.write_bytes(labels.read_bytes()[::-1])
    code, _, err = trivium(tmp_path, "verify", "run.toml", tasks)
    assert (code, err.startswith("run.toml:8: sources.mid: 00000-00000.ds: hash was ")) == (2, True)
