"""Documents that do not count in the loss: ignored wherever they are read, and nothing else changes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.corpus import make_config, write_source
from trivium.config.schema import Config
from trivium.errors import PlanError
from trivium.loader.loader import Loader
from trivium.loader.trace import places_of, rows_of
from trivium.loader.without import Without
from trivium.plan.make import make_plan
from trivium.rows.batch import IGNORED, Batch

STAGES: list[dict[str, Any]] = [
    {"steps": 8, "seq_len": 16, "batch_size": 4, "mixture": {"web": 0.75, "code": 0.25}},
    {"steps": 6, "seq_len": 24, "batch_size": 2, "mixture": {"code": 0.5, "long": 0.5}, "packing": "concat"},
    {"steps": 4, "seq_len": 40, "batch_size": 2, "mixture": {"web": 1.0}, "packing": "crop"},
]
LEFT = (4, 9)


def config_of(folder: Path, without: tuple[int, ...] = (), **web: Any) -> Config:
    """Two sources in two files each, and a view of one."""
    lengths = np.random.default_rng(3).integers(1, 70, (2, 14)).tolist()
    for name in ("web", "code"):
        if not (folder / name).exists():
            write_source(folder / name, lengths)
    sources: dict[str, dict[str, Any]] = {
        name: {"kind": "tokens", "path": str(folder / name), "block_tokens": 32} for name in ("web", "code")
    }
    sources["web"] |= {"without": list(without), **web} if without else web
    sources["long"] = {"from": "web", "min_tokens": 20}
    return make_config(sources, STAGES)


def batches(config: Config, rank: int = 0, ranks: int = 1) -> list[Batch]:
    with Loader(make_plan(config), rank, ranks) as loader:
        return [batch for _, batch in loader]


def test_only_targets_of_these_documents_change(tmp_path: Path) -> None:
    whole, some = batches(config_of(tmp_path)), batches(config_of(tmp_path, LEFT))
    plan = make_plan(config_of(tmp_path, LEFT))
    seen: set[int] = set()
    for step, (before, after) in enumerate(zip(whole, some, strict=True)):
        assert all(
            np.array_equal(getattr(before, key), getattr(after, key)) for key in ("tokens", "segments", "source")
        )
        expected = before.targets.copy()
        for row in rows_of(plan, step):
            column = 0
            for piece in row.pieces:
                end = column + len(piece.tokens)
                if row.source in ("web", "long") and piece.document in LEFT:
                    expected[row.row, column:end] = IGNORED
                    seen.add(piece.document)
                column = end
        assert np.array_equal(after.targets, expected)
    assert seen == set(LEFT)


def test_ranks_ignore_the_same(tmp_path: Path) -> None:
    config = config_of(tmp_path, LEFT)
    ranks = [batches(config, rank, 2) for rank in range(2)]
    for step, batch in enumerate(batches(config)):
        assert np.array_equal(np.concatenate([each[step].targets for each in ranks]), batch.targets)


def test_a_whole_source_can_be_ignored(tmp_path: Path) -> None:
    plan = make_plan(config_of(tmp_path))
    with Loader(plan) as loader:
        loader.without = Without.given(plan, loader.sources, {"code": None})
        batch = loader.batch(0)
    is_code = batch.source == loader.sources.index("code")
    assert (batch.targets[is_code] == IGNORED).all()
    assert np.array_equal(batch.targets[~is_code], batches(config_of(tmp_path))[0].targets[~is_code])


def test_the_record_has_a_document_once_it_was_read(tmp_path: Path) -> None:
    """So that one which is yet to come may be named, and one that was read may not."""
    plain, named = make_plan(config_of(tmp_path)), make_plan(config_of(tmp_path, LEFT))
    first = {document: places_of(plain, "web", document)[0].step for document in LEFT}
    assert first[4] != first[9]
    for step in range(len(batches(config_of(tmp_path))) + 1):
        taken = [document for document in LEFT if first[document] < step]
        assert named.record(step).get("sources.web.without", []) == taken
        assert (named.fingerprint(step) == plain.fingerprint(step)) == (not taken)


def test_documents_that_are_not_trained_on_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError) as error:
        make_plan(config_of(tmp_path, (3, 28, 400)))
    assert str(error.value) == "\n".join(
        f"sources.web.without: there is no document {number}: web has 0 to 27. Leave it out." for number in (28, 400)
    )
    plan = make_plan(config_of(tmp_path, validation=0.3))
    held = next(number for number in range(28) if plan.sources["web"].blocks.is_held_out(number))  # type: ignore[attr-defined]
    with pytest.raises(PlanError) as error:
        make_plan(config_of(tmp_path, (held,), validation=0.3))
    what = f"sources.web.without: document {held} is held out for validation, and never trained on. Leave it out."
    assert str(error.value) == what
