"""Keys come from names: `derive_key(seed, "order", source, epoch)`, never `seed + i`.

Adding a source, or a stage, changes the key of no other.
"""

from hashlib import blake2b


def derive_key(seed: int, *path: str | int) -> int:
    """A 64-bit key for what the path names."""
    digest = blake2b(repr((seed, *path)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
