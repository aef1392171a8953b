"""How devices share the model and the rows; no framework.

In torch a rank has one device, in JAX all of its host's. Devices are counted rank by rank, with the tensor axis
innermost, then context, then shard, then replicate: of 2 x 2 x 2 x 2 devices, 0 and 1 share each matrix, and 0 to 3
the same rows. Parameters are sharded over shard and context together, so that the context axis takes none of their
memory, and a stage may divide the same devices otherwise.
"""

from dataclasses import dataclass, replace

from trivium.errors import ConfigError, Problem
from trivium.model.spec import ModelSpec

CONTEXT = "engine.parallel.context"


@dataclass(frozen=True, slots=True)
class MeshShape:
    """Devices by what they share; the product is all of them."""

    replicate: int = 1
    shard: int = 1
    context: int = 1
    tensor: int = 1

    def __str__(self) -> str:
        context = f" x context {self.context}" if self.context > 1 else ""
        return f"replicate {self.replicate} x shard {self.shard}{context} x tensor {self.tensor}"

    @property
    def size(self) -> int:
        return self.replicate * self.parameter_shards * self.tensor

    @property
    def parameter_shards(self) -> int:
        """How many devices share the parameters of one copy, apart from the tensor axis."""
        return self.shard * self.context

    def with_context(self, context: int) -> "MeshShape":
        """The same devices with this many for each row; parameters stay where they are."""
        return replace(self, shard=self.parameter_shards // context, context=context)

    def readers(self, ranks: int) -> int:
        """How many of the ranks read rows of their own; ranks that share rows or matrices read the same ones."""
        return self.size // max(self.size // ranks, self.context * self.tensor)

    def reader(self, rank: int, ranks: int) -> int:
        """The number of the reader whose rows a rank reads."""
        return rank * self.readers(ranks) // ranks


ONE_RANK = MeshShape()


def refuse_unshared_rows(shape: MeshShape, spec: ModelSpec, by_heads: bool, where: str = CONTEXT) -> None:
    """Rows can be shared where the model lets itself be asked for attention, and `by_heads` where heads are enough."""
    if shape.context == 1:
        return
    if spec.own is not None:
        what = f"is {shape.context}, but only the decoder attends over several ranks, and {spec.own} makes the model"
        raise ConfigError([Problem(where, f"{what}. Set it to 1.")])
    heads = {"heads": spec.heads // shape.tensor, "kv_heads": spec.kv_heads // shape.tensor}
    uneven = [f"{name} {size}" for name, size in heads.items() if size % shape.context]
    if by_heads and uneven:
        of = "" if shape.tensor == 1 else f" of a rank, with tensor = {shape.tensor},"
        what = (
            f'is {shape.context}, which does not divide the {" and ".join(uneven)}{of} that context_method = "ulysses"'
        )
        raise ConfigError([Problem(where, f'{what} shares out. Lower it, or set context_method to "gather".')])


def refuse_uneven_matrices(shape: MeshShape, spec: ModelSpec) -> None:
    """Every device of the tensor axis has as many heads, and as much of feed-forward and vocabulary, as any other."""
    if spec.own is not None and shape.tensor > 1:
        what = f"is {shape.tensor}, but only the decoder's matrices can be split, and {spec.own} makes the model"
        raise ConfigError([Problem("engine.parallel.tensor", f"{what}. Set it to 1, and share the model by shard.")])
    if spec.foreign is not None and spec.foreign.undivided and shape.tensor > 1:
        what = f"is {shape.tensor}, but the matrices of {spec.foreign.family} cannot be split: {spec.foreign.undivided}"
        raise ConfigError([Problem("engine.parallel.tensor", f"{what}. Set it to 1, and share the model by shard.")])
    vocab = "vocab" if spec.foreign is not None else "padded vocab"
    sizes = {"heads": spec.heads, "kv_heads": spec.kv_heads, "ffn": spec.ffn, vocab: spec.padded_vocab}
    uneven = [f"{name} {size}" for name, size in sizes.items() if size % shape.tensor]
    if uneven:
        what = f"is {shape.tensor}, which does not divide the model's {', '.join(uneven)}. Lower it."
        raise ConfigError([Problem("engine.parallel.tensor", what)])
