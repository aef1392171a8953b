"""step -> row -> source, document, span; and back."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests.support.corpus import document_ends, make_config, write_source
from trivium.errors import PlanError
from trivium.loader.loader import Loader
from trivium.loader.trace import places_of, rows_of
from trivium.plan.make import make_plan
from trivium.plan.plan import Plan
from trivium.run.decisions import BatchResized


@pytest.fixture(params=["bestfit", "concat", "crop", "crop-first", "pad"])
def plan(request: pytest.FixtureRequest, tmp_path: Path) -> Plan:
    """Two sources over three stages with other row lengths, batch sizes and seeds, several epochs long."""
    rng = np.random.default_rng(0)
    small = {"kind": "tokens", "block_tokens": 32, "window_blocks": 2}
    sources = {
        name: {
            **small,
            "path": str(write_source(tmp_path / name, [rng.integers(1, 90, 12).tolist() for _ in range(2)])),
        }
        for name in ("web", "code")
    }
    ramp = {"from": 2, "to": 6, "over": 256, "by": 2}
    stages: list[dict[str, object]] = [
        {"steps": 9, "seq_len": 16, "batch_size": ramp, "weights": {"web": 3, "code": 1}, "packing": request.param},
        {"steps": 5, "seq_len": 40, "batch_size": 4, "weights": {"web": 1, "code": 1}, "fade": {"steps": 2}},
        {"steps": 30, "seq_len": 16, "batch_size": 4, "weights": {"web": 1}, "packing": request.param, "seed": 9},
    ]
    return make_plan(make_config(sources, stages), decisions=[BatchResized(step=20, size=3)])


def test_rows_name_the_tokens_that_stand_in_them(plan: Plan) -> None:
    loader = Loader(plan)
    for step in range(plan.known_steps):
        batch = loader.batch(step)
        for row, address in enumerate(rows_of(plan, step)):
            assert address.row == row
            assert address.source == batch.sources[batch.source[row]]
            laid = [token for piece in address.pieces for token in piece.tokens.tolist()]
            assert laid == batch.tokens[row, : len(laid)].tolist()
            assert address.padding == plan.stage_at(step).seq_len - len(laid)


def test_a_piece_is_where_its_document_says(plan: Plan) -> None:
    ends = {
        name: document_ends([np.diff(file.ends, prepend=0).tolist() for file in source.blocks.files])  # type: ignore[attr-defined]
        for name, source in plan.sources.items()
    }
    for step in range(plan.known_steps):
        for address in rows_of(plan, step):
            for piece in address.pieces:
                first = int(ends[address.source][piece.document - 1]) if piece.document else 0
                assert piece.length == ends[address.source][piece.document] - first
                if len(piece.tokens):  # token n of a source has the id n
                    assert piece.tokens[0] == first + piece.start
                assert piece.stop - piece.start in (len(piece.tokens), len(piece.tokens) + 1)


def test_a_document_is_found_in_every_place_where_it_is_read(plan: Plan) -> None:
    read: dict[tuple[str, int], Counter[tuple[int, int, int, int]]] = {}
    for step in range(plan.known_steps):
        for address in rows_of(plan, step):
            for piece in address.pieces:
                counter = read.setdefault((address.source, piece.document), Counter())
                counter[step, address.row, piece.start, piece.stop] += 1
    for source in plan.sources:
        for document in range(24):
            found = places_of(plan, source, document)
            expected = read.get((source, document), Counter())
            assert Counter((place.step, place.row, place.start, place.stop) for place in found) == expected


def test_a_document_or_source_that_is_not_there_is_refused(plan: Plan) -> None:
    with pytest.raises(PlanError) as error:
        places_of(plan, "web", 24)
    assert str(error.value) == "web has no document 24. Give one from 0 to 23."
    with pytest.raises(PlanError) as error:
        places_of(plan, "wbe", 0)
    assert str(error.value) == 'there is no source "wbe" on disk. There is: code, web.'
