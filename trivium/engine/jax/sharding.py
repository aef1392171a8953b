"""Parameters and rows -> their places on a mesh of devices; nothing is ever whole on one of them.

    layers' matrices    heads and feed-forward over `tensor`, the other dimension over `shard` and `context`
    embeddings          the vocabulary over `shard` and `context`
    vectors             norms, biases and the like whole on every device: a thousandth of the weights
    rows of a batch     over `replicate` and `shard`, their slots over `context`

A dimension that an axis does not divide is held whole. The compiler finds the rest: which part of a layer is gathered
before it is used, and how gradients are summed. Constraints keep rows and slots where they are, and let
every device slice the losses of its own.
Devices are counted process by process, so that a process feeds its own devices with its own rows. A stage may divide
the same devices otherwise between `shard` and `context` (`on_mesh`): no parameter leaves its device.
"""

import math
from collections.abc import Callable, Hashable, Mapping
from functools import cache, partial
from typing import Any, Protocol, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from numpy.typing import NDArray

from trivium.engine.draw import first_values, init_key
from trivium.engine.jax.ranks import local_devices
from trivium.engine.mesh import MeshShape
from trivium.model.spec import ModelSpec

REPLICATE, SHARD, CONTEXT, TENSOR = "replicate", "shard", "context", "tensor"
ROWS = (REPLICATE, SHARD)
SLOTS = (*ROWS, CONTEXT)  # all axes that share the tokens of a batch
PARTS = (SHARD, CONTEXT)  # all that share a dimension of a parameter
INTO_HEADS = ("query", "key", "value", "gate", "up")  # their outputs are split over the tensor axis
OUT_OF_HEADS = ("output", "down")  # their inputs are
BY_TOKENS: Any = PartitionSpec(SLOTS)  # these two take the place of arrays, in trees of placements
WHOLE: Any = PartitionSpec()

Tree = TypeVar("Tree")


class Model(Hashable, Protocol):
    """What is known of a model before any of its arrays exist."""

    @property
    def spec(self) -> ModelSpec:
        """The model's shape."""

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Every parameter's shape by its name."""

    def init_weight(self, name: str, words: Array) -> Array | None:
        """A parameter's first values by a rule of the model's own, from a key of two words; None where it has none."""


def key_words(key: int) -> NDArray[np.uint32]:
    """64 bits as the two words of a key."""
    return np.array([key >> 32, key & 0xFFFFFFFF], np.uint32)


def device_mesh(shape: MeshShape, device: str | None = None) -> Mesh:
    """All devices of a kind, by what they share; for one device, the first of this process."""
    devices = local_devices(device)[:1] if shape.size == 1 else jax.devices(device)
    assert len(devices) == shape.size, f"{len(devices)} devices cannot be {shape}"
    by_process = sorted(devices, key=lambda each: (each.process_index, each.id))
    grid = np.array(by_process).reshape(shape.replicate, shape.shard, shape.context, shape.tensor)
    return Mesh(grid, (REPLICATE, SHARD, CONTEXT, TENSOR), axis_types=(AxisType.Auto,) * 4)


def parameter_spec(name: str, shape: tuple[int, ...], axes: Mapping[str, int]) -> PartitionSpec:
    """How a parameter is split over axes of these sizes, by its name."""
    owner = name.rpartition(".")[0].rpartition(".")[2]
    wanted: tuple[tuple[str, ...], ...] = (PARTS, *(() for _ in shape[1:]))
    if len(shape) < 2:
        wanted = ((),) * len(shape)
    elif owner in INTO_HEADS and len(shape) == 2:
        wanted = ((TENSOR,), PARTS)
    elif owner in OUT_OF_HEADS and len(shape) == 2:
        wanted = (PARTS, (TENSOR,))
    fits = [_fitting(names, size, axes) for names, size in zip(wanted, shape, strict=True)]
    while fits and fits[-1] is None:  # the form that a compiled function gives to what it returns
        fits.pop()
    return PartitionSpec(*fits)


def _fitting(names: tuple[str, ...], size: int, axes: Mapping[str, int]) -> str | tuple[str, ...] | None:
    """Those of the axes that split anything, as a `PartitionSpec` has them; none where they do not divide the size."""
    used = tuple(name for name in names if axes[name] > 1)
    if not used or size % math.prod(axes[name] for name in used):
        return None
    return used if len(used) > 1 else used[0]


def parameter_sharding(name: str, shape: tuple[int, ...], mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, parameter_spec(name, shape, mesh.shape))


def sharded_init(model: Model, seed: int, *, mesh: Mesh) -> tuple[dict[str, Array], dict[str, NamedSharding]]:
    """First values of all parameters and where they live; every device gets its own part, and no other is drawn.

    The values depend on names and seed alone, so that they are the same on any mesh.
    """
    shardings = parameter_shardings(model, mesh)
    words = {name: key_words(init_key(name, seed)) for name in shardings}
    by_rule = _by_rule(model, mesh)(words)

    def drawn(name: str) -> Array:
        shape = model.shapes()[name]
        part = partial(_first_part, name, shape, model.spec, seed)
        return jax.make_array_from_callback(shape, shardings[name], part)

    return {name: by_rule[name] if name in by_rule else drawn(name) for name in shardings}, shardings


def sharded_zeros(model: Model, mesh: Mesh) -> dict[str, Array]:
    """Room for all parameters, where they live."""
    shapes, shardings = model.shapes(), parameter_shardings(model, mesh)
    return {name: jnp.zeros(shape, device=shardings[name]) for name, shape in shapes.items()}


def parameter_shardings(model: Model, mesh: Mesh) -> dict[str, NamedSharding]:
    return {name: parameter_sharding(name, shape, mesh) for name, shape in model.shapes().items()}


def _first_part(
    name: str, shape: tuple[int, ...], spec: ModelSpec, seed: int, where: tuple[slice, ...] | None
) -> NDArray[np.float32]:
    assert where is not None
    return first_values(name, shape, where, spec, seed)


@cache
def _by_rule(model: Model, mesh: Mesh) -> Callable[..., dict[str, Array]]:
    """What makes the parameters that a rule of the model's own gives, of their keys; compiled once, whatever the keys.

    Compiled with a sharding, each device makes only its part.
    """
    shardings = parameter_shardings(model, mesh)
    words = jax.ShapeDtypeStruct((2,), np.uint32)
    ruled = [name for name in shardings if jax.eval_shape(partial(model.init_weight, name), words) is not None]
    if not ruled:
        return lambda words: {}

    @partial(jax.jit, out_shardings={name: shardings[name] for name in ruled})
    def initial(words: dict[str, Array]) -> dict[str, Array | None]:
        return {name: model.init_weight(name, words[name]) for name in ruled}

    return initial


def placed(tree: Tree, mesh: Mesh) -> Tree:
    """The same with every leaf on the mesh: what lives there stays, counts and the like are held whole everywhere.

    An optimizer's first state, made leaf by leaf from sharded parameters, has their shardings; made inside of a
    compiled function it would not.
    """

    def place(leaf: Any) -> Array:
        if isinstance(leaf, Array) and isinstance(leaf.sharding, NamedSharding) and leaf.sharding.mesh == mesh:
            return leaf
        return whole_everywhere(np.asarray(leaf), mesh)

    return jax.tree.map(place, tree)


def on_mesh(tree: Tree, mesh: Mesh) -> Tree:
    """A state's arrays on a mesh that divides the same devices otherwise between rows and slots; nothing moves."""

    def place(leaf: Array) -> Array:
        assert isinstance(leaf.sharding, NamedSharding), "a state lives on a mesh"
        groups = [each if isinstance(each, tuple) else (each,) for each in leaf.sharding.spec]
        wanted = [PARTS if set(group) & set(PARTS) else tuple(name for name in group if name) for group in groups]
        fits = (_fitting(names, size, mesh.shape) for names, size in zip(wanted, leaf.shape, strict=False))
        return jax.device_put(leaf, NamedSharding(mesh, PartitionSpec(*fits)))

    return jax.tree.map(place, tree)


def whole_everywhere(value: NDArray[Any], mesh: Mesh) -> Array:
    """An array that every device holds whole; all processes must give the same."""
    return jax.make_array_from_callback(value.shape, NamedSharding(mesh, WHOLE), lambda part: value[part])


def put_rows(array: NDArray[Any], mesh: Mesh, axis: int = 1) -> Array:
    """This process' rows, (passes, rows, ...) or at another axis -> its part of one array over all devices."""
    sharding = NamedSharding(mesh, PartitionSpec(*[None] * axis, ROWS))
    return jax.make_array_from_process_local_data(sharding, array)


def put_slots(array: NDArray[Any], mesh: Mesh) -> Array:
    """This process' whole rows (passes, rows, slots) -> the slots of its devices in one array over all devices."""
    passes, rows, slots = array.shape
    all_rows = rows // rows_multiple(mesh) * mesh.shape[REPLICATE] * mesh.shape[SHARD]
    sharding = NamedSharding(mesh, PartitionSpec(None, ROWS, CONTEXT))
    return jax.make_array_from_process_local_data(sharding, array, (passes, all_rows, slots))


def own_rows(array: Array, axis: int = 1) -> NDArray[Any]:
    """The part of such an array that this process' devices hold, as `put_rows` was given it."""
    parts = {shard.index[axis].start or 0: shard.data for shard in array.addressable_shards}
    return np.concatenate([np.asarray(parts[start]) for start in sorted(parts)], axis=axis)


def all_rows(by_row: NDArray[Any], mesh: Mesh, num_rows: int) -> NDArray[Any]:
    """A figure of all processes' rows (passes, rows) -> in their order, without what filled up micro-batches.

    A process has `num_rows` of its own, in as many passes as any other.
    """
    readers = mesh.shape[REPLICATE] * mesh.shape[SHARD] // rows_multiple(mesh)
    by_reader = by_row.reshape(len(by_row), readers, -1).swapaxes(0, 1).reshape(readers, -1)
    return by_reader[:, :num_rows].reshape(-1)


def rows_multiple(mesh: Mesh) -> int:
    """Rows that this process gives to a pass are a multiple of this: equally many for each of its devices."""
    return len({tuple(index[:2]) for index, device in np.ndenumerate(mesh.devices) if device in mesh.local_devices})


def first_reader(mesh: Mesh) -> int:
    """How many processes' rows come before this one's in an array over all devices."""
    places = [index for index, device in np.ndenumerate(mesh.devices) if device in mesh.local_devices]
    replicate, shard, *_ = min(places)
    before: int = replicate * mesh.shape[SHARD] + shard
    return before // rows_multiple(mesh)


def one_device() -> bool:
    """Inside of a compiled step: whether nothing is shared."""
    mesh = jax.sharding.get_abstract_mesh()
    return mesh.empty or mesh.size == 1


def keep_places(tree: Tree) -> Tree:
    """Inside of a compiled step: what is made of parameters, leaf by leaf, lives where they do.

    A leaf is known by the last name on its path; what is not a parameter's, such as a count, is held whole everywhere.
    """
    if one_device():
        return tree
    axes = jax.sharding.get_abstract_mesh().shape

    def keep(path: tuple[Any, ...], leaf: Array) -> Array:
        name = getattr(path[-1], "key", None) if path else None
        wanted = parameter_spec(name, leaf.shape, axes) if isinstance(name, str) and leaf.ndim else WHOLE
        return jax.lax.with_sharding_constraint(leaf, wanted)

    return jax.tree.map_with_path(keep, tree)


def keep_rows(vectors: Array, axis: int = 0) -> Array:
    """Inside of a compiled step: rows (at this axis) stay on their devices, whatever the weights are split by."""
    if one_device():
        return vectors
    return jax.lax.with_sharding_constraint(vectors, PartitionSpec(*[None] * axis, ROWS))


def keep_slots(vectors: Array) -> Array:
    """Inside of a compiled step: rows and their slots (rows, slots, ...) stay on their devices."""
    return vectors if one_device() else jax.lax.with_sharding_constraint(vectors, PartitionSpec(ROWS, CONTEXT))


def keep_heads(vectors: Array) -> Array:
    """Inside of a compiled step: keys or values (rows, slots, heads, head_dim) live where rows and heads do."""
    return vectors if one_device() else jax.lax.with_sharding_constraint(vectors, PartitionSpec(ROWS, None, TENSOR))


def gathered(weight: Array) -> Array:
    """Inside of a compiled step: a parameter whole on every device, as long as it is used."""
    return weight if one_device() else jax.lax.with_sharding_constraint(weight, WHOLE)


def by_device(function: Callable[..., Any], inputs: Any, outputs: Any) -> Callable[..., Any]:
    """Inside of a compiled step: the same function, applied by every device to its own tokens.

    What goes in and comes out is split BY_TOKENS or WHOLE; what is summed over tokens passes through `summed`.
    """
    if one_device():
        return function
    return jax.shard_map(function, in_specs=inputs, out_specs=outputs, axis_names=set(SLOTS), check_vma=False)


def summed(value: Array) -> Array:
    """Inside of `by_device`: over all devices' tokens."""
    return value if one_device() else jax.lax.psum(value, SLOTS)


def tokens_of(array: Array) -> Array:
    """Inside of a compiled step: rows and slots (B, T, ...) -> tokens (B * T, ...), each on its device."""

    def flat(own: Array) -> Array:
        return own.reshape(-1, *own.shape[2:])

    return jnp.asarray(by_device(flat, PartitionSpec(ROWS, CONTEXT), BY_TOKENS)(array))


def slots_of(tokens: Array, shape: tuple[int, ...]) -> Array:
    """Inside of a compiled step: what `tokens_of` made of an array (B, T) -> that array."""
    slots = shape[1] if one_device() else shape[1] // jax.sharding.get_abstract_mesh().shape[CONTEXT]

    def cut(own: Array) -> Array:
        return own.reshape(-1, slots)

    return jnp.asarray(by_device(cut, BY_TOKENS, PartitionSpec(ROWS, CONTEXT))(tokens))
