"""Processes that encode shards: each has a thread here that gives it the next shard and waits for its answer.

A worker is started as a program of its own (`python -P -m trivium.prepare.workers`) and not forked: nothing of the
process that prepares (threads, open files, a script without a main guard) can get in its way. It ends when that process
does. `-P` keeps the working folder out of `sys.path`, where a file named as a library would be run instead of it.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

from trivium.errors import SourceError, TriviumError
from trivium.prepare.encode import Job, Outcome, Report, ShardEncoder
from trivium.prepare.shards import QueuedShard, Shard
from trivium.textfiles.read import InputPart

Done = Callable[[Shard, Outcome], None]


class Worker:
    """One process that encodes."""

    def __init__(self, job: Job) -> None:
        home = str(Path(__file__).parents[2])
        # An empty entry is the working folder too.
        paths = [home, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        # One thread each: there is a process for every core.
        alone = {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "trivium.prepare.workers"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **alone},
        )
        self._send(asdict(job))

    def encode(self, queued: QueuedShard, report: Report) -> Outcome:
        assert self._process.stdout is not None
        sent = None if queued.lines is None else len(queued.lines)
        try:
            self._send({"shard": asdict(queued.shard), "sent": sent}, queued.lines)
            for line in self._process.stdout:
                kind, value = json.loads(line)
                if kind == "progress":
                    report(*value)
                elif kind == "error":
                    raise SourceError(value)
                else:
                    return Outcome.from_json(value)
        except BrokenPipeError:
            pass
        code = self._process.wait()
        files = ", ".join(part.name for part in queued.shard.parts[:3])
        ended = f"was ended by signal {-code}, for want of memory perhaps" if code < 0 else f"ended with code {code}"
        raise SourceError(f"a process that encodes {files} {ended}. What is finished stays: try --workers 1.")

    def _send(self, value: Any, lines: bytes | None = None) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(value).encode() + b"\n")
        if lines is not None:
            self._process.stdin.write(lines)
        self._process.stdin.flush()

    def end(self) -> None:
        """End the process, whatever it is doing."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()


def encode_all(job: Job, shards: Iterator[QueuedShard], workers: int, report: Report, done: Done) -> None:
    """Encode every shard; with one worker in this process. `report` and `done` are called by one thread at a time."""
    if workers == 1:
        encoder = ShardEncoder(job)
        for queued in shards:
            done(queued.shard, encoder.encode(queued, report))
        return
    # Two locks: finding the next shard may take a while, where a large file has to be decompressed for it.
    lock, finding = threading.Lock(), threading.Lock()
    started = [Worker(job) for _ in range(workers)]

    def report_one(*counts: int) -> None:
        with lock:
            report(*counts)

    def drive(worker: Worker) -> None:
        while True:
            with finding:
                queued = next(shards, None)
            if queued is None:
                return
            outcome = worker.encode(queued, report_one)
            with lock:
                done(queued.shard, outcome)

    try:
        with ThreadPoolExecutor(workers, thread_name_prefix="trivium-prepare") as threads:
            waiting = [threads.submit(drive, worker) for worker in started]
            try:
                finished, _ = wait(waiting, return_when=FIRST_EXCEPTION)
            finally:
                if not all(each.done() for each in waiting):
                    for worker in started:
                        worker.end()
        failed = [error for each in waiting if each in finished and (error := each.exception())]
        if failed:
            raise failed[0]
    finally:
        for worker in started:
            worker.end()


def _as_shard(plain: dict[str, Any]) -> Shard:
    parts = tuple(InputPart(**part) for part in plain["parts"])
    return Shard(**plain | {"parts": parts, "more": tuple(plain["more"])})


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Encode every shard that is asked for, until there are no more; what a worker does."""

    def answer(kind: str, value: Any) -> None:
        answers.write(json.dumps([kind, value]).encode() + b"\n")
        answers.flush()

    job = json.loads(requests.readline())
    encoder = ShardEncoder(Job(**job | {key: tuple(job[key]) for key in ("before", "after")}))
    while line := requests.readline():
        request = json.loads(line)
        lines = requests.read(request["sent"]) if request["sent"] is not None else None
        queued = QueuedShard(_as_shard(request["shard"]), lines)
        try:
            outcome = encoder.encode(queued, lambda *counts: answer("progress", counts))
            answer("done", asdict(outcome))
        except TriviumError as error:
            answer("error", str(error))


def main() -> None:
    """Serve over the pipes of this process; what libraries print goes to standard error."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that prepares decides what an interrupt means
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        serve(sys.stdin.buffer, answers)
    except BrokenPipeError:
        os._exit(1)  # the process that prepares is gone


if __name__ == "__main__":
    main()
