"""A stage that ends when its sources have been read, with others replayed by share."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.corpus import make_config, write_source
from tests.support.plans import multipliers, plan_of
from trivium.errors import PlanError
from trivium.loader.loader import Loader
from trivium.plan.make import make_plan
from trivium.plan.plan import Plan

ROWS = {"seq_len": 8, "batch_size": 4, "packing": "bestfit"}


def plan_over(folder: Path, sizes: dict[str, int], stage: dict[str, Any]) -> Plan:
    """A plan of one stage over sources of so many documents of one row each."""
    sources = {name: write_source(folder / name, [[8] * count]) for name, count in sizes.items()}
    return make_plan(make_config(sources, [{**ROWS, **stage}]))


def read_by_source(plan: Plan) -> dict[str, set[int]]:
    """The first tokens of the rows of each source that the whole run reads."""
    found: dict[str, set[int]] = {}
    for _, batch in Loader(plan).batches(start=0):
        for row in range(batch.num_rows):
            found.setdefault(batch.sources[batch.source[row]], set()).add(int(batch.tokens[row, 0]))
    return found


def test_a_stage_ends_with_the_step_in_which_the_last_of_its_tasks_has_been_read(tmp_path: Path) -> None:
    stage = {"epochs": {"a": 1, "b": 1}, "mixture": {"a": 0.5, "b": 0.5}}
    plan = plan_over(tmp_path, {"a": 3, "b": 9}, stage)
    # b's ninth row is the 17th or 18th of the stage: the epoch ends in the middle of the fifth step.
    assert plan.total_steps == 5
    read = read_by_source(plan)
    assert (len(read["a"]), len(read["b"])) == (3, 9)
    assert plan.stages[0].uses["b"].rows == 10


def test_epochs_may_differ_by_source(tmp_path: Path) -> None:
    stage = {"epochs": {"a": 4, "b": 0.5}, "mixture": {"a": 0.5, "b": 0.5}}
    plan = plan_over(tmp_path, {"a": 4, "b": 20}, stage)
    assert plan.total_steps == 8
    assert plan.stages[0].uses["a"].epochs == 4


def test_a_task_smaller_than_one_batch_is_read_in_one_step(tmp_path: Path) -> None:
    plan = plan_over(tmp_path, {"a": 2}, {"epochs": 1, "sources": ["a"]})
    assert plan.total_steps == 1
    assert plan.stages[0].uses["a"].epochs == 2  # the step is filled with the next epoch's rows


def test_replay_has_its_share_and_the_tasks_share_out_the_rest_by_size(tmp_path: Path) -> None:
    stage = {"epochs": 1, "sources": ["a", "b"], "replay": {"web": 0.2}}
    plan = plan_over(tmp_path, {"a": 16, "b": 48, "web": 100}, stage)
    shares = plan.stages[0].shares
    assert shares is not None
    assert {name: float(share) for name, share in shares.items()} == {"a": 0.2, "b": 0.6, "web": 0.2}
    assert plan.total_steps == 20
    read = read_by_source(plan)
    assert (len(read["a"]), len(read["b"]), len(read["web"])) == (16, 48, 16)


def test_without_sources_all_but_the_replayed_ones_are_the_stages_own(tmp_path: Path) -> None:
    plan = plan_over(tmp_path, {"a": 16, "b": 48, "web": 100}, {"epochs": 1, "replay": {"web": 0.5}})
    shares = plan.stages[0].shares
    assert shares is not None
    assert {name: float(share) for name, share in shares.items()} == {"a": 0.125, "b": 0.375, "web": 0.5}


def test_a_mixture_with_an_empty_task_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    talk = '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n'
    (tmp_path / "talk.jsonl").write_text(talk * 3)
    sources = {
        "talk": {"kind": "chat", "path": str(tmp_path / "talk.jsonl")},
        "none": {"kind": "chat", "path": str(tmp_path / "empty.jsonl")},
        "over": {"kind": "chat", "path": str(tmp_path / "talk.jsonl"), "start": 3},
        "past": {"kind": "chat", "task": "spelling", "size": 5, "start": 7},
    }
    config = make_config(sources, [{**ROWS, "epochs": 1}], tokenizer={"kind": "bytes"})
    with pytest.raises(PlanError) as caught:
        make_plan(config, prepare=True)
    what = "no document was found in 0 lines (nothing is in it). Look at its path and column."
    assert [str(problem) for problem in caught.value.problems] == [
        f"sources.{name}: {what}" for name in ("none", "over", "past")
    ]


def test_the_rate_stands_for_four_fifths_of_the_stage_and_falls_to_zero_by_its_end() -> None:
    lr = {"scale": 0.5, "shape": "wsd", "decay": {"fraction": 0.2}, "to": 0.0}
    plan = plan_of({"steps": 50, "lr": lr})
    assert multipliers(plan) == pytest.approx([0.5 * min(1.0, (50 - step) / 10) for step in range(50)], abs=1e-12)


def test_a_source_that_is_not_on_disk_has_the_epochs_of_its_expected_tokens(tmp_path: Path) -> None:
    web, late = ({"kind": "tokens", "path": str(tmp_path / name), "expected_tokens": 320} for name in ("web", "late"))
    stages = [
        {**ROWS, "steps": 10, "mixture": {"web": 0.75, "late": 0.25}},
        {**ROWS, "epochs": {"late": 1.5}, "sources": ["web", "late"]},
    ]
    plan = make_plan(make_config({"web": web, "late": late}, stages))
    first, second = plan.stages
    assert (first.uses["web"].epochs, first.uses["late"].epochs) == (0.75, 0.25)
    # 60 rows of late are 1.5 epochs; both are of one size, so that web has as many: 120 rows, 30 steps.
    assert second.steps == 30
    assert (second.uses["web"].epochs_so_far, second.uses["late"].epochs_so_far) == (2.25, 1.75)
    assert first.uses["web"].figures is None
    assert any("are those of its expected_tokens" in gap.what for gap in plan.gaps)
    with pytest.raises(PlanError):
        plan.complete()


def test_expected_tokens_count_against_a_cap_and_not_once_the_source_is_there(tmp_path: Path) -> None:
    stage = {**ROWS, "steps": 10, "mixture": {"web": 1.0}}
    source = {"kind": "tokens", "path": str(tmp_path / "web"), "expected_tokens": 160, "max_epochs": 1.5}
    with pytest.raises(PlanError, match="needs 320 tokens, the source has 160: 2 epochs, over"):
        make_plan(make_config({"web": source}, [stage]))
    path = write_source(tmp_path / "web", [[8] * 40])
    plan = make_plan(make_config({"web": {**source, "path": str(path)}}, [stage]))
    assert plan.stages[0].uses["web"].epochs == 1
