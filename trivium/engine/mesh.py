"""How devices share the model and the rows; no framework.

In torch a rank has one device, in JAX all of its host's. Devices are counted rank by rank, with the tensor axis
innermost, then shard, then replicate: of 2 x 2 x 2 devices, 0 and 1 share each matrix, and so the same rows.
"""

from dataclasses import dataclass

from trivium.errors import ConfigError, Problem
from trivium.model.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class MeshShape:
    """Devices by what they share; the product is all of them."""

    replicate: int = 1
    shard: int = 1
    tensor: int = 1

    @property
    def size(self) -> int:
        return self.replicate * self.shard * self.tensor

    def readers(self, ranks: int) -> int:
        """How many of the ranks read rows of their own; ranks that share matrices read the same ones."""
        return self.size // max(self.size // ranks, self.tensor)

    def reader(self, rank: int, ranks: int) -> int:
        """The number of the reader whose rows a rank reads."""
        return rank * self.readers(ranks) // ranks


ONE_RANK = MeshShape()


def refuse_uneven_matrices(shape: MeshShape, spec: ModelSpec) -> None:
    """Every device of the tensor axis has as many heads, and as much of feed-forward and vocabulary, as any other."""
    if spec.own is not None and shape.tensor > 1:
        what = f"is {shape.tensor}, but only the decoder's matrices can be split, and {spec.own} makes the model"
        raise ConfigError([Problem("engine.parallel.tensor", f"{what}. Set it to 1, and share the model by shard.")])
    sizes = {"heads": spec.heads, "kv_heads": spec.kv_heads, "ffn": spec.ffn, "padded vocab": spec.padded_vocab}
    uneven = [f"{name} {size}" for name, size in sizes.items() if size % shape.tensor]
    if uneven:
        what = f"is {shape.tensor}, which does not divide the model's {', '.join(uneven)}. Lower it."
        raise ConfigError([Problem("engine.parallel.tensor", what)])
