"""A launcher's environment -> a process group, and the messages between ranks over it.

torchrun sets RANK, WORLD_SIZE, LOCAL_RANK and MASTER_ADDR; a Slurm step its own names, which are turned into
those. Small things go over gloo on the CPU; saves have a process group of their own, so that their
messages in the background never meet those of training.
"""

import atexit
import os
import re
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache
from typing import Any

import torch
from torch import distributed as dist
from torch.distributed import PrefixStore, Store, rendezvous  # type: ignore[attr-defined]

from trivium.engine.ranks import Ranks, Value, decode_message, encode_message
from trivium.errors import RankError, SilentRankError, TriviumError, UsageError

FAILED = "trivium/failed"
SAVE_TIMEOUT = timedelta(hours=2)  # the slowest rank's files on the slowest disk
FIRST_PORT, PORTS = 15_000, 20_000


class TorchRanks(Ranks):
    """This process among the others of its launch."""

    def __init__(self, store: Store, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self._store = store

    def agree(self, *flags: bool) -> tuple[bool, ...]:
        raised = torch.tensor(flags, dtype=torch.int32)
        dist.all_reduce(raised, dist.ReduceOp.MAX)
        return tuple(bool(flag) for flag in raised.tolist())

    def meet(self) -> None:
        self.agree(False)

    def gather(self, value: Value) -> list[Value]:
        own = _message(value)
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(sizes, torch.tensor([len(own)]))
        longest = max(int(size) for size in sizes)
        messages = [torch.zeros(longest, dtype=torch.uint8) for _ in sizes]
        dist.all_gather(messages, torch.nn.functional.pad(own, (0, longest - len(own))))
        return [_value(message[: int(size)]) for message, size in zip(messages, sizes, strict=True)]

    def share(self, value: Value) -> Value:
        message = _message(value if self.is_main else None)
        size = torch.tensor([len(message)])
        dist.broadcast(size, src=0)
        message = message if self.is_main else torch.zeros(int(size), dtype=torch.uint8)
        dist.broadcast(message, src=0)
        shared: Value = _value(message)
        return shared

    @contextmanager
    def watched(self) -> Iterator[None]:
        """A rank that fails inside sends its error to the others, which raise that and not a lost connection.

        Rank 0 reports it, or rank 1 where rank 0 is gone; a rank that failed shows where; the others are silent.
        """
        try:
            yield
        except SilentRankError:
            raise
        except Exception as error:
            first, text = self._first_failure(f"{type(error).__name__}: {error}")
            if isinstance(error, TriviumError) and self.is_main:
                raise
            if first == self.rank and not isinstance(error, TriviumError):
                raise
            if self.is_main or (first == 0 and self.rank == 1 and not isinstance(error, TriviumError)):
                raise RankError(f"rank {first} failed: {text}") from error
            raise SilentRankError(f"rank {first} failed: {text}") from error

    def _first_failure(self, text: str) -> tuple[int, str]:
        """Who failed first, this rank included, and why."""
        with suppress(Exception):  # where the store is gone, rank 0 is
            rank, _, first = self._store.compare_set(FAILED, "", f"{self.rank} {text}").decode().partition(" ")
            return int(rank), first
        return 0, "it is gone"


def _message(value: Value) -> torch.Tensor:
    return torch.frombuffer(bytearray(encode_message(value)), dtype=torch.uint8)


def _value(message: torch.Tensor) -> Any:
    return decode_message(message.numpy().tobytes())


@cache
def join() -> TorchRanks:
    """The ranks of this launch, once for a process."""
    take_slurms_names(os.environ)
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count())
    store, rank, size = next(rendezvous("env://"))
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "cpu:gloo"
    dist.init_process_group(backend, store=PrefixStore("trivium", store), rank=rank, world_size=size)
    saving_group()
    atexit.register(dist.destroy_process_group)  # NCCL asks for it; gloo's threads abort a process that ends first
    return TorchRanks(store, rank, size)


@cache
def saving_group() -> dist.ProcessGroup:
    """The group that saves talk over; every rank must ask for it first at the same point."""
    group: dist.ProcessGroup = dist.new_group(backend="gloo", timeout=SAVE_TIMEOUT)
    return group


def take_slurms_names(environment: MutableMapping[str, str]) -> None:
    """Give a Slurm step's process the names that torchrun sets, but for those that are set already."""
    if "RANK" in environment or "SLURM_PROCID" not in environment:
        return
    environment["RANK"] = environment["SLURM_PROCID"]
    environment["WORLD_SIZE"] = environment["SLURM_STEP_NUM_TASKS"]
    environment["LOCAL_RANK"] = environment["SLURM_LOCALID"]
    nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_NODELIST")
    address = first_node(nodes) if nodes else environment.get("SLURM_LAUNCH_NODE_IPADDR", "localhost")
    environment.setdefault("MASTER_ADDR", address)
    # One port for each of a node's launches: the number of the Slurm allocation tells them apart.
    environment.setdefault("MASTER_PORT", str(FIRST_PORT + int(environment.get("SLURM_JOB_ID", 0)) % PORTS))


def first_node(nodes: str) -> str:
    """`gpu[007-012,020],cpu1` -> `gpu007`."""
    found = re.match(r"([^,\[]+)(?:\[([^\],-]+)[^\]]*\])?", nodes)
    if found is None:
        raise UsageError(f'SLURM_NODELIST: "{nodes}" names no node. Set MASTER_ADDR to the first node\'s address.')
    return found.group(1) + (found.group(2) or "")
