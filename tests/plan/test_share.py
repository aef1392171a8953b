"""What rank 0 tells the others: the same plan and the same rows of it, and no file is opened before it is read."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.support.corpus import make_config, write_source
from trivium import files
from trivium.errors import SourceError
from trivium.loader.loader import Loader
from trivium.plan.make import make_plan
from trivium.plan.share import found_out, known_sources
from trivium.rows.blocks import FileBlocks
from trivium.tokenfiles import open as opening

STAGES = [
    {"steps": 3, "seq_len": 8, "batch_size": 4, "mixture": {"web": 0.5, "talk": 0.5}},
    {"steps": 3, "seq_len": 16, "batch_size": 2, "mixture": {"web": 0.5, "talk": 0.5}},  # with what is left over
    {"steps": 1, "seq_len": 16, "batch_size": 2, "mixture": {"long": 0.5, "talk": 0.5}},
]
LONG = {"from": "web", "min_tokens": 8}


def test_another_rank_makes_the_same_plan_without_opening_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_source(tmp_path / "web", [[5, 9, 3, 11], [7, 30], [4] * 9], "uint16")
    write_source(tmp_path / "talk", [[12, 6], [3, 3, 20]], loss=True)
    web = {"kind": "tokens", "path": str(tmp_path / "web"), "validation": 0.3, "window_blocks": 1, "block_tokens": 16}
    sources = {"web": web, "long": LONG, "talk": tmp_path / "talk"}
    config = make_config(sources, STAGES, model={"size": "tiny", "vocab": 512})
    monkeypatch.setenv("TRIVIUM_CACHE", str(tmp_path / "first"))
    first = make_plan(config)
    told = json.loads(json.dumps(found_out(first)))

    monkeypatch.setenv("TRIVIUM_CACHE", str(tmp_path / "second"))
    opened: list[str] = []
    map_file = files.map_file

    def counted(path: Path) -> memoryview:
        opened.append(str(path))
        return map_file(path)

    monkeypatch.setattr(opening, "map_file", counted)
    second = make_plan(config, known_sources(config, told))
    assert second.fingerprint(7) == first.fingerprint(7)
    assert second.record(7) == first.record(7)
    counts = [(each.documents, each.tokens, each.held_out_tokens, each.largest_id) for each in second.sources.values()]
    assert counts == [
        (each.documents, each.tokens, each.held_out_tokens, each.largest_id) for each in first.sources.values()
    ]
    assert opened == []
    with Loader(first, prefetch=0) as ours, Loader(second, prefetch=0) as theirs:
        for step in range(7):
            one, other = ours.batch(step), theirs.batch(step)
            assert np.array_equal(one.tokens, other.tokens)
            assert np.array_equal(one.targets, other.targets)
    assert len(opened) == len(set(opened)) > 0


def test_a_copy_that_differs_from_rank_0s_is_refused_when_it_is_read(tmp_path: Path) -> None:
    write_source(tmp_path / "web", [[5, 9], [7, 30]], "uint16")
    stage = {"steps": 1, "seq_len": 8, "batch_size": 2}
    config = make_config({"web": tmp_path / "web"}, [stage], model={"size": "tiny", "vocab": 512})
    told = found_out(make_plan(config))
    write_source(tmp_path / "web", [[5, 9], [7, 31]], "uint16")
    blocks = known_sources(config, told)["web"].blocks
    assert isinstance(blocks, FileBlocks)
    with pytest.raises(SourceError) as refusal:
        blocks.opened(1)
    assert str(refusal.value) == (
        f"{tmp_path}/web/001.ds: has 2 documents, 38 tokens of uint16 here, and had 2 documents, 37 tokens of uint16 "
        "on rank 0. Copy it again: all ranks must read the same files."
    )
