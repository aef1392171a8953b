"""A batch is a function of the step: of nothing else, and exactly."""

import json
import os
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.support.corpus import document_ends, make_config, write_source
from tests.support.loading import FILES, SMALL, STAGES, copied, ramps_of, read_tokens, stages_fit, write_config
from trivium.config.schema import Config
from trivium.config.stages import CROPPING
from trivium.engine.mesh import MeshShape
from trivium.errors import PlanError, SourceError
from trivium.loader.loader import Loader
from trivium.plan.make import make_plan
from trivium.rows.batch import IGNORED, PADDING, Batch
from trivium.run.decisions import BatchResized
from trivium.tokenfiles.manifest import measure, write_manifest
from trivium.tokenfiles.open import open_source


def same(one: Batch, other: Batch) -> bool:
    fields = ("tokens", "targets", "segments", "positions", "source")
    return all(np.array_equal(getattr(one, field), getattr(other, field)) for field in fields)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_every_token_is_an_input_once_before_any_is_again(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    sources = {name: data.draw(FILES) for name in ("web", "code")}
    stages = data.draw(STAGES)
    for stage in stages:
        stage["packing"] = "bestfit" if stage["packing"] in CROPPING else stage["packing"]  # drops, and is counted
    config = write_config(tmp_path_factory.mktemp("run"), sources, stages)
    plan = make_plan(config)
    batches = [batch for _, batch in Loader(plan, prefetch=0).batches(start=0)]
    decisions: list[BatchResized] = []
    for step in sorted(data.draw(st.lists(st.integers(0, plan.known_steps - 1), max_size=2))):
        decisions.append(BatchResized(step=step, size=data.draw(st.integers(1, 9))))
        before, taken, plan = plan, batches[:step], make_plan(config, plan.sources, decisions=decisions)
        if any("fade_out" in key for key in before.record(step)) or step >= plan.known_steps:
            return  # a centred fade that has begun ends where its stage did: a resume is refused
        batches = [batch for _, batch in Loader(plan, prefetch=0).batches(start=0)]
        assert plan.record(step) == before.record(step)
        assert [copied(batch) for batch in batches[:step]] == [copied(batch) for batch in taken]
        assert batches[step].num_rows == decisions[-1].size
    for name, files in sources.items():
        whole = int(document_ends(files)[-1])
        tokens = [token for batch in batches for token in read_tokens(batch, name)]
        for first in range(0, len(tokens), whole):
            assert Counter(tokens[first : first + whole]) <= Counter(range(whole))
        figures = [stage.uses[name].figures for stage in plan.stages if name in stage.uses]
        assert sum(each.tokens for each in figures if each) == len(tokens)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_targets_segments_and_positions_follow_the_documents(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    sources = {name: data.draw(FILES) for name in ("web", "code")}
    plan = make_plan(write_config(tmp_path_factory.mktemp("run"), sources, data.draw(STAGES)))
    learnt = 0
    for _, batch in Loader(plan, prefetch=0).batches(start=0):
        learnt += batch.loss_tokens()
        for row in range(batch.num_rows):
            check_row(batch, row, document_ends(sources[batch.sources[batch.source[row]]]))
    figures = [given.figures for stage in plan.stages for given in stage.uses.values()]
    assert sum(each.loss_tokens for each in figures if each) == learnt


def check_row(batch: Batch, row: int, ends: NDArray[np.int64]) -> None:
    tokens, targets, segments, positions = (
        array[row].tolist() for array in (batch.tokens, batch.targets, batch.segments, batch.positions)
    )
    last_tokens = set((ends - 1).tolist())
    for column, (token, target) in enumerate(zip(tokens, targets, strict=True)):
        if segments[column] == PADDING:
            assert (token, target, positions[column]) == (0, IGNORED, 0)
            assert set(segments[column:]) == {PADDING}
            return
        # Token n has the id n: the target is the next one, unless the document ends here.
        assert target == (IGNORED if token in last_tokens else token + 1)
        if column and segments[column] == segments[column - 1]:
            assert (token, positions[column]) == (tokens[column - 1] + 1, positions[column - 1] + 1)
        else:
            assert positions[column] == 0
            assert segments[column] == (segments[column - 1] + 1 if column else 0)


@pytest.mark.slow
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_ranks_workers_and_stops_give_the_rows_of_one_rank(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    sources = {name: data.draw(FILES) for name in ("web", "code")}
    stages = data.draw(STAGES)
    ranks = data.draw(st.sampled_from([1, 2, 3, 4, 5, 6, 7, 8, 16]))
    for stage in stages:
        stage["batch_size"] = data.draw(st.integers(1, 4).map(lambda size: ranks * size) | ramps_of(ranks))
    assume(stages_fit(stages))
    config = write_config(tmp_path_factory.mktemp("run"), sources, stages)
    plan = make_plan(config)
    whole = [copied(batch) for _, batch in Loader(plan, prefetch=0).batches(start=0)]
    stop = data.draw(st.integers(0, plan.known_steps))
    shards = []
    for rank in range(ranks):
        settings_of: dict[str, Any] = {
            "prefetch": data.draw(st.integers(0, 3)),
            "workers": data.draw(st.integers(1, 3)),
        }
        first = Loader(plan, rank, ranks, **settings_of)
        batches = first.batches()
        read = [copied(next(batches)[1]) for _ in range(stop)]
        state = json.loads(json.dumps(first.state_dict()))
        batches.close()  # type: ignore[attr-defined]
        second = Loader(make_plan(config), rank, ranks, **settings_of)
        second.load_state_dict(state)
        shards.append(read + [copied(batch) for _, batch in second.batches()])
    assert [tuple(map(b"".join, zip(*parts, strict=True))) for parts in zip(*shards, strict=True)] == whole


def test_ranks_that_share_the_rows_of_a_stage_get_the_same_ones(tmp_path: Path) -> None:
    stages: list[dict[str, object]] = [
        {"steps": 2, "batch_size": 4, "seq_len": 16},
        {"steps": 2, "batch_size": 2, "seq_len": 32, "engine": {"context": 2}},
    ]
    plan = make_plan(write_config(tmp_path, {"web": [[9, 30, 40, 25] * 20]}, stages))
    whole = [copied(batch) for _, batch in Loader(plan)]
    ranks = [[copied(batch) for _, batch in Loader(plan, rank, 4, mesh=MeshShape(shard=4))] for rank in range(4)]
    for step, readers in ((0, (0, 1, 2, 3)), (1, (0, 1, 2, 3)), (2, (0, 2)), (3, (0, 2))):
        shards = [ranks[rank][step] for rank in readers]
        assert tuple(map(b"".join, zip(*shards, strict=True))) == whole[step]
    assert ranks[0][2:] == ranks[1][2:] != ranks[2][2:] == ranks[3][2:]


@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("workers", [0, 1, 3])
def test_ranks_and_workers_never_change_the_rows(config: Config, world_size: int, workers: int) -> None:
    plan = make_plan(config)
    whole = [copied(batch) for _, batch in Loader(plan, prefetch=0).batches(start=0)]
    shards = [
        [
            copied(batch)
            for _, batch in Loader(plan, rank, world_size, prefetch=workers, workers=workers).batches(start=0)
        ]
        for rank in range(world_size)
    ]
    assert [tuple(map(b"".join, zip(*parts, strict=True))) for parts in zip(*shards, strict=True)] == whole


def test_world_sizes_from_1_to_16_share_one_batch(tmp_path: Path) -> None:
    files = [np.random.default_rng(1).integers(1, 60, 200).tolist()]
    stage: dict[str, object] = {"steps": 2, "seq_len": 16, "batch_size": 5040, "mixture": {"web": 1.0}}
    plan = make_plan(write_config(tmp_path, {"web": files}, [stage]))
    whole = Loader(plan).batch(1)
    for world_size in (2, 3, 5, 7, 8, 9, 12, 14, 15, 16):
        shards = [Loader(plan, rank, world_size).batch(1) for rank in range(world_size)]
        assert np.array_equal(np.concatenate([shard.tokens for shard in shards]), whole.tokens)
        assert np.array_equal(np.concatenate([shard.targets for shard in shards]), whole.targets)


def test_a_step_is_the_same_however_it_is_reached(config: Config) -> None:
    plan = make_plan(config)
    total = plan.known_steps
    in_order = [copied(batch) for _, batch in Loader(plan, prefetch=0).batches(start=0)]
    assert len(in_order) == total == 18
    loader = Loader(plan)
    for step in np.random.default_rng(3).permutation(total).tolist():
        assert copied(loader.batch(step)) == in_order[step]
    for start in range(total):
        resumed = Loader(make_plan(config), prefetch=2)
        assert [copied(batch) for _, batch in resumed.batches(start=start)] == in_order[start:]


def test_adding_a_source_changes_no_other_sources_order(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    files = {name: [rng.integers(1, 60, 60).tolist()] for name in ("web", "code", "a-new-one")}
    stage: dict[str, object] = {"steps": 20, "seq_len": 16, "batch_size": 4, "weights": {"web": 1, "code": 1}}
    two = make_plan(write_config(tmp_path / "two", {name: files[name] for name in ("web", "code")}, [stage]))
    stage = {**stage, "weights": {"web": 1, "code": 1, "a-new-one": 2}}
    three = make_plan(write_config(tmp_path / "three", files, [stage]))
    for name in ("web", "code"):
        read = [
            [token for _, batch in Loader(plan, prefetch=0).batches() for token in read_tokens(batch, name)]
            for plan in (two, three)
        ]
        common = min(map(len, read))
        assert common > 100
        assert read[0][:common] == read[1][:common]


def test_rows_are_given_in_the_shares_of_the_stage(config: Config) -> None:
    plan = make_plan(config)
    counts = Counter[str]()
    for _, batch in Loader(plan, prefetch=0).batches(start=0):
        counts.update(batch.sources[number] for number in batch.source.tolist())
    planned = Counter[str]()
    for stage in plan.stages:
        planned.update({name: given.rows for name, given in stage.uses.items()})
    assert counts == planned


def test_a_batch_size_that_ranks_cannot_share_is_refused_with_the_nearest(config: Config) -> None:
    with pytest.raises(PlanError) as error:
        Loader(make_plan(config), rank=0, world_size=3)
    assert str(error.value) == (
        "stages[0].batch_size: is 8 rows, which 3 ranks cannot share evenly. Write 6 or 9.\n"
        "stages[1].batch_size: is 4 rows, which 3 ranks cannot share evenly. Write 3 or 6.\n"
        "stages[2].batch_size: is 8 rows, which 3 ranks cannot share evenly. Write 6 or 9."
    )


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        (
            {"batch_size": {"from": 4, "to": 8, "over": 128, "by": 2}},
            "batch_size: is 6 rows at step 1 of the stage, which 4 ranks cannot share evenly. Write multiples of 4",
        ),
        (
            {"batch_tokens": {"from": 64, "to": 128, "over": 128, "by": 32}},
            "batch_tokens: is 6 rows at step 1 of the stage, which 4 ranks cannot share evenly. Write multiples of 64",
        ),
    ],
)
def test_a_size_of_a_ramp_that_ranks_cannot_share_is_refused(tmp_path: Path, batch: dict[str, Any], said: str) -> None:
    plan = make_plan(write_config(tmp_path, {"web": [[9, 30]]}, [{"steps": 4, "seq_len": 16, **batch}]))
    Loader(plan, 0, 2)
    with pytest.raises(PlanError) as error:
        Loader(plan, 0, 4)
    assert str(error.value) == f"stages[0].{said} for from, to and by."


def test_ranks_need_to_share_the_sizes_of_steps_to_come_alone(tmp_path: Path) -> None:
    config = write_config(tmp_path, {"web": [[9, 30]]}, [{"steps": 8, "seq_len": 16, "batch_size": 8}])
    plan = make_plan(config, decisions=[BatchResized(step=4, size=6)])
    with pytest.raises(PlanError, match=r"is 8 rows, which 3 ranks cannot share evenly\. Write 6 or 9\."):
        Loader(plan, 0, 3)
    loader = Loader(plan, 1, 3, start=4)
    assert copied(loader.batch(4)) != copied(Loader(plan).batch(4))
    assert loader.batch(4).num_rows == 2
    with pytest.raises(PlanError, match=r"is 8 rows, which 3 ranks cannot share evenly\. Write 6 or 9\."):
        loader.batch(3)
    with pytest.raises(PlanError, match="is 6 rows at step 4, as was decided there, which 4 ranks cannot share evenly"):
        Loader(plan, 1, 4)


def test_masked_tokens_are_inputs_but_no_targets(tmp_path: Path) -> None:
    folder = write_source(tmp_path / "web", [[7, 9, 4, 12]], loss=True)
    stage: dict[str, object] = {"steps": 2, "seq_len": 16, "batch_size": 2}
    for loss_on, masked in ((None, True), ("assistant", True), ("all", False)):
        said = stage if loss_on is None else {**stage, "loss_on": loss_on}
        plan = make_plan(make_config({"web": folder}, [said]))
        batches = [batch for _, batch in Loader(plan).batches()]
        targets = batches[0].targets[batches[0].targets != IGNORED]
        assert bool(np.any(targets % 3 == 0)) is not masked
        assert plan.stages[0].uses["web"].loss_tokens == sum(batch.loss_tokens() for batch in batches)


def test_a_row_with_nothing_to_learn_is_a_row(tmp_path: Path) -> None:
    stage: dict[str, object] = {"steps": 3, "seq_len": 4, "batch_size": 2, "packing": "pad"}
    batch = Loader(make_plan(make_config({"web": write_source(tmp_path / "web", [[1] * 9])}, [stage]))).batch(0)
    assert batch.loss_tokens() == 0
    assert batch.segments.tolist() == [[0, PADDING, PADDING, PADDING]] * 2


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "int32", "int64"])
def test_tokens_of_every_dtype_are_read(tmp_path: Path, dtype: str) -> None:
    path = tmp_path / "web.npy"
    np.save(path, (np.arange(200) % 100).astype(dtype))
    stage: dict[str, object] = {"steps": 12, "seq_len": 8, "batch_size": 2}
    plan = make_plan(make_config({"web": path}, [stage]))
    tokens = [token for _, batch in Loader(plan, prefetch=0).batches() for token in read_tokens(batch, "web")]
    assert Counter(tokens) <= Counter(dict.fromkeys(range(100), 2))


def test_a_stopped_consumer_leaves_no_thread_behind(config: Config) -> None:
    loader = Loader(make_plan(config), prefetch=4, workers=2)
    before = set(threading.enumerate())
    batches = loader.batches()
    next(batches)
    assert set(threading.enumerate()) - before
    batches.close()  # type: ignore[attr-defined]
    assert not set(threading.enumerate()) - before


def test_a_file_that_changes_while_it_is_read_is_an_error_with_its_step(tmp_path: Path) -> None:
    folder = write_source(tmp_path / "web", [[50] * 40])
    source = {"kind": "tokens", "path": str(folder), **SMALL}
    config = make_config({"web": source}, [{"steps": 600, "seq_len": 16, "batch_size": 2}])
    batches = Loader(make_plan(config), prefetch=2).batches()
    next(batches)
    path = folder / "000.ds"
    os.truncate(path, 9000)
    with pytest.raises(SourceError) as error:
        for _ in batches:
            pass
    message = str(error.value)
    assert message.startswith("step ")
    assert "source web, row " in message
    named = f"{path} (documents of web from 0 on): had 8,000 bytes, has 9,000. "
    assert message.endswith(f"{named}Files must stay as they are while a run reads them.")


def test_a_plan_with_unknown_sources_cannot_be_read(tmp_path: Path) -> None:
    config = make_config({"web": tmp_path / "nowhere"}, [{"steps": 2, "seq_len": 8, "batch_size": 2}])
    with pytest.raises(PlanError) as error:
        Loader(make_plan(config))
    assert str(error.value) == (
        f"sources.web: {tmp_path / 'nowhere'} does not exist: its size and epochs are not known.\n"
        "model.vocab: is missing, and no tokenizer gives it. Write it, or name a tokenizer.\n"
        "the plan is not complete, so that nothing can be read yet."
    )


def test_order_is_pinned(tmp_path: Path) -> None:
    """Golden: whoever changes the order of rows changes every run that is to be continued."""
    files = [[5, 9, 4, 30, 2, 8, 16, 16, 3, 7, 1, 12]]
    folder = write_source(tmp_path / "web", files)
    source = {"kind": "tokens", "path": str(folder), **SMALL}
    stages: list[dict[str, object]] = [
        {"steps": 2, "seq_len": 16, "batch_size": 2},
        {"steps": 3, "seq_len": 8, "batch_size": 4, "packing": "concat", "seed": 5},
    ]
    read = [
        batch.tokens[:, 0].tolist() for _, batch in Loader(make_plan(make_config({"web": source}, stages))).batches()
    ]
    assert read == [[90, 74], [50, 58], [19, 35, 11, 100], [3, 108, 43, 27], [67, 59, 108, 51]]


def test_a_damaged_index_is_refused_though_a_manifest_vouches_for_it(tmp_path: Path) -> None:
    folder = write_source(tmp_path / "web", [[20] * 50])
    files = open_source(str(folder))
    write_manifest(measure(files), folder / "manifest.json")
    ends = np.fromfile(folder / "000.ds.index", "<i8")
    ends[7] = 10**12
    ends.tofile(folder / "000.ds.index")
    with pytest.raises(PlanError) as error:
        make_plan(make_config({"web": folder}, [{"steps": 5, "seq_len": 16, "batch_size": 2}]))
    assert str(error.value) == (
        f"sources: {folder / '000.ds.index'}: documents near token 0 end before they start, or behind the end of "
        "000.ds. The index is damaged: copy or write it again."
    )


def test_ids_over_the_tokenizers_vocabulary_are_refused(tmp_path: Path) -> None:
    folder = write_source(tmp_path / "web", [[300]])
    stage: dict[str, object] = {"steps": 5, "seq_len": 16, "batch_size": 2}
    with pytest.raises(PlanError) as error:
        make_plan(make_config({"web": folder}, [stage], tokenizer={"kind": "bytes"}))
    assert str(error.value) == (
        f"sources.web: {folder / '000.ds'}: holds the token id 299, the model knows 0 to 265. "
        "Write model.vocab = 300 or more, or tokenise with the model's tokenizer."
    )


def test_a_loader_is_a_context_manager_and_goes_through_its_steps(config: Config) -> None:
    with Loader(make_plan(config), prefetch=0) as loader:
        found = list(loader)
        assert len(loader) == len(found) == loader.step
    expected = list(Loader(make_plan(config), prefetch=0).batches(start=0))
    assert [step for step, _ in found] == [step for step, _ in expected]
    assert all(
        np.array_equal(batch.tokens, other.tokens) for (_, batch), (_, other) in zip(found, expected, strict=True)
    )
