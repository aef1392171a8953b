"""Model sizes by name: the shapes that people ask for by their parameter count."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Size:
    """A decoder's shape; the name counts its parameters, embeddings included, at a vocabulary of 32k (10m: 8k)."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    ffn: int


SIZES = {
    "tiny": Size(layers=2, width=64, heads=2, kv_heads=2, ffn=192),
    "10m": Size(layers=6, width=256, heads=4, kv_heads=4, ffn=704),
    "60m": Size(layers=8, width=512, heads=8, kv_heads=8, ffn=1408),
    "125m": Size(layers=12, width=768, heads=12, kv_heads=12, ffn=2048),
    "350m": Size(layers=24, width=1024, heads=16, kv_heads=16, ffn=2816),
    "760m": Size(layers=24, width=1536, heads=16, kv_heads=8, ffn=4096),
    "1b": Size(layers=16, width=2048, heads=32, kv_heads=8, ffn=8192),
    "3b": Size(layers=28, width=3072, heads=24, kv_heads=8, ffn=8192),
    "8b": Size(layers=32, width=4096, heads=32, kv_heads=8, ffn=14336),
    "70b": Size(layers=80, width=8192, heads=64, kv_heads=8, ffn=28672),
}
