"""A stage with a goldfish mask drops the same tokens in every epoch, on any ranks, of files and of streams."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.corpus import make_config, write_source
from tests.support.streams import stream_config
from trivium.config.schema import Config
from trivium.loader.loader import Loader
from trivium.loader.trace import rows_of
from trivium.plan.make import make_plan
from trivium.rows.batch import IGNORED, Batch

GOLDFISH = {"k": 4, "h": 3}
STAGES: list[dict[str, Any]] = [
    {"steps": 12, "seq_len": 16, "batch_size": 4, "goldfish": GOLDFISH},
    {"steps": 12, "seq_len": 40, "batch_size": 2, "goldfish": GOLDFISH, "packing": "concat"},
    {"steps": 3, "seq_len": 40, "batch_size": 2},
]
STREAMED = [stage | {"mixture": {"web": 1.0}} for stage in STAGES[:2]]


def file_config(folder: Path) -> Config:
    """A source whose tokens are numbered, read several times."""
    lengths = np.random.default_rng(0).integers(1, 90, 12).tolist()
    write_source(folder / "web", [lengths])
    return make_config({"web": {"kind": "tokens", "path": str(folder / "web"), "block_tokens": 32}}, STAGES)


def batches(config: Config, rank: int = 0, world_size: int = 1) -> list[Batch]:
    with Loader(make_plan(config), rank, world_size) as loader:
        return [batch for _, batch in loader]


def targets_of(found: list[Batch]) -> set[int]:
    return {target for batch in found for target in batch.targets[batch.targets != IGNORED].tolist()}


def test_a_token_is_a_target_in_every_epoch_or_in_none(tmp_path: Path) -> None:
    found = batches(file_config(tmp_path))
    first, second, plain = targets_of(found[:12]), targets_of(found[12:24]), targets_of(found[24:])
    assert first == second
    assert plain - first
    read = {token for batch in found for token in batch.tokens[batch.segments >= 0].tolist()}
    assert 0.15 * len(read) < len(read - first) < 0.4 * len(read)


@pytest.mark.parametrize("kind", ["files", "stream"])
def test_ranks_change_no_mask(kind: str, tmp_path: Path) -> None:
    config = file_config(tmp_path) if kind == "files" else stream_config(tmp_path, STREAMED)
    whole, ranks = batches(config), [batches(config, rank, 2) for rank in range(2)]
    for step, batch in enumerate(whole):
        assert np.array_equal(np.concatenate([rank[step].targets for rank in ranks]), batch.targets)


def test_a_stream_has_the_mask_of_its_documents_however_they_are_cut(tmp_path: Path) -> None:
    """By the text of a target and the three bytes before it, where these are in its row."""
    found = batches(stream_config(tmp_path, STREAMED))
    learnt: dict[bytes, set[bool]] = {}
    for batch in found:
        for tokens, targets, positions, segments in zip(
            batch.tokens, batch.targets, batch.positions, batch.segments, strict=True
        ):
            for slot in range(3, len(tokens) - 1):
                if positions[slot] >= 2 and segments[slot + 1] == segments[slot] and tokens[slot + 1] < 256:
                    context = bytes(tokens[slot - 2 : slot + 1].tolist())
                    learnt.setdefault(context, set()).add(bool(targets[slot] != IGNORED))
    assert {len(each) for each in learnt.values()} == {1}
    assert {learns for each in learnt.values() for learns in each} == {True, False}


def test_the_plan_says_that_loss_tokens_are_expected_and_inspect_shows_the_gaps(tmp_path: Path) -> None:
    plan = make_plan(file_config(tmp_path))
    masked, plain = plan.stages[0].uses["web"], plan.stages[2].uses["web"]
    assert masked.figures is not None
    assert (masked.loss_tokens, masked.dropped) == (round(masked.figures.unmasked * 0.75), 0.25)
    assert (plain.loss_tokens, plain.dropped) == (plain.figures and plain.figures.unmasked, 0)
    shown = [piece.loss_mask[:-1] for row in rows_of(plan, 0) for piece in row.pieces]
    assert not np.concatenate(shown).all()
