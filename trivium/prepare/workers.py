"""Processes that encode shards: each has a thread here that gives it the next shard and waits for its answer."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from trivium.errors import SourceError
from trivium.prepare.encode import Job, Outcome, Report, ShardEncoder
from trivium.prepare.shards import Shard
from trivium.textfiles.bad_lines import from_json
from trivium.tokenfiles.manifest import TokenFileFacts


class Task(NamedTuple):
    """A shard, and its lines where they are sent along."""

    shard: Shard
    payload: bytes | None = None


Done = Callable[[Shard, Outcome], None]


def as_outcome(plain: dict[str, Any]) -> Outcome:
    """An outcome from JSON."""
    facts = None if plain["facts"] is None else TokenFileFacts(**plain["facts"])
    return Outcome(facts, plain["lines"], plain["text_bytes"], from_json(**plain["bad"]))


class Worker:
    """One process that encodes."""

    def __init__(self, job: Job) -> None:
        home = str(Path(__file__).parents[2])
        paths = [home, *filter(None, [os.environ.get("PYTHONPATH")])]
        # One thread each: the processes are as many as the cores.
        alone = {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "trivium.prepare.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **alone},
        )
        self._send(asdict(job))

    def encode(self, task: Task, report: Report) -> Outcome:
        """Have a shard encoded."""
        assert self._process.stdout is not None
        payload = None if task.payload is None else len(task.payload)
        try:
            self._send({"shard": asdict(task.shard), "payload": payload}, task.payload)
            for line in self._process.stdout:
                kind, value = json.loads(line)
                if kind == "progress":
                    report(*value)
                elif kind == "error":
                    raise SourceError(value)
                else:
                    return as_outcome(value)
        except BrokenPipeError:
            pass
        code = self._process.wait()
        files = ", ".join(piece.name for piece in task.shard.pieces[:3])
        ended = f"was ended by signal {-code}, for want of memory perhaps" if code < 0 else f"ended with code {code}"
        raise SourceError(f"a process that encodes {files} {ended}. What is finished stays: try --workers 1.")

    def _send(self, value: Any, payload: bytes | None = None) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(value).encode() + b"\n")
        if payload is not None:
            self._process.stdin.write(payload)
        self._process.stdin.flush()

    def end(self) -> None:
        """End the process, whatever it is doing."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()


def encode_all(job: Job, tasks: Iterator[Task], workers: int, report: Report, done: Done) -> None:
    """Encode every shard; with one worker in this process. `report` and `done` are called by one thread at a time."""
    if workers == 1:
        encoder = ShardEncoder(job)
        for task in tasks:
            done(task.shard, encoder.encode(task.shard, task.payload, report))
        return
    # Two locks: finding the next shard may take a while, where a large file has to be decompressed for it.
    lock, finding = threading.Lock(), threading.Lock()
    started = [Worker(job) for _ in range(workers)]

    def report_one(*counts: int) -> None:
        with lock:
            report(*counts)

    def serve(worker: Worker) -> None:
        while True:
            with finding:
                task = next(tasks, None)
            if task is None:
                return
            outcome = worker.encode(task, report_one)
            with lock:
                done(task.shard, outcome)

    try:
        with ThreadPoolExecutor(workers, thread_name_prefix="trivium-prepare") as threads:
            waiting = [threads.submit(serve, worker) for worker in started]
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
