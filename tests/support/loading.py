"""Configs of small token files for a loader, and copies of what it read."""

from collections.abc import Mapping
from pathlib import Path

from tests.support.corpus import Lengths, make_config, write_source
from trivium.config.schema import Config
from trivium.rows.batch import Batch

SMALL = {"block_tokens": 32, "window_blocks": 2}


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
