"""The ledger of a source that has views: what one of them read, none of them reads again before its time."""

from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.corpus import document_ends, make_config, write_source
from trivium.errors import PlanError
from trivium.loader.loader import Loader
from trivium.loader.trace import places_of, rows_of, why_not_read
from trivium.plan.make import make_plan
from trivium.plan.plan import Plan
from trivium.rows.batch import PADDING

VIEWS: dict[str, dict[str, Any]] = {
    "short": {"from": "web", "max_tokens": 8},
    "middle": {"from": "web", "min_tokens": 8, "max_tokens": 20},
    "long": {"from": "web", "min_tokens": 20},
    "upper": {"from": "web", "min_tokens": 12},
}
TOGETHER = [("web",), ("long",), ("upper",), ("short", "middle"), ("long", "short"), ("upper", "short"), ("middle",)]
BOUNDS = (0, 8, 12, 20, 1000)
FILES = st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=12), min_size=1, max_size=3).map(
    lambda files: [[3, 9, 15, 30, *files[0]], *files[1:]]
)
STAGES = st.lists(
    st.fixed_dictionaries(
        {
            "sources": st.sampled_from(TOGETHER).map(list),
            "steps": st.integers(1, 6),
            "seq_len": st.integers(2, 40),
            "batch_size": st.integers(1, 4),
            "packing": st.sampled_from(["concat", "bestfit", "pad"]),
            "seed": st.integers(0, 2),
        }
    ),
    min_size=1,
    max_size=6,
)


def plan_over(
    folder: Path, files: list[list[int]], stages: list[dict[str, Any]], views: Iterable[str] = VIEWS, **web: object
) -> Plan:
    """A plan over one source and some views of it; blocks are small, so that a window ends often."""
    source = write_source(folder / "web", files)
    table = {"kind": "tokens", "path": str(source), "block_tokens": 16, "window_blocks": 3, **web}
    return make_plan(make_config({"web": table, **{name: VIEWS[name] for name in views}}, stages))


def tokens_read(plan: Plan) -> list[int]:
    """The ids of all tokens in the order in which the run reads them; ids are unique within the source."""
    with Loader(plan, prefetch=0) as loader:
        batches = [batch for _, batch in loader.batches(start=0)]
    return [int(token) for batch in batches for token in batch.tokens[batch.segments != PADDING]]


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(FILES, STAGES)
def test_within_a_band_of_lengths_every_token_is_read_once_before_any_is_read_again(
    tmp_path_factory: pytest.TempPathFactory, files: list[list[int]], stages: list[dict[str, Any]]
) -> None:
    tokens = tokens_read(plan_over(tmp_path_factory.mktemp("run"), files, stages))
    lengths = [length for each in files for length in each]
    for low, high in pairwise(BOUNDS):
        starts = document_ends(files) - lengths
        band = [
            range(start, start + length)
            for start, length in zip(starts.tolist(), lengths, strict=True)
            if low <= length < high
        ]
        whole = Counter(token for document in band for token in document)
        read = [token for token in tokens if token in whole]
        for first in range(0, len(read), max(1, whole.total())):
            assert Counter(read[first : first + whole.total()]) <= whole


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(FILES, STAGES, st.data())
def test_a_view_that_only_a_later_stage_reads_changes_nothing_before_it(
    tmp_path_factory: pytest.TempPathFactory, files: list[list[int]], stages: list[dict[str, Any]], data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("run")
    stages = [{**stage, "sources": ["web"]} for stage in stages]
    source = write_source(folder / "plain", files)
    table = {"kind": "tokens", "path": str(source), "block_tokens": 16, "window_blocks": 3}
    alone = tokens_read(make_plan(make_config({"web": table}, stages)))
    later = {**stages[-1], "sources": list(data.draw(st.sampled_from(TOGETHER)))}
    assert tokens_read(plan_over(folder, files, [*stages, later]))[: len(alone)] == alone


def test_a_view_reads_what_the_source_left_and_the_source_goes_on_with_the_rest(tmp_path: Path) -> None:
    files = [[4, 32, 4, 32, 4, 32, 4, 32]]
    rows = {"seq_len": 4, "batch_size": 1, "packing": "bestfit"}
    stages = [
        {"sources": ["web"], "steps": 9, **rows},
        {"sources": ["long"], "epochs": 0.5, **rows},
        {"sources": ["web"], "steps": 11, **rows},
    ]
    plan = plan_over(tmp_path, files, stages, ["long"])
    tokens = tokens_read(plan)
    assert len(set(tokens)) == len(tokens) == 4 * (9 + 16 + 11) == sum(files[0])
    uses = [stage.uses for stage in plan.stages]
    assert [round(use[name].epochs_so_far or 0, 3) for use, name in zip(uses, ("web", "long", "web"), strict=True)] == [
        0.25,
        0.75,  # half of it by itself, and a quarter of the whole source before
        1.0,
    ]


def test_a_document_is_found_where_a_view_read_it(tmp_path: Path) -> None:
    stages = [{"sources": ["long"], "steps": 4, "seq_len": 32, "batch_size": 1, "packing": "bestfit"}]
    plan = plan_over(tmp_path, [[4, 32, 4, 24]], stages, ["long"], block_tokens=64)
    read = [(row.source, piece.document) for step in range(4) for row in rows_of(plan, step) for piece in row.pieces]
    assert sorted(read) == [("long", 1), ("long", 1), ("long", 3), ("long", 3)]
    for source in ("web", "long"):
        assert [each.epoch for each in places_of(plan, source, 1)] == [0, 1]
    assert places_of(plan, "web", 0) == []
    assert why_not_read(plan, "long", 0) == "its 4 tokens are not within the view's lengths"


def test_a_view_counts_its_own_documents_and_holds_out_those_of_its_source(tmp_path: Path) -> None:
    files = [[4, 32] * 200]
    stages = [{"sources": ["web"], "steps": 1, "seq_len": 8, "batch_size": 1}]
    plan = plan_over(tmp_path, files, stages, ["long", "short"], validation=0.2)
    web, long, short = (plan.sources[name] for name in ("web", "long", "short"))
    assert (long.documents + short.documents, long.tokens + short.tokens) == (web.documents, web.tokens)
    assert long.tokens == 32 * long.documents
    assert 0 < long.held_out_tokens < web.held_out_tokens == long.held_out_tokens + short.held_out_tokens


def test_sources_of_a_stage_that_share_documents_are_refused(tmp_path: Path) -> None:
    rows = {"steps": 4, "seq_len": 8, "batch_size": 1}
    stages = [{"sources": ["web"], **rows}, {"sources": ["long"], "fade": 8, **rows}]
    with pytest.raises(PlanError) as refused:
        plan_over(tmp_path, [[4, 32]], stages, ["long"])
    what = "long and web share documents of web, which the stage would read twice."
    fix = "Write views whose lengths do not overlap, or leave one of them out. (A fade reads the stage before it too.)"
    assert str(refused.value) == f"stages[1]: {what} {fix}"


def test_a_view_without_a_document_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError) as refused:
        plan_over(tmp_path, [[4, 9, 15]], [{"steps": 1, "seq_len": 8, "batch_size": 1}], ["long"])
    what = "no document of web has at least 20 tokens. Change min_tokens or max_tokens."
    assert str(refused.value) == f"sources.long: {what}"


def test_a_stage_that_names_no_sources_reads_no_view(tmp_path: Path) -> None:
    plan = plan_over(tmp_path, [[4, 9, 15, 30]], [{"steps": 1, "seq_len": 8, "batch_size": 1}])
    assert list(plan.stages[0].uses) == ["web"]
