"""A reader of a stream that is killed at random points and started again.

Executed by itself: `python -m tests.support.stream_chaos FOLDER OUT KILLS SEED`. Everything is imported once; each
launch is a fork that reads on from the last state written, until SIGKILL comes from outside, at any time. What was
read and the state behind it are written in one file, by a rename.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

from tests.support.streams import batch_hash, make_stream, stream_config
from trivium.loader.loader import Loader
from trivium.plan.make import make_plan


def main() -> None:
    """Kill the reader this many times, then let it come to its end."""
    folder, out, kills, seed = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    chance = random.Random(seed)
    # Libraries and kernels are loaded once for all forks, but no row of the stream: a fork would miss its threads.
    make_stream(folder / "web").part(0)
    stage: dict[str, object] = {"steps": 1, "seq_len": 32, "batch_size": 2, "mixture": {"code": 1.0}}
    Loader(make_plan(stream_config(folder, [stage])), prefetch=0).batch(0)
    killed = 0
    while True:
        child = os.fork()
        if child == 0:
            read_on(folder, out, pause=0.05 if killed < kills else 0.0)
            os._exit(0)
        if killed < kills:
            before = steps_read(out)
            while steps_read(out) == before:  # every launch gets somewhere, so that the kills are spread
                time.sleep(0.01)
            time.sleep(chance.random() * 0.1)
            os.kill(child, signal.SIGKILL)
            killed += 1
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            break
    print(json.dumps({"kills": killed}))  # noqa: T201


def steps_read(out: Path) -> int:
    """Batches that are written down."""
    return len(json.loads(out.read_text())["hashes"]) if out.exists() else 0


def read_on(folder: Path, out: Path, pause: float) -> None:
    """Read from the last state on, and write down each batch with the state behind it."""
    loader = Loader(make_plan(stream_config(folder)), prefetch=2)
    read = json.loads(out.read_text()) if out.exists() else {"hashes": [], "state": None}
    if read["state"] is not None:
        loader.load_state_dict(read["state"])
    for _, batch in loader.batches():
        read = {"hashes": [*read["hashes"], batch_hash(batch)], "state": loader.state_dict()}
        draft = out.with_suffix(f".{os.getpid()}")
        draft.write_text(json.dumps(read))
        draft.rename(out)
        time.sleep(pause)


if __name__ == "__main__":
    main()
