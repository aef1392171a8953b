"""Row length and rotary base -> the cosines and sines of every position; NumPy, shared by the engines.

All arithmetic is float32 and in the order of the models that others publish, so that a model read from a
checkpoint sees at position 100,000 the angles it was trained with.
"""

import math

import numpy as np
from numpy.typing import NDArray

from trivium.model.spec import RopeSpec

Table = NDArray[np.float32]


def rotary_tables(rope: RopeSpec, head_dim: int, seq_len: int) -> tuple[Table, Table]:
    """Cosines and sines, (seq_len, head_dim / 2) each; yarn's attention factor is in them."""
    frequencies, magnitude = rotary_frequencies(rope, head_dim)
    angles = np.arange(seq_len, dtype=np.float32)[:, None] * frequencies
    scale = np.float32(magnitude)
    return np.cos(angles) * scale, np.sin(angles) * scale


def rotary_frequencies(rope: RopeSpec, head_dim: int) -> tuple[Table, float]:
    """Radians a position for every pair of a head's channels, and what queries and keys are multiplied by."""
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    plain = np.float32(1) / np.float32(rope.theta) ** exponents
    match rope.scaling:
        case None:
            return plain, 1.0
        case "linear":
            return plain / np.float32(rope.factor), 1.0
        case "ntk-by-parts" | "yarn":
            stretched = _blend(plain, rope.factor, _yarn_share(rope, head_dim))
            return stretched, _yarn_magnitude(rope) if rope.scaling == "yarn" else 1.0
        case "llama3":
            return _blend(plain, rope.factor, _llama3_share(rope, plain)), 1.0


def _blend(plain: Table, factor: float, stretched_share: Table) -> Table:
    """Between the plain frequencies (share 0) and those divided by the factor (share 1)."""
    return plain / np.float32(factor) * stretched_share + plain * (1 - stretched_share)


def _yarn_share(rope: RopeSpec, head_dim: int) -> Table:
    """Pairs of `beta_fast` or more rotations in the original context stay; below `beta_slow` all is stretched."""

    def pair_that_rotates(times: float) -> float:
        return head_dim * math.log(rope.original_seq_len / (times * 2 * math.pi)) / (2 * math.log(rope.theta))

    low = max(math.floor(pair_that_rotates(rope.beta_fast)), 0)
    high = min(math.ceil(pair_that_rotates(rope.beta_slow)), head_dim - 1)
    pairs = np.arange(head_dim // 2, dtype=np.float32)
    share: Table = np.clip((pairs - low) / np.float32(max(high - low, 0.001)), 0, 1)
    return share


def _yarn_magnitude(rope: RopeSpec) -> float:
    if rope.attention_factor is not None:
        return rope.attention_factor
    return 1.0 if rope.factor <= 1 else 0.1 * math.log(rope.factor) + 1.0


def _llama3_share(rope: RopeSpec, plain: Table) -> Table:
    """The same by wavelengths: pairs of `high_freq_factor` rotations stay, those of `low_freq_factor` are stretched."""
    rotations = rope.original_seq_len / (2 * np.float32(math.pi) / plain)
    kept = (rotations - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    return (1 - np.clip(kept, 0, 1)).astype(np.float32)
