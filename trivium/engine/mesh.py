"""`[engine.parallel]` and a number of devices -> how they share the model and the rows; no framework.

In torch a rank has one device, in JAX all of its host's. Devices are counted rank by rank, with the tensor axis
innermost, then shard, then replicate: of 2 x 2 x 2 devices, 0 and 1 share each matrix, and so the same rows.
"""

from dataclasses import dataclass
from typing import Any

from trivium.config.schema import Parallel
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
        """All devices."""
        return self.replicate * self.shard * self.tensor

    @property
    def data_size(self) -> int:
        """Devices with rows of their own."""
        return self.replicate * self.shard

    def readers(self, ranks: int) -> int:
        """Of so many ranks, those that read rows of their own; ranks that share matrices read the same ones."""
        return self.size // max(self.size // ranks, self.tensor)

    def reader(self, rank: int, ranks: int) -> int:
        """Which of these a rank is."""
        return rank * self.readers(ranks) // ranks

    def said(self) -> dict[str, Any]:
        """For events and checkpoints."""
        return {"replicate": self.replicate, "shard": self.shard, "tensor": self.tensor}


ONE_RANK = MeshShape()


def mesh_shape(said: Parallel, ranks: int, local_devices: int | None = None) -> MeshShape:
    """The shape for so many ranks with so many devices each, or one where none is said; refused if products differ."""
    devices = ranks * (local_devices or 1)
    shard = devices // (said.replicate * said.tensor) if said.shard is None else said.shard
    shape = MeshShape(said.replicate, max(1, shard), said.tensor)
    if shape.size != devices:
        product = f"replicate {shape.replicate} x shard {shape.shard} x tensor {shape.tensor} is {shape.size}"
        many = "1 rank was" if ranks == 1 else f"{ranks} ranks were"
        found = f"{many} launched. Launch {shape.size}, or change one of them."
        if local_devices is not None:
            found = f"there {'is 1 device' if devices == 1 else f'are {devices} devices'}. Change one of them."
        raise ConfigError([Problem("engine.parallel", f"{product}, but {found}")])
    each = local_devices or 1
    if max(shape.tensor, each) % min(shape.tensor, each):
        what = f"is {shape.tensor}, and a rank has {each} devices: one must divide the other. Change it."
        raise ConfigError([Problem("engine.parallel.tensor", what)])
    return shape


def refuse_uneven_matrices(shape: MeshShape, spec: ModelSpec) -> None:
    """Every device of the tensor axis has as many heads and as much of the feed-forward as any other."""
    sizes = {"heads": spec.heads, "kv_heads": spec.kv_heads, "ffn": spec.ffn}
    uneven = [f"{name} {size}" for name, size in sizes.items() if size % shape.tensor]
    if uneven:
        what = f"is {shape.tensor}, which does not divide the model's {', '.join(uneven)}. Lower it."
        raise ConfigError([Problem("engine.parallel.tensor", what)])
