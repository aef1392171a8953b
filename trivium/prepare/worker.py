"""What a process that encodes does: shards in from standard input, token files on disk, answers out.

It is started as a program of its own and not forked: nothing of the process that prepares (threads, open files, a
script without a main guard) can get in its way. It ends when that process does.
"""

import json
import os
import signal
import sys
from dataclasses import fields
from typing import Any, BinaryIO

from trivium.errors import TriviumError
from trivium.prepare.encode import Job, ShardEncoder
from trivium.prepare.shards import Shard
from trivium.textfiles.inputs import InputPart


def as_job(plain: dict[str, Any]) -> Job:
    """A job from JSON."""
    around = {key: tuple(plain[key]) for key in ("before", "after")}
    return Job(**plain | around)


def as_shard(plain: dict[str, Any]) -> Shard:
    """A shard from JSON."""
    known = {each.name: plain[each.name] for each in fields(Shard)}
    return Shard(
        **known | {"pieces": tuple(InputPart(**piece) for piece in plain["pieces"]), "more": tuple(plain["more"])}
    )


def serve(tasks: BinaryIO, answers: BinaryIO) -> None:
    """Answer every task until there are no more."""

    def say(kind: str, value: Any) -> None:
        answers.write(json.dumps([kind, value]).encode() + b"\n")
        answers.flush()

    encoder = ShardEncoder(as_job(json.loads(tasks.readline())))
    while line := tasks.readline():
        task = json.loads(line)
        payload = tasks.read(task["payload"]) if task["payload"] is not None else None
        try:
            outcome = encoder.encode(as_shard(task["shard"]), payload, lambda *counts: say("progress", counts))
            say("done", outcome.as_json())
        except TriviumError as error:
            say("error", str(error))


def main() -> None:
    """Serve over the pipes of this process; what libraries print goes to the errors."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that prepares decides what an interrupt means
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        serve(sys.stdin.buffer, answers)
    except BrokenPipeError:
        os._exit(1)  # the process that prepares is gone


if __name__ == "__main__":
    main()
