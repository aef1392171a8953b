"""A launcher's environment -> a process group, and the messages between ranks over it.

torchrun sets RANK, WORLD_SIZE, LOCAL_RANK and MASTER_ADDR; a Slurm step its own names, which are turned into
those. Small things go over gloo on the CPU; saves have a process group of their own, so that their
messages in the background never meet those of training.

gloo connects two ranks when they first talk, and not each with each: that took 13 s at 64 ranks, and a descriptor for
every pair. torch's flight recorder keeps the last exchanges of every rank.
"""

import atexit
import os
import re
import resource
import threading
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache
from typing import Any

import torch
from torch import distributed as dist
from torch._C import _distributed_c10d
from torch.distributed import PrefixStore, Store, rendezvous  # type: ignore[attr-defined]

from trivium.engine.ranks import END_SECONDS, Ranks, Value, decode_message, encode_message, end_process, end_within
from trivium.errors import RankError, SilentRankError, StoppedError, TriviumError, UsageError, exit_code

FAILED, GONE = "trivium/failed", "it is gone"
LOST = "its process was killed, or its machine is gone"
LOST_CONNECTION = re.compile(r"(closed|reset) by peer|Broken pipe|remote process (exited|has terminated)", re.I)
LISTEN_SECONDS = 5.0  # between two looks whether another rank has failed
START_TIMEOUT = timedelta(days=2)  # rank 0 may prepare text, and the others wait for it
SAVE_TIMEOUT = timedelta(hours=2)  # the slowest rank's files on the slowest disk
# As torch's libraries read them, where the user has not set them: connections when needed, and how many exchanges of
# a rank are remembered.
ENVIRONMENT = {"TORCH_GLOO_LAZY_INIT": "1", "TORCH_FR_BUFFER_SIZE": "2000"}
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
        return _gathered(value, self.size)

    def share(self, value: Value) -> Value:
        message = _message(value if self.is_main else None)
        size = torch.tensor([len(message)])
        dist.broadcast(size, src=0)
        message = message if self.is_main else torch.zeros(int(size), dtype=torch.uint8)
        dist.broadcast(message, src=0)
        shared: Value = _value(message)
        return shared

    def limit_waits(self, minutes: float) -> None:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        for group in list(dist.distributed_c10d._world.pg_map):
            carries_messages = device.type == "cpu" and group == dist.group.WORLD
            if not carries_messages and group != saving_group():
                group._get_backend(device)._set_default_timeout(timedelta(minutes=minutes))

    def recorded(self) -> str | None:
        recorded: bytes = _distributed_c10d._dump_fr_trace_json(True, False)  # type: ignore[attr-defined]
        return recorded.decode()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """A rank that fails inside sends its error to the others, which raise that and not a lost connection.

        Rank 0 reports it, or rank 1 where rank 0 is gone; a rank that failed shows where; the others are silent. A rank
        that waits for the devices of others waits where no exception reaches it: a thread listens, and ends it.
        """
        over = threading.Event()
        threading.Thread(target=self._listen, args=(over,), name="trivium-listener", daemon=True).start()
        try:
            yield
        except SilentRankError:
            raise
        except Exception as error:
            first, text = self._first_failure(error)
            stopped = isinstance(error, StoppedError) or _is_stop(text)
            message = f"rank {first} failed: {text}"
            if text == LOST:
                message = f"the connection to another rank is lost: {LOST}. Start the run again: it resumes."
            is_own_bug = first == self.rank and not isinstance(error, TriviumError) and text != LOST
            atexit.register(end_process, 1 if is_own_bug else exit_code(RankError(message, stopped=stopped)))
            if is_own_bug or (isinstance(error, TriviumError) and self.is_main):
                raise
            is_alone = first == 0 and self.rank == 1 and not isinstance(error, TriviumError)
            if self.is_main or is_alone or (text == LOST and first == self.rank):
                raise RankError(message, stopped=stopped) from error
            raise SilentRankError(message, stopped=stopped) from error
        finally:
            over.set()

    def failed(self, error: BaseException) -> None:
        """The others hear of it at once; this rank ends within some seconds, whatever it waits for while it closes."""
        code = exit_code(error) if isinstance(error, TriviumError) else 1
        end_within(END_SECONDS, code, f"rank {self.rank} failed ({type(error).__name__}), and did not end\n")
        if not isinstance(error, SilentRankError):
            self._first_failure(error)

    def _first_failure(self, error: BaseException) -> tuple[int, str]:
        """Who failed first, this rank included, and why."""
        with suppress(Exception):  # where the store is gone, rank 0 is
            own = f"{self.rank} {LOST if _is_lost(error) else f'{type(error).__name__}: {error}'}"
            return _failure(self._store.compare_set(FAILED, "", own))
        return 0, GONE

    def _listen(self, over: threading.Event) -> None:
        """Once another rank has failed, this one ends too: by an exception, or else after some seconds."""
        while not over.wait(LISTEN_SECONDS):
            first, text = 0, GONE
            with suppress(Exception):
                if not self._store.check([FAILED]):
                    continue
                first, text = _failure(self._store.get(FAILED))
            if first != self.rank:
                reports = self.is_main or (self.rank == 1 and text == GONE)
                code = exit_code(RankError(text, stopped=_is_stop(text)))
                end_within(END_SECONDS, code, f"rank {first} failed: {text}\n" if reports else "")
            return


def _failure(message: bytes) -> tuple[int, str]:
    rank, _, text = message.decode().partition(" ")
    return int(rank), text


def _is_lost(error: BaseException) -> bool:
    """Whether a process group's error is that another process is gone, and not a mistake of this one."""
    return isinstance(error, RuntimeError) and LOST_CONNECTION.search(str(error)) is not None


def _is_stop(text: str) -> bool:
    """Whether a rank's failure is that it was told to stop."""
    return text.startswith(StoppedError.__name__)


def _gathered(value: Value, size: int, group: dist.ProcessGroup | None = None) -> list[Value]:
    """Every rank's value, over a group of all ranks."""
    own = _message(value)
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(size)]
    dist.all_gather(sizes, torch.tensor([len(own)]), group)
    longest = max(int(each) for each in sizes)
    messages = [torch.zeros(longest, dtype=torch.uint8) for _ in sizes]
    dist.all_gather(messages, torch.nn.functional.pad(own, (0, longest - len(own))), group)
    return [_value(message[: int(each)]) for message, each in zip(messages, sizes, strict=True)]


def gather_aside(value: Value) -> list[Value]:
    """Every rank's value, from the thread that saves, beside training's messages."""
    return _gathered(value, dist.get_world_size(), saving_group()) if dist.is_initialized() else [value]


def _message(value: Value) -> torch.Tensor:
    return torch.frombuffer(bytearray(encode_message(value)), dtype=torch.uint8)


def _value(message: torch.Tensor) -> Any:
    return decode_message(message.numpy().tobytes())


@cache
def join() -> TorchRanks:
    """The ranks of this launch, once for a process."""
    take_slurms_names(os.environ)
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    raise_descriptor_limit()
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count())
    store, rank, size = next(rendezvous("env://"))
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "cpu:gloo"
    own = PrefixStore("trivium", store)
    dist.init_process_group(backend, store=own, rank=rank, world_size=size, timeout=START_TIMEOUT)
    saving_group()
    # NCCL asks for it; gloo's threads abort a process that ends first. After a failure it would wait: see `watched`.
    atexit.register(dist.destroy_process_group)
    return TorchRanks(store, rank, size)


@cache
def saving_group() -> dist.ProcessGroup:
    """The group that saves talk over; every rank must ask for it first at the same point."""
    group: dist.ProcessGroup = dist.new_group(backend="gloo", timeout=SAVE_TIMEOUT)
    return group


def raise_descriptor_limit() -> None:
    """Let this process open as many files and connections as the system allows it to."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # some systems allow fewer than they say
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


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
