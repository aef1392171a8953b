"""A launcher's environment -> `jax.distributed`, and the messages between a run's processes over it.

A process has all devices of its host, or those that its launcher gives it. Where the others are comes from JAX's own
names (JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES, JAX_PROCESS_ID), by torchrun's (RANK, WORLD_SIZE, MASTER_ADDR,
MASTER_PORT), or found by JAX itself (Slurm, Open MPI, Kubernetes, Cloud TPU).

Small things go over the devices' own collectives, from the main thread alone; messages of saves in the background
go through the coordinator's table of keys, where they never meet those of training.
"""

import atexit
import json
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from itertools import count
from typing import Any

import jax
import numpy as np
from jax._src.distributed import global_state
from jax.experimental import multihost_utils
from jax.sharding import Mesh
from numpy.typing import NDArray

from trivium.engine.ranks import Ranks, Value, decode_message, encode_message, end_process
from trivium.errors import ConfigError, Problem, RankError, SilentRankError, StoppedError, TriviumError, exit_code
from trivium.files import parse_json

FAILED = "trivium/failed"
FIRST_PORT = 15_000
SHORT_MILLISECONDS = 10_000  # to hear from a process that lives
LISTEN_MILLISECONDS = 1_000  # until a listener looks up whether it is still needed
GRACE_SECONDS = 5.0  # to end by an exception, with everything closed
ASIDE_MILLISECONDS = 2 * 60 * 60 * 1000  # the slowest process' files on the slowest disk
_asides = count()


class JaxRanks(Ranks):
    """This process among the others of its launch, or by itself."""

    def __init__(self, device: str | None = None) -> None:
        self.rank = jax.process_index()
        self.size = jax.process_count()
        self.local_devices = len(local_devices(device))

    def agree(self, *flags: bool) -> tuple[bool, ...]:
        if self.size == 1:
            return flags
        raised = _gathered(np.array(flags, np.uint8)).max(axis=0)
        return tuple(bool(flag) for flag in raised)

    def meet(self) -> None:
        self.agree(False)

    def gather(self, value: Value) -> list[Value]:
        if self.size == 1:
            return [value]
        own = np.frombuffer(encode_message(value), np.uint8)
        sizes = _gathered(np.array([own.size], np.int32))[:, 0]
        padded = np.zeros(1 << int(sizes.max() - 1).bit_length(), np.uint8)  # few shapes: each is compiled once
        padded[: own.size] = own
        values = _gathered(padded)
        return [decode_message(each[:size].tobytes()) for each, size in zip(values, sizes, strict=True)]

    def share(self, value: Value) -> Value:
        return self.gather(value)[0]

    @contextmanager
    def watched(self) -> Iterator[None]:
        """A rank that fails inside sends its error to the others, which end with that.

        A process that waits for another's part of a sum waits in the compiler's code, where no exception reaches it.
        So a thread listens, and ends a process that has not come out by itself.
        """
        if self.size == 1:
            yield
            return
        over = threading.Event()
        listener = threading.Thread(target=self._listen, args=(over,), name="trivium-listener", daemon=True)
        listener.start()
        try:
            yield
        except SilentRankError:
            raise
        except Exception as error:
            first, text = self._first_failure(f"{type(error).__name__}: {error}")
            over.set()
            if first == self.rank:
                self._be_heard()
                # Nobody else would come.
                atexit.register(end_process, exit_code(error) if isinstance(error, TriviumError) else 1)
                raise
            failure = _rank_error(first, text)
            atexit.register(end_process, exit_code(failure))
            raise failure from error
        over.set()
        listener.join()  # a thread that is inside JAX when Python ends takes the process with it

    def _first_failure(self, text: str) -> tuple[int, str]:
        """Who failed first, this rank included, and why."""
        with suppress(Exception):  # where the coordinator is gone, rank 0 is
            with suppress(Exception):  # a key is set once: the first stays
                _client().key_value_set(FAILED, f"{self.rank} {text}")
            return _failure(SHORT_MILLISECONDS)
        return 0, "it is gone"

    def _be_heard(self) -> None:
        """Return when the others know of this rank's failure, or are gone too."""
        for rank in range(self.size):
            with suppress(Exception):
                if rank != self.rank:
                    _client().blocking_key_value_get(f"{FAILED}/heard/{rank}", SHORT_MILLISECONDS)
        if self.rank == 0:
            time.sleep(GRACE_SECONDS + 1)  # the coordinator is here: the others end with it, so it ends last

    def _listen(self, over: threading.Event) -> None:
        while not over.is_set():
            with suppress(Exception):  # no failure within this time
                first, text = _failure(LISTEN_MILLISECONDS)
                if first == self.rank:
                    return
                _client().key_value_set(f"{FAILED}/heard/{self.rank}", "")
                if not over.wait(GRACE_SECONDS):
                    failure = _rank_error(first, text)
                    os.write(2, f"{failure}\n".encode())
                    os._exit(exit_code(failure))


def _rank_error(rank: int, text: str) -> RankError:
    return RankError(f"rank {rank} failed: {text}", stopped=text.startswith(StoppedError.__name__))


def _failure(milliseconds: int) -> tuple[int, str]:
    rank, _, text = _client().blocking_key_value_get(FAILED, milliseconds).partition(" ")
    return int(rank), text


def _client() -> Any:
    """The coordinator's table of keys; JAX has no public name for it."""
    assert global_state.client is not None, "several processes were brought together"
    return global_state.client


def local_devices(kind: str | None) -> list[jax.Device]:
    """This process' devices of a kind, or of the best one that JAX finds; ConfigError where there is none."""
    try:
        return jax.local_devices(backend=kind)
    except RuntimeError:
        what = f'is "{kind}", which JAX does not find here. Write "{jax.default_backend()}", or leave it out.'
        raise ConfigError([Problem("engine.device", what)]) from None


@dataclass(frozen=True, slots=True)
class LaunchedProcess:
    """A process among the others of its launch; what is None JAX finds by itself."""

    coordinator: str | None = None
    processes: int | None = None
    process: int | None = None
    local_devices: tuple[int, ...] | None = None

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "LaunchedProcess | None":
        """What a launcher's environment gives; None without a launcher."""
        given = environment.get
        if "JAX_NUM_PROCESSES" in environment and "JAX_PROCESS_ID" in environment:
            processes, process = int(environment["JAX_NUM_PROCESSES"]), int(environment["JAX_PROCESS_ID"])
            return cls(given("JAX_COORDINATOR_ADDRESS"), processes, process)
        if "WORLD_SIZE" in environment and "RANK" in environment:
            # torchrun's own agent listens at MASTER_PORT.
            port = int(given("MASTER_PORT", FIRST_PORT)) + (given("TORCHELASTIC_USE_AGENT_STORE") == "True")
            address = f"{given('MASTER_ADDR', 'localhost')}:{port}"
            alone = given("LOCAL_WORLD_SIZE", "1") == "1"
            local = None if alone else (int(given("LOCAL_RANK", 0)),)
            return cls(address, int(given("WORLD_SIZE", 1)), int(given("RANK", 0)), local)
        if "SLURM_STEP_NUM_TASKS" in environment and "SLURM_PROCID" in environment:
            return cls(None, int(given("SLURM_STEP_NUM_TASKS", 1)), int(given("SLURM_PROCID", 0)))
        return cls() if "," in given("TPU_WORKER_HOSTNAMES", "") else None


@cache
def join(device: str | None = None) -> JaxRanks:
    """The ranks of this launch, once for a process."""
    place = LaunchedProcess.of(os.environ)
    if place is not None and place.processes != 1:
        here = (place.coordinator or "").rpartition(":")[0] in ("localhost", "127.0.0.1")
        jax.distributed.initialize(
            place.coordinator,
            place.processes,
            place.process,
            place.local_devices,
            coordinator_bind_address=place.coordinator if here else None,
        )
    return JaxRanks(device)


def gather_aside(value: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """On rank 0 every process' plain values, on others their own; from any thread, beside training's messages."""
    number = next(_asides)
    if jax.process_count() == 1:
        return [value]
    _client().key_value_set(f"trivium/aside/{number}/{jax.process_index()}", json.dumps(value))
    if jax.process_index():
        return [value]
    keys = (f"trivium/aside/{number}/{rank}" for rank in range(jax.process_count()))
    return [parse_json(_client().blocking_key_value_get(key, ASIDE_MILLISECONDS)) for key in keys]


def largest(mesh: Mesh, *numbers: int) -> tuple[int, ...]:
    """The largest of each number over all processes; on the mesh of one process, its own."""
    if not mesh.is_multi_process:
        return numbers
    return tuple(_gathered(np.array(numbers, np.int32)).max(axis=0).tolist())


def _gathered(values: NDArray[Any]) -> NDArray[Any]:
    """Every process' array, all of one shape and of a type that devices have."""
    return np.asarray(multihost_utils.process_allgather(values))
