"""Configs of small token files for a loader, drawn or written, and copies of what it read."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from tests.support.corpus import Lengths, make_config, write_source
from trivium.config.schema import Config
from trivium.config.stages import Stage
from trivium.rows.batch import PADDING, Batch

SMALL = {"block_tokens": 32, "window_blocks": 2}
FILES = st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=10), min_size=1, max_size=3).filter(
    lambda files: all(any(lengths) for lengths in files)
)


def ramps_of(unit: int) -> st.SearchStrategy[dict[str, int]]:
    """Ramps whose sizes are multiples of a number, short enough for most stages."""
    sizes = st.tuples(st.integers(1, 3), st.integers(1, 2), st.integers(1, 3), st.integers(1, 200))
    return sizes.map(
        lambda drawn: {
            "from": unit * drawn[0],
            "by": unit * drawn[1],
            "to": unit * (drawn[0] + drawn[1] * drawn[2]),
            "over": drawn[3],
        }
    )


def stages_fit(stages: list[dict[str, Any]]) -> bool:
    """Whether every stage is long enough for its ramp, its own fade of one step and half of the next one's."""
    whole_steps = [1 + ("fade" in stage and not stage["fade"]["center"]) for stage in stages]
    for stage, steps in zip(stages, whole_steps, strict=True):
        batches = Stage.model_validate({"name": "one", **stage}).batches
        if stage["steps"] < steps or batches.rows_before(stage["steps"]) == 1:
            return False
        if batches.pieces[-1].step >= stage["steps"]:
            return False
    return True


STAGES: st.SearchStrategy[list[dict[str, Any]]] = st.lists(
    st.fixed_dictionaries(
        {
            "steps": st.integers(1, 6),
            "seq_len": st.integers(2, 24),
            "batch_size": st.sampled_from([1, 2, 4, 6, 16]) | ramps_of(1),
            "packing": st.sampled_from(["concat", "bestfit", "crop", "crop-first", "pad"]),
            "weights": st.fixed_dictionaries({"web": st.integers(1, 5), "code": st.integers(0, 5)}),
        },
        optional={
            "seed": st.integers(0, 3),
            "fade": st.fixed_dictionaries(
                {
                    "steps": st.just(1),
                    "shape": st.sampled_from(["linear", "cosine", "sigmoid"]),
                    "center": st.booleans(),
                }
            ),
        },
    ),
    min_size=1,
    max_size=4,
).filter(stages_fit)


def write_config(
    folder: Path, sources: Mapping[str, Lengths], stages: list[dict[str, object]], **tables: object
) -> Config:
    """A config of these token files and stages, without the fade of the first stage, if it has one."""
    tables_of = {
        name: {"kind": "tokens", "path": str(write_source(folder / name, files)), **SMALL}
        for name, files in sources.items()
    }
    faded = [
        stage if number else {key: stage[key] for key in stage if key != "fade"} for number, stage in enumerate(stages)
    ]
    return make_config(tables_of, faded, **tables)


def copied(batch: Batch) -> tuple[bytes, ...]:
    """A batch's arrays as bytes of their own, which outlive the batch."""
    return tuple(getattr(batch, field).tobytes() for field in ("tokens", "targets", "segments", "positions", "source"))


def read_tokens(batch: Batch, source: str) -> list[int]:
    """The tokens of a batch that are one source's, without padding."""
    rows = batch.source == batch.sources.index(source)
    tokens: list[int] = batch.tokens[rows][batch.segments[rows] != PADDING].tolist()
    return tokens
