"""What each rank's engine was given, step by step: a hash of every row, which ranks write and launches compare.

A step's batch is the rows of all readers, in their order. Ranks that share rows must have been given the same ones, and
so must a rank that takes a step again.
"""

import json
from hashlib import blake2b
from pathlib import Path

from trivium.files import parse_json
from trivium.rows.batch import Batch
from trivium.run.folder import RunFolder

FOLDER = "given"  # of a run
Hashes = tuple[str, ...]  # of rows


def row_hashes(batch: Batch) -> Hashes:
    """A hash of every row: all of its slots, and its source."""
    arrays = (batch.tokens, batch.targets, batch.segments, batch.positions)
    hashes = []
    for row in range(batch.num_rows):
        digest = blake2b(batch.sources[batch.source[row]].encode(), digest_size=16)
        for array in arrays:
            digest.update(array[row].tobytes())
        hashes.append(digest.hexdigest())
    return tuple(hashes)


def write_given(run: Path, rank: int, step: int, reader: tuple[int, int], batch: Batch) -> None:
    """Add what a rank was given in a step; `reader` is its number among those that read, and how many these are."""
    folder = run / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / f"rank-{rank:05}.jsonl", "a") as file:
        file.write(f"{json.dumps([step, *reader, row_hashes(batch)])}\n")


def given_batches(run: RunFolder) -> dict[int, Hashes | None]:
    """The rows of every step; None where a reader has none, or where ranks that share rows were given others."""
    found: dict[int, dict[int, set[Hashes]]] = {}
    readers: dict[int, int] = {}
    for path in sorted((run.path / FOLDER).glob("rank-*.jsonl")):
        for line in path.read_bytes().splitlines():
            step, reader, readers[step], rows = parse_json(line)
            found.setdefault(step, {}).setdefault(reader, set()).add(tuple(rows))
    return {step: _joined(by_reader, readers[step]) for step, by_reader in found.items()}


def _joined(by_reader: dict[int, set[Hashes]], readers: int) -> Hashes | None:
    each = [by_reader.get(reader, set()) for reader in range(readers)]
    if any(len(versions) != 1 for versions in each):
        return None
    return tuple(row for versions in each for rows in versions for row in rows)
