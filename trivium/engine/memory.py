"""The memory of a rank in a step, by its parts; plain numbers, no framework.

    weights, gradients, optimizer    what a rank holds of each between or through its passes
    gathered      weights that FSDP has gathered for the moment, and the buffers of its exchanges
    activations   what flows forward and backward, and what is kept for the backward pass
    loss          logits by slices, and the gradients that the loss makes
    average       what is kept of the weights for an average of them
    reference     the frozen models of a stage with `kl` or `distill`, and what they make of the rows
    mask          which slots see which, where attention keeps documents apart
    update        what an optimizer holds only while it updates

Memory is measured in a process of its own (`python -P -m trivium.engine.torch.measure.process`), one for each rank that
is asked for: nothing of torch has to be imported here, and a launch that this process is part of is left alone.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, get_args

from trivium.engine.average import AverageSettings
from trivium.engine.base import REFERENCES, EngineSettings, KlSettings, OptimizerSettings, StageSettings
from trivium.engine.loss_weight import LossWeights
from trivium.engine.mesh import MeshShape, refuse_uneven_matrices
from trivium.errors import UsageError
from trivium.model.spec import ModelSpec, RopeSpec

Kind = Literal[
    "weights", "gradients", "optimizer", "average", "gathered", "activations", "loss", "reference", "mask", "update"
]
KINDS: tuple[Kind, ...] = get_args(Kind)

Parts = Mapping[Kind, int]
"""Bytes by kind, at one time."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A step to measure: an engine's settings, a stage's, and the rows that a rank reads in it."""

    settings: EngineSettings
    stage: StageSettings
    rows: int

    def plain(self) -> dict[str, Any]:
        """For JSON; a step with functions of one's own cannot be measured."""
        own = (self.settings.own_optimizer, self.settings.make_model, self.settings.token_losses)
        assert own == (None, None, None), "functions are sent to no process"
        plain = asdict(replace(self, settings=replace(self.settings, token_bytes=None)))
        for term, kl in self.stage.references.items():
            plain["stage"][term]["reference"] = str(kl.reference)
        return plain

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> "Measured":
        """What `plain` gave."""
        settings, stage = plain["settings"], plain["stage"]
        spec, rope = settings["spec"], stage["rope"]
        settings |= {
            "spec": ModelSpec.of(spec),
            "optimizer": _optimizer(settings["optimizer"]),
            "mesh": MeshShape(**settings["mesh"]),
        }
        stage |= {
            "rope": None if rope is None else RopeSpec.of(rope),
            **{term: _kl(stage[term]) for term in REFERENCES},
            "freeze": tuple(stage["freeze"]),
            "optimizer": None if stage["optimizer"] is None else _optimizer(stage["optimizer"]),
            "loss_weight": LossWeights(**stage["loss_weight"]),
            "average": _average(stage["average"]),
            "start_from": _average(stage["start_from"]),
        }
        return cls(EngineSettings(**settings), StageSettings(**stage), plain["rows"])


def _optimizer(plain: dict[str, Any]) -> OptimizerSettings:
    return OptimizerSettings(**{key: _with_tuples(value) for key, value in plain.items()})


def _kl(plain: dict[str, Any] | None) -> KlSettings | None:
    if plain is None:
        return None
    spec = None if plain["spec"] is None else ModelSpec.of(plain["spec"])
    return KlSettings(**plain | {"reference": Path(plain["reference"]), "spec": spec})


def _average(plain: dict[str, Any] | None) -> AverageSettings | None:
    return None if plain is None else AverageSettings(**plain)


def _with_tuples(value: Any) -> Any:
    """JSON has lists where settings have tuples."""
    return tuple(map(_with_tuples, value)) if isinstance(value, list) else value


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """The device of this process, by its driver's name: bytes that it has, and the most that was used since a reset."""

    name: str
    total: int
    active: int  # held by tensors
    reserved: int  # taken from the device
    retries: int  # times that the allocator had to give back what it kept before it found room

    @classmethod
    def of(cls, name: str, total: int, stats: Mapping[str, int]) -> "DeviceMemory":
        """From what `torch.cuda.memory_stats` counts."""
        keys = ("active_bytes.all.peak", "reserved_bytes.all.peak", "num_alloc_retries")
        return cls(name, total, *(stats.get(key, 0) for key in keys))


def device_memory(*, reset: bool = False) -> DeviceMemory | None:
    """The memory of torch's GPU, since the last reset; None where torch uses none."""
    if "torch" not in sys.modules:
        return None
    from trivium.engine.torch.measure.device import gpu_memory

    return gpu_memory(reset=reset)


class MeasuringProcess:
    """A process that takes steps as one rank, on tensors without values; a context manager, which ends it."""

    def __init__(self, steps: Sequence[Measured], rank: int = 0) -> None:
        assert len({step.settings.mesh for step in steps}) == 1, "a process has one mesh"
        refuse_uneven_matrices(steps[0].settings.mesh, steps[0].settings.spec)
        self.steps, self.rank = steps, rank
        home = str(Path(__file__).parents[2])
        # An empty entry is the working folder too.
        paths = [home, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        alone = {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        command = [sys.executable, "-P", "-m", "trivium.engine.torch.measure.process"]
        pipe, self._said = subprocess.PIPE, tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)
        env = {**os.environ, **alone}
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=self._said, env=env)

    def peaks(self) -> Iterator[Parts]:
        """The parts of a rank's memory at its peak, of one step after the other; UsageError where one cannot run."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps([self.rank, [step.plain() for step in self.steps]]).encode())
            self._process.stdin.close()
        except BrokenPipeError:
            pass  # it has ended already, and says why
        done = 0
        for line in self._process.stdout:
            done += 1
            yield json.loads(line)
        if done < len(self.steps):
            code = self._process.wait()
            self._said.seek(0)
            said = self._said.read().decode(errors="replace").strip().splitlines()
            ranks = self.steps[0].settings.mesh.size
            which = f"rank {self.rank:,} of {ranks:,}" if ranks > 1 else "one rank"
            why = re.sub(r"^\[rank\d+\]: ", "", said[-1]) if said else f"the process ended with code {code}"
            raise UsageError(f"a step of {which} cannot run: {why}")

    def __enter__(self) -> "MeasuringProcess":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._said):
            if stream is not None:
                stream.close()
