"""A folder -> a frozen model that a stage's KL or distillation is measured to: its weights, laid out over the devices.

It may have another shape than the trained model, but for the vocabulary. Its matrices are held in the precision that
flows through it, norms in float32. One more forward pass a step, and half or all of its weights' memory; both only in
stages with `kl` or `distill`.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from trivium.engine.base import KlSettings
from trivium.engine.jax.model import Design, Params
from trivium.engine.jax.sharding import parameter_sharding
from trivium.engine.jax.weights import read_weights
from trivium.model.folder import read_spec
from trivium.model.spec import RopeSpec


class Reference:
    """A frozen model: its design, parameters and rotary positions."""

    def __init__(self, kl: KlSettings, design: Design, mesh: Mesh) -> None:
        self.folder = kl.reference
        self.rope = read_spec(kl.reference).rope
        self.design = reference_design(kl, design, self.rope)
        matrices, norms = jnp.dtype(self.design.precision), jnp.dtype("float32")
        room = {}
        for name, shape in self.design.shapes().items():
            dtype, sharding = matrices if len(shape) > 1 else norms, parameter_sharding(name, shape, mesh)
            room[name] = jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)
        self.params: Params = read_weights(kl.reference, room, self.design.spec)

    def serves(self, kl: KlSettings, design: Design) -> bool:
        """Whether a stage with these settings asks for the model that is held already."""
        return (kl.reference, reference_design(kl, design, self.rope)) == (self.folder, self.design)


def reference_design(kl: KlSettings, design: Design, rope: RopeSpec) -> Design:
    """The trained model's, or a teacher's, with its own precision and positions; nothing goes backward through it."""
    design = design if kl.spec is None else Design(kl.spec, design.precision)
    precision = kl.precision or design.precision
    return replace(design, precision=precision, recompute="none", dropped=rope.dropped)
