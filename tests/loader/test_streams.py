"""A stream in a mixture: the same rows for any ranks, stops, kills and prefetch; a small state."""

import base64
import json
import re
import subprocess
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.scripts import ROOT
from tests.support.streams import BATCH_FIELDS, STREAM_STAGES, batch_hash, stream_config
from trivium.config.schema import Tokenizer as TokenizerConfig
from trivium.errors import PlanError, ResumeError, SourceError
from trivium.loader.loader import Loader
from trivium.loader.trace import origins_of, places_of, rows_of
from trivium.plan.make import make_plan
from trivium.plan.plan import Plan
from trivium.rows.batch import PADDING
from trivium.run.decisions import StageEnded
from trivium.sources.stream.lanes import Lanes
from trivium.text.tokenizer import open_tokenizer

ORIGIN = ("file", "document", "start", "stop", "text")


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return make_plan(stream_config(tmp_path))


def hashes(loader: Loader, start: int | None = None) -> list[str]:
    found = [batch_hash(batch) for _, batch in loader.batches(start)]
    loader.close()
    return found


def test_every_document_once_before_any_again(tmp_path: Path) -> None:
    config = stream_config(tmp_path, [{"steps": 40, "seq_len": 64, "batch_size": 2, "mixture": {"web": 1.0}}])
    found = []
    for _, batch in Loader(make_plan(config)).batches():
        for row in range(batch.num_rows):
            for segment in range(batch.segments[row].max() + 1):
                tokens = batch.tokens[row][batch.segments[row] == segment].tolist()
                found.append(bytes(tokens[:-1]).decode())
    lines = [line for file in (tmp_path / "web").iterdir() for line in file.read_text().splitlines()]
    whole = [json.loads(line)["text"] for line in lines]
    assert len(whole) < len(found) < 2 * len(whole)
    assert Counter(found[: len(whole)]) == Counter(whole)
    assert Counter(found) <= Counter(whole * 2)


@pytest.mark.parametrize("world_size", [2, 3])
def test_shards_of_any_world_are_the_rows_of_one_rank(plan: Plan, world_size: int) -> None:
    whole = [batch for _, batch in Loader(plan).batches()]
    ranks = [[batch for _, batch in Loader(plan, rank, world_size).batches()] for rank in range(world_size)]
    for step, batch in enumerate(whole):
        for field in BATCH_FIELDS:
            shards = [getattr(ranks[rank][step], field) for rank in range(world_size)]
            assert np.array_equal(np.concatenate(shards), getattr(batch, field))


@pytest.mark.parametrize(("prefetch", "workers"), [(0, 1), (1, 1), (5, 3)])
def test_prefetch_and_threads_change_nothing(plan: Plan, prefetch: int, workers: int) -> None:
    assert hashes(Loader(plan, prefetch=prefetch, workers=workers)) == hashes(Loader(plan, prefetch=2))


@pytest.mark.slow
def test_a_state_of_any_step_goes_on_with_the_same_rows_on_any_world(plan: Plan) -> None:
    loader = Loader(plan, prefetch=3)
    states, whole = [loader.state_dict()], []
    for _, batch in loader.batches():
        whole.append(batch)
        states.append(json.loads(json.dumps(loader.state_dict())))
    for step, state in enumerate(states[:-1]):
        world_size = 1 + step % 3
        for rank in range(world_size):
            again = Loader(plan, rank, world_size, prefetch=step % 2)
            again.load_state_dict(state)
            lanes, position = again.streams.lanes["web"], again.streams.positions(step)["web"]
            assert lanes.first_kept == lanes.position == position, "nothing before it is read again"
            found = next(again.batches())[1]
            again.close()
            size = whole[step].num_rows // world_size
            assert batch_hash(found) == batch_hash(whole[step].rows(rank * size, (rank + 1) * size))
    final = Loader(plan)
    final.load_state_dict(states[-1])
    assert list(final.batches()) == []


def test_ranks_agree_on_the_state(plan: Plan) -> None:
    loaders = [Loader(plan, rank, 3, prefetch=rank) for rank in range(3)]
    for batches in zip(*(loader.batches() for loader in loaders), strict=True):
        assert len({step for step, _ in batches}) == 1
        assert len({json.dumps(loader.state_dict()["lanes"]) for loader in loaders}) == 1


def test_the_state_is_small(plan: Plan) -> None:
    loader = Loader(plan)
    for _ in loader.batches():
        lanes = loader.state_dict()["lanes"]["web"]["lanes"]
        assert len(lanes) == 4
        assert all(len(json.dumps(lane)) < 1000 for lane in lanes)


def test_steps_are_read_forward_and_the_last_ones_again(plan: Plan) -> None:
    whole = hashes(Loader(plan))
    loader = Loader(plan, prefetch=0)
    for step in (0, 0, 3, 3, 2, 9, 8, 20, 20):
        assert batch_hash(loader.batch(step)) == whole[step]
    loader.streams.lanes["web"].keep_rows = 10
    loader.batch(23)
    with pytest.raises(SourceError) as error:
        loader.batch(5)
    assert str(error.value).startswith("step 5: source web, row 15: a stream is read forward: it is at row ")


def test_without_a_state_it_reads_from_the_start(plan: Plan) -> None:
    assert hashes(Loader(plan), start=9) == hashes(Loader(plan))[9:]


def test_a_state_without_lanes_or_of_another_step_is_refused(plan: Plan) -> None:
    loader = Loader(plan, prefetch=0)
    for _ in zip(range(5), loader.batches(), strict=False):
        pass
    state = loader.state_dict()
    for lanes in ({}, {"web": {**state["lanes"]["web"], "position": 3}}):
        with pytest.raises(ResumeError) as error:
            Loader(plan).load_state_dict({**state, "lanes": lanes})
        assert str(error.value) == (
            "cannot resume at step 5: the state has no lanes of stream web at row 15. Give the state of this step."
        )


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("lanes", 5, "sources.web.lanes was 4 and is now 5"),
        ("shuffle_buffer", 9, "sources.web.shuffle_buffer was 8 and is now 9"),
        ("column", "body", 'sources.web.column was "text" and is now "body"'),
        ("add", ["eos", "bos"], 'sources.web.add was absent and is now ["bos", "eos"]'),
    ],
)
def test_another_past_is_refused(plan: Plan, tmp_path: Path, key: str, value: Any, message: str) -> None:
    loader = Loader(plan)
    next(loader.batches())
    other = Loader(make_plan(stream_config(tmp_path, **{key: value})))
    with pytest.raises(ResumeError) as error:
        other.load_state_dict(loader.state_dict())
    assert str(error.value) == (
        f"cannot resume at step 1: {message}, and steps 0 to 0 have been taken. Put it back, or start a new run."
    )


def test_a_stream_needs_a_tokenizer_whose_ids_the_model_knows(tmp_path: Path) -> None:
    config = stream_config(tmp_path, [{"steps": 2, "seq_len": 32, "batch_size": 2, "mixture": {"web": 1.0}}])
    small = config.model_copy(update={"model": config.model.model_copy(update={"vocab": 256})})
    for changed, message in (
        (
            config.model_copy(update={"tokenizer": None}),
            (
                "sources.web: is a stream of text, and the config names no tokenizer. "
                'Write [tokenizer] with kind = "bytes" or a path.'
            ),
        ),
        (
            small,
            (
                "sources.web: its tokenizer gives ids up to 265, the model knows 0 to 255. "
                "Write model.vocab = 266 or more."
            ),
        ),
    ):
        with pytest.raises(PlanError) as error:
            Loader(make_plan(changed, sources={}))
        assert str(error.value) == message


def test_a_token_that_the_tokenizer_does_not_have_is_refused(tmp_path: Path) -> None:
    ranks = "".join(f"{base64.b64encode(bytes([byte])).decode()} {byte}\n" for byte in range(256))
    (tmp_path / "bytes.tiktoken").write_text(ranks)
    tokenizer = {"kind": "tiktoken", "path": str(tmp_path / "bytes.tiktoken"), "special_tokens": ["<|eos|>"]}
    changed = {"tokenizer": TokenizerConfig.model_validate(tokenizer)}
    config = stream_config(tmp_path, add=["bos"]).model_copy(update=changed)
    with pytest.raises(PlanError) as error:
        Loader(make_plan(config))
    said = 'add = ["bos"]: the tokenizer has no such token. Write add = [], or another token.'
    assert str(error.value) == f"sources.web: {said}"


def test_starting_over_is_said(tmp_path: Path) -> None:
    loader = Loader(
        make_plan(stream_config(tmp_path, [{"steps": 60, "seq_len": 64, "batch_size": 2, "sources": ["web"]}]))
    )
    said: list[str] = []
    loader.say = said.append
    hashes(loader)
    assert said[0] == "stream web: all lanes have ended: starts over, epoch 2"


@pytest.mark.slow
def test_killed_again_and_again_it_reads_the_same_rows(plan: Plan, tmp_path: Path) -> None:
    """Each launch writes a batch's hash and then the state, both at once or not at all; kills come at any time."""
    out = tmp_path / "read.json"
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.stream_chaos", str(tmp_path), str(out), "12", "1"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert json.loads(done.stdout)["kills"] == 12
    read = json.loads(out.read_text())
    assert read["hashes"] == hashes(Loader(plan))


def test_one_two_and_three_readers_in_turn_read_the_rows_of_one(plan: Plan) -> None:
    whole = [batch for _, batch in Loader(plan).batches()]
    state = Loader(plan).state_dict()
    rows = []
    for first, world_size in ((0, 1), (5, 2), (11, 3), (19, 1)):
        loaders = [Loader(plan, rank, world_size) for rank in range(world_size)]
        for loader in loaders:
            loader.load_state_dict(state)
        until = {0: 5, 5: 11, 11: 19, 19: 24}[first]
        for batches in zip(*(loader.batches() for loader in loaders), strict=True):
            rows.append(np.concatenate([batch.tokens for _, batch in batches]))
            if batches[0][0] + 1 == until:
                break
        state = json.loads(json.dumps(loaders[-1].state_dict()))
        assert state["step"] == until
    assert all(np.array_equal(found, batch.tokens) for found, batch in zip(rows, whole, strict=True))


def test_every_row_of_a_stream_has_an_address(plan: Plan, tmp_path: Path) -> None:
    for step in (0, 9, 20):
        batch = Loader(plan, prefetch=0).batch(step)
        for found in rows_of(plan, step):
            if found.source != "web":
                continue
            real = batch.segments[found.row] != PADDING
            tokens = np.concatenate([piece.tokens for piece in found.pieces])
            assert np.array_equal(tokens, batch.tokens[found.row][real])
            for piece in found.pieces:
                where = re.fullmatch(r"lane (\d), window \d+ \(file (\d+), example (\d+)\)", piece.file)
                assert where is not None
                lines = (tmp_path / "web" / f"00{where[2]}.jsonl").read_text().splitlines()
                text = json.loads(lines[int(where[3])])["text"].encode() + b"\0"
                assert piece.length == len(text)
                stop = piece.start + len(piece.tokens)
                assert (
                    np.where(piece.tokens == 256, 0, piece.tokens).astype(np.uint8).tobytes()
                    == text[piece.start : stop]
                )


def test_where_a_document_of_a_stream_is_read_cannot_be_told(plan: Plan) -> None:
    with pytest.raises(PlanError) as error:
        places_of(plan, "web", 3)
    assert str(error.value) == (
        "web is a stream: where a document of it is read is known only when it is. Ask for a step."
    )


def test_a_saved_state_does_not_move_the_loader_and_skipped_steps_are_read_over(plan: Plan) -> None:
    loader = Loader(plan, prefetch=2)
    batches = loader.batches()
    next(batches)
    ahead = loader.state_at(4)  # three steps are skipped
    assert loader.step == 1
    with Loader(plan) as other:
        other.seek(ahead["step"], ahead["lanes"])
        assert hashes(other) == hashes(Loader(plan))[4:]


@pytest.mark.parametrize("prefetch", [0, 3])
@pytest.mark.parametrize("world_size", [1, 2])
def test_the_rows_of_the_last_step_are_told_without_reading_a_stream_again(
    plan: Plan, prefetch: int, world_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = {step: rows_of(plan, step) for step in range(24)}
    reads: list[int] = []
    whole = Lanes._take

    def counted(lanes: Lanes) -> Any:
        reads.append(lanes.position)
        return whole(lanes)

    monkeypatch.setattr(Lanes, "_take", counted)
    with Loader(plan, 0, world_size, prefetch=prefetch) as loader:
        for step, _ in loader:
            before = len(reads)
            origins = origins_of(loader, step)
            assert len(reads) == before
            assert [(each.row, each.source, each.unknown) for each in origins] == [
                (each.row, each.source, None) for each in expected[step]
            ]
            assert [[asdict(piece) for piece in each.pieces] for each in origins] == [
                [{key: getattr(piece, key) for key in ORIGIN} for piece in each.pieces] for each in expected[step]
            ]
        words = open_tokenizer(plan.config.tokenizer)
        assert words is not None
        kept = origins_of(loader, step, np.arange(len(origins), dtype=np.float32), words)
        assert [each.loss for each in kept] == list(range(len(origins)))
        assert [[piece.text for piece in each.pieces[:8]] for each in kept] == [
            [words.decode(piece.tokens[:64].tolist())[:240] for piece in each.pieces[:8]] for each in expected[step]
        ]
    web = sum(address.source == "web" for rows in expected.values() for address in rows)
    assert len(reads) == web  # each row once


def test_rows_that_are_no_longer_in_memory_are_said_to_be_unknown(plan: Plan) -> None:
    loader = Loader(plan, prefetch=0)
    found = origins_of(loader, 9)  # nothing has been read
    assert {each.source: each.unknown is None for each in found} == {"web": False, "code": True}
    row = next(each for each in found if each.source == "web")
    assert (row.epoch, row.pieces) == (None, ())
    assert re.fullmatch(r"row \d+ of stream web is no longer in memory", row.unknown or "")
    assert loader.streams.lanes["web"].position == 0


def test_a_source_that_is_gone_does_not_stop_an_explanation(tmp_path: Path) -> None:
    plan = make_plan(stream_config(tmp_path))
    loader = Loader(plan, prefetch=0)
    for path in (tmp_path / "code").iterdir():
        path.unlink()
    assert len(origins_of(loader, 0)) == 6


def test_a_stage_that_ends_early_goes_on_with_the_rows_of_a_plan_that_knew_it(tmp_path: Path) -> None:
    until = {"validation": "all", "below": 2.0}
    said = [{**stage, "until": until} for stage in STREAM_STAGES]
    config = stream_config(tmp_path, said, evaluate={"every": 1})
    plan = make_plan(config)
    loader, found, decisions = Loader(plan, prefetch=5), [], []
    for end in (4, 9, 11, 12):  # within each of the stages, the last one too
        for _, batch in loader.batches():
            found.append(batch_hash(batch))
            if loader.step == end:
                break
        decisions.append(StageEnded(step=end, until="validation loss below 2.0", figure=1.9))
        plan = make_plan(config, plan.sources, decisions=decisions)
        loader = loader.followed(plan, end)
    loader.close()
    assert plan.total_steps == len(found) == 12
    assert hashes(Loader(plan)) == found
