"""How fast a window is packed, and how well: `bestfit` beside OLMo-core's packer, the crops beside plain Python.

    python benchmarks/packing.py

A pair is timed in one run on the same lengths, the best of a few calls each: the ratio holds where the
times do not. OLMo-core's packer is given documents already cut to a row's length; `bestfit` cuts its own.
"""

import importlib
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trivium.rows.packing import CROP_RULES, Packing, Policy, pack

WINDOW_TOKENS = 2**24
SEQ_LENS = (2048, 8192)
CROPS: tuple[Policy, ...] = ("crop", "crop-first")


def web_like_lengths(tokens: int) -> NDArray[np.int64]:
    """Lengths of web documents, by and large: half are under 365 tokens, one in sixteen is over 2,048."""
    lengths = np.random.default_rng(0).lognormal(5.9, 1.1, tokens // 250).astype(np.int64) + 1
    return lengths[: int(np.searchsorted(np.cumsum(lengths), tokens))]


def best_seconds(work: Callable[[], object], calls: int) -> float:
    seconds = []
    for _ in range(calls):
        begin = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


def plain_crop(lengths: list[int], capacity: int, policy: Policy) -> list[list[tuple[int, int]]]:
    """The rule of `crop` or `crop-first` in plain Python: rows of (span, length)."""
    rule = CROP_RULES[policy]
    coming = list(enumerate(lengths))[::-1]
    buffer: list[tuple[int, int]] = []
    rows = []
    while coming or buffer:
        row, space = [], capacity
        while space and (coming or buffer):
            while coming and len(buffer) < rule.buffer_spans:
                buffer += coming[-rule.refill_spans :][::-1]
                del coming[-rule.refill_spans :]
            best, best_length = -1, 0
            for place, (_, length) in enumerate(buffer):
                if best_length < length <= space:
                    best, best_length = place, length
            if best < 0:
                best = 0 if rule.crops_first else min(range(len(buffer)), key=lambda place: buffer[place][1])
            span, length = buffer.pop(best)
            row.append((span, min(length, space)))
            space -= row[-1][1]
        rows.append(row)
    return rows


@dataclass(frozen=True, slots=True)
class Measured:
    """One line of the table: who packed, how long it took, and into how much room."""

    name: str
    seconds: float
    slots: int
    laid: int


def measure_ours(policy: Policy, lengths: NDArray[np.int64], seq_len: int) -> tuple[Packing, Measured]:
    packing = pack(policy, lengths, seq_len)  # compiles, where that is still to do
    seconds = best_seconds(lambda: pack(policy, lengths, seq_len), calls=20)
    return packing, Measured(policy, seconds, packing.num_rows * packing.capacity, packing.tokens)


def measure_olmo(lengths: NDArray[np.int64], seq_len: int) -> Measured | None:
    """OLMo-core's packer, if it is installed."""
    try:
        olmo = importlib.import_module("olmo_core.data.utils")
    except ImportError:
        return None
    ends = np.cumsum(pack("pad", lengths, seq_len).length, dtype=np.int64)
    pieces = np.stack([np.append(0, ends[:-1]), ends], axis=1)
    rows, _, laid = olmo.InstancePacker(seq_len).pack_documents(pieces)
    seconds = best_seconds(lambda: olmo.InstancePacker(seq_len).pack_documents(pieces), calls=3)
    return Measured("OLMo-core", seconds, len(rows) * seq_len, laid)


def measure_plain_crop(lengths: NDArray[np.int64], packing: Packing, policy: Policy) -> Measured:
    """The plain rule, after a check that `packing` has its rows."""
    spans = lengths.tolist()
    rows = plain_crop(spans, packing.capacity, policy)
    assert packing.row_starts.tolist() == np.cumsum([0, *map(len, rows)]).tolist()
    assert packing.span.tolist() == [span for row in rows for span, _ in row]
    assert packing.length.tolist() == [length for row in rows for _, length in row]
    seconds = best_seconds(lambda: plain_crop(spans, packing.capacity, policy), calls=2)
    return Measured("plain rule, same rows", seconds, len(rows) * packing.capacity, packing.tokens)


def print_pair(lengths: NDArray[np.int64], seq_len: int, ours: Measured, peer: Measured | None) -> None:
    tokens = int(lengths.sum())
    for measured in (ours, peer):
        if measured is None:
            print("OLMo-core               not installed: pip install 'trivium[bench]'")
            continue
        columns = (
            f"{seq_len:,}",
            f"{tokens / measured.seconds / 1e6:,.1f}",
            f"{len(lengths) / measured.seconds / 1e6:.3f}",
            f"{1 - measured.laid / measured.slots:.4%}",
            f"{1 - measured.laid / tokens:.2%}",
            f"{peer.seconds / measured.seconds:,.0f} x" if peer else "",
        )
        print_line(measured.name, columns)


def print_line(name: str, columns: tuple[str, ...]) -> None:
    print(f"{name:<24}" + "".join(f"{column:>15}" for column in columns))


def main() -> None:
    lengths = web_like_lengths(WINDOW_TOKENS)
    print(f"a window of {lengths.sum():,} tokens in {len(lengths):,} documents of web-like lengths\n")
    print_line("", ("seq_len", "M tokens/s", "M documents/s", "padding", "dropped", "speed"))
    for seq_len in SEQ_LENS:
        _, ours = measure_ours("bestfit", lengths, seq_len)
        print_pair(lengths, seq_len, ours, measure_olmo(lengths, seq_len))
    for policy in CROPS:
        for seq_len in SEQ_LENS:
            packing, ours = measure_ours(policy, lengths, seq_len)
            print_pair(lengths, seq_len, ours, measure_plain_crop(lengths, packing, policy))


if __name__ == "__main__":
    main()
