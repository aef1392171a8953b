"""`[engine.parallel]` and a number of ranks -> how ranks share the model and the rows; no framework.

Ranks are counted with the tensor axis innermost, then shard, then replicate: of 2 x 2 x 2 ranks, ranks 0 and 1
share each matrix, and so the same rows.
"""

from dataclasses import dataclass
from typing import Any

from trivium.config.schema import Parallel
from trivium.engine.spec import ModelSpec
from trivium.errors import ConfigError, Problem


@dataclass(frozen=True, slots=True)
class MeshShape:
    """Ranks by what they share; the product is the world size."""

    replicate: int = 1
    shard: int = 1
    tensor: int = 1

    @property
    def size(self) -> int:
        """All ranks."""
        return self.replicate * self.shard * self.tensor

    @property
    def data_size(self) -> int:
        """Ranks with rows of their own."""
        return self.replicate * self.shard

    def data_rank(self, rank: int) -> int:
        """Which of these a rank is; ranks that share matrices are one."""
        return rank // self.tensor

    def said(self) -> dict[str, Any]:
        """For events and checkpoints."""
        return {"replicate": self.replicate, "shard": self.shard, "tensor": self.tensor}


ONE_RANK = MeshShape()


def mesh_shape(said: Parallel, world_size: int) -> MeshShape:
    """The shape for so many ranks; refused where the products differ."""
    fixed = said.replicate * said.tensor
    shard = world_size // fixed if said.shard is None else said.shard
    shape = MeshShape(said.replicate, max(1, shard), said.tensor)
    if shape.size != world_size:
        product = f"replicate {shape.replicate} x shard {shape.shard} x tensor {shape.tensor} is {shape.size}"
        many = "1 rank was" if world_size == 1 else f"{world_size} ranks were"
        what = f"{product}, but {many} launched. Launch {shape.size}, or change one of them."
        raise ConfigError([Problem("engine.parallel", what)])
    return shape


def refuse_uneven_matrices(shape: MeshShape, spec: ModelSpec) -> None:
    """Every rank of the tensor axis has as many heads and as much of the feed-forward as any other."""
    sizes = {"heads": spec.heads, "kv_heads": spec.kv_heads, "ffn": spec.ffn}
    uneven = [f"{name} {size}" for name, size in sizes.items() if size % shape.tensor]
    if uneven:
        what = f"is {shape.tensor}, which does not divide the model's {', '.join(uneven)}. Lower it."
        raise ConfigError([Problem("engine.parallel.tensor", what)])
