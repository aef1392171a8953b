"""theseus's samplings: which files and rows a stage reads, how its fades mix them, and padding on the left."""

import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.support.dialects import shares, spans
from tests.support.theseus import PADDED, PMD, load, plan_of, written
from trivium.loader.loader import Loader
from trivium.rows.batch import PADDING


def test_a_suffix_selects_a_folder_of_its_own(file: Path) -> None:
    written(file, training__dataset=[[PMD], [PMD | {"suffix": "v2"}]])
    paths = {name: table["path"] for name, table in load(file).raw["sources"].items()}
    assert paths == {"fineweb": "data/fineweb/train.bin", "fineweb_v2": "data/fineweb_v2/train.bin"}


def test_a_stage_of_both_styles_is_padded(file: Path) -> None:
    both = [PMD | {"rate": 0.25}, PADDED | {"rate": 0.75}]
    plan = plan_of(written(file, training__dataset=[[PMD], both]))
    assert shares(plan)[1] == {"fineweb": 0.25, "mnli": 0.75}
    assert plan.stages[1].config.packing == "pad"


def test_validation_reads_the_other_split(file: Path) -> None:
    written(file, training__validation=True, training__validation_steps=100, logging__validation_interval=7)
    tables = load(file).raw
    assert tables["evaluate"] == {"every": 7, "tokens": 51_200, "sources": ["fineweb-val", "mnli-val"]}
    assert tables["sources"]["mnli-val"] == {
        "kind": "tokens",
        "path": "data/mnli/val.bin",
        "dtype": "uint32",
        "validation_only": True,
        "padding": "left",
    }


def their_parts(token: float, budgets: list[int], overlap: float, curve: str, steepness: float) -> list[float]:
    """Each dataset's part at a token, as they document it: ramps centred on the boundaries, normalised."""
    ends = list(itertools.accumulate(budgets))
    curves: dict[str, Callable[[float], float]] = {
        "linear": lambda t: t,
        "cosine": lambda t: (1 - math.cos(math.pi * t)) / 2,
        "sigmoid": lambda t: 1 / (1 + math.exp(-steepness * (t - 0.5))),
    }

    def risen(boundary: int) -> float:
        half = overlap * min(budgets[boundary], budgets[boundary + 1]) / 2
        if token < ends[boundary] - half:
            return 0.0
        return 1.0 if token >= ends[boundary] + half else curves[curve]((token - ends[boundary] + half) / (2 * half))

    rises = [1.0, *(risen(boundary) for boundary in range(len(budgets) - 1)), 0.0]
    parts = [min(before, 1 - after) for before, after in itertools.pairwise(rises)]
    return [part / sum(parts) for part in parts]


@pytest.mark.parametrize("curve", ["linear", "cosine", "sigmoid"])
def test_a_fade_has_their_rows_in_every_step(file: Path, curve: str) -> None:
    budgets, overlap, batch, step_tokens = [409_600, 204_800, 102_400], 0.5, 200, 200 * 8
    written(
        file,
        architecture__block_size=8,
        training__batch_size=batch,
        training__tokens=budgets,
        training__dataset=[[PMD], [PADDED], [PMD | {"suffix": "end"}]],
        training__fade={"overlap": overlap, "curve": curve, "steepness": 12.0},
    )
    plan = plan_of(file)
    names = ["fineweb", "mnli", "fineweb_end"]
    for stage in plan.stages:
        assert stage.mixture is not None
        before = dict.fromkeys(names, 0)
        for step in range(stage.start or 0, stage.end or 0):
            rows = (step + 1 - (stage.start or 0)) * batch
            counts = {
                **dict.fromkeys(names, 0),
                **dict(zip(stage.mixture.names, stage.mixture.count(rows), strict=True)),
            }
            given = [(counts[name] - before[name]) / batch for name in names]
            middle = (step + 0.5) * step_tokens
            assert given == pytest.approx(their_parts(middle, budgets, overlap, curve, 12.0), abs=0.011)
            before = counts
    fade = load(file).config.stages[1].fade
    assert fade is not None
    assert (fade.tokens, fade.shape, fade.center) == (102_400, curve, True)
    assert {stage.config.packing for stage in plan.stages} == {"pad"}  # rows of the padded source are its documents


def test_an_overlap_for_each_boundary_counts_before_the_one_for_all(file: Path) -> None:
    three = {"training__tokens": [40_960] * 3, "training__dataset": [[PMD], [PADDED], [PMD]]}
    fade = {"overlap": 0.5, "per_boundary_overlap": [0.0, 0.25]}
    fades = [stage.fade for stage in load(written(file, **three, training__fade=fade)).config.stages]
    assert [None if each is None else each.tokens for each in fades] == [None, None, 10_240]


def test_a_stage_has_the_steps_whose_first_token_is_its_own(file: Path) -> None:
    """Theirs counts tokens through the run: 100.5 steps, then 9.75, end after 110 whole steps."""
    plan = plan_of(written(file, training__tokens=[411_648, 39_936]))
    assert spans(plan) == [("stage-0", 0, 101), ("stage-1", 101, 110)]


def test_rows_padded_on_the_left_are_read_without_their_padding(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    folder = file.parent / "data" / "mnli"
    folder.mkdir(parents=True)
    texts = [[5, 6, 7], [8], [9, 10, 11, 12]]
    rows = [[0] * (4 - len(text)) + text for text in texts]
    np.array(rows, np.uint32).tofile(folder / "train.bin")
    np.array([[token > 0 for token in row] for row in rows], np.bool_).tofile(folder / "train.bin.mask")
    (folder / "shape.json").write_text(json.dumps({"train": [3, 4]}))
    keys = {"architecture__block_size": 4, "training__batch_size": 3, "architecture__vocab_size": 16}
    written(file, training__tokens=[12], training__dataset=[[PADDED]], **keys)
    batch = Loader(plan_of(file)).batch(0)
    read = [row[segments != PADDING].tolist() for row, segments in zip(batch.tokens, batch.segments, strict=True)]
    assert sorted(read) == sorted(texts)


def test_rows_are_padded_on_the_left_also_where_one_ends_masked(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    folder = file.parent / "data" / "mnli"
    folder.mkdir(parents=True)
    np.array([[0, 5, 6, 7], [0, 0, 0, 8], [9, 10, 11, 12]], np.uint32).tofile(folder / "train.bin")
    np.array([[0, 0, 1, 1], [0, 0, 0, 1], [0, 1, 1, 0]], np.bool_).tofile(folder / "train.bin.mask")
    (folder / "shape.json").write_text(json.dumps({"train": [3, 4]}))
    keys = {"architecture__block_size": 4, "training__batch_size": 3, "architecture__vocab_size": 16}
    written(file, training__tokens=[12], training__dataset=[[PADDED]], **keys)
    batch = Loader(plan_of(file)).batch(0)
    read = [row[segments != PADDING].tolist() for row, segments in zip(batch.tokens, batch.segments, strict=True)]
    assert sorted(read) == [[5, 6, 7], [8], [9, 10, 11, 12]]
