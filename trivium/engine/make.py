"""Settings -> an engine; a framework is imported only when its engine is made."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trivium.engine.base import Engine, EngineSettings, MakeModel
from trivium.engine.mesh import MeshShape, refuse_uneven_matrices
from trivium.engine.ranks import Ranks, launched_ranks
from trivium.errors import ConfigError, Problem
from trivium.model.folder import is_saved, saved_by
from trivium.model.spec import ModelSpec

JAX_PACKAGES = ("jax", "flax", "optax", "orbax")


def make_engine(settings: EngineSettings, name: str = "torch") -> Engine:
    """The named engine; weights are the seed's."""
    if name == "torch":
        from trivium.engine.torch.engine import TorchEngine

        return TorchEngine(settings)
    refuse_missing_jax()
    from trivium.engine.jax.engine import JaxEngine

    return JaxEngine(settings)


def single_weights(folder: Path, spec: ModelSpec) -> Callable[[str], NDArray[np.float32]]:
    """What reads the weights of a folder of any kind one by one, by their names, on one process."""
    if is_saved(folder) and saved_by(folder) == "jax":
        refuse_missing_jax()
        from trivium.engine.jax.single import single_weights as of_jax

        return of_jax(folder, spec)
    from trivium.engine.torch.checkpoint.single import single_weights as of_torch

    return of_torch(folder, spec)


def counted_spec(spec: ModelSpec) -> ModelSpec:
    """A spec of a model of transformers with its parameters and FLOPs, counted on it; torch is imported for it."""
    from trivium.engine.torch.transformers.make import counted

    return counted(spec)


def refuse_undivided(spec: ModelSpec, tensor: int) -> None:
    """ConfigError where this many ranks cannot share the matrices of a model; of transformers', torch is asked."""
    refuse_uneven_matrices(MeshShape(tensor=tensor), spec)
    if spec.foreign is not None and tensor > 1:
        from trivium.engine.torch.transformers.divided import refuse_uncomputable

        refuse_uncomputable(spec, tensor)


def foreign_files(spec: ModelSpec, folder: Path) -> dict[str, Path]:
    """The file of every tensor of a model of transformers, by its name there; ConfigError where they do not fit it."""
    from trivium.engine.torch.transformers.files import fitting_files

    return fitting_files(folder, spec)


def weight_shapes(spec: ModelSpec) -> dict[str, list[int]]:
    """The shapes of a decoder's weights by name, as files have them."""
    from trivium.engine.torch.checkpoint.single import weight_shapes as of_torch

    return of_torch(spec)


def own_parameters(spec: ModelSpec, make: MakeModel, engine: str) -> int:
    """The parameters of a model of the user's own, counted without making them; one that does not fit is refused."""
    if engine == "jax":
        refuse_missing_jax()
        from trivium.engine.jax.model import count_own as of_jax

        return of_jax(spec, make)
    from trivium.engine.torch.own import count_own as of_torch

    return of_torch(spec, make)


def refuse_missing_jax() -> None:
    """The JAX engine comes with an extra of its own."""
    missing = [package for package in JAX_PACKAGES if find_spec(package) is None]
    if missing:
        are = "is" if len(missing) == 1 else "are"
        what = f"is \"jax\", but {', '.join(missing)} {are} not installed. Get the extra: pip install 'trivium[jax]'"
        raise ConfigError([Problem("engine.name", what)])


def join_ranks(engine: str = "torch", device: str | None = None) -> Ranks:
    """The ranks of this launch, as an engine's framework brings them together: by itself a process is the only one."""
    if engine == "jax":
        refuse_missing_jax()
        from trivium.engine.jax.ranks import join as join_jax

        return join_jax(device)
    if launched_ranks() == 1:
        return Ranks()
    from trivium.engine.torch.ranks import join

    return join()
