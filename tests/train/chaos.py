"""Runs that are killed at random points and started again, beside one that never is.

Executed by itself: `python -m tests.train.chaos FOLDER KILLS SEED [key=value ...]`. Everything is imported once;
each launch is a fork of that, so that it starts in no time. A kill is SIGKILL to itself, after a random step or
at a random flush or rename inside a save. Prints what a test compares, as JSON.
"""

import json
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.support.events import steps_taken
from tests.support.forked import shared_imports
from trivium.files import hash_file
from trivium.model.folder import saved_by
from trivium.run import folder as run_folder
from trivium.run.folder import RunFolder
from trivium.train.trainer import Trainer

torch.set_num_threads(1)


def main() -> None:
    """Train once in peace and once under fire."""
    folder, kills, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    overrides = [*sys.argv[4:], f"run.folder={folder}/runs"]
    if "engine.name=jax" in overrides:
        import trivium.engine.jax.engine  # noqa: F401
    chance = random.Random(seed)
    launch(folder, [*overrides, "run.name=calm"], None)
    total = RunFolder(folder / "runs" / "calm").checkpoints()[-1].step
    kinds: list[str] = []
    while len(kinds) < kills:
        kind, arm = weapon(chance, total)
        died = launch(folder, [*overrides, "run.name=killed"], arm)
        kinds += [kind] * died
        if not died:  # it came to its end before the kill did: start over, under fire again
            RunFolder(folder / "runs" / "killed").keep_only([])
    launch(folder, [*overrides, "run.name=killed"], None)
    found: dict[str, Any] = {name: outcome(folder / "runs" / name) for name in ("calm", "killed")}
    print(json.dumps(found | {"kills": len(kinds), "kinds": Counter(kinds)}))  # noqa: T201


def weapon(chance: random.Random, total: int) -> tuple[str, Callable[[type[Trainer]], None]]:
    """Something that will end the process by SIGKILL, and when."""
    step, flush, rename = chance.randrange(total), chance.randrange(1, 12), chance.randrange(1, 4)
    kind = chance.choice(["step", "step", "flush", "rename"])

    def arm(trainer: type[Trainer]) -> None:
        if kind == "step":
            kill_when(trainer, "on_step", lambda self, taken, stats: taken >= step)
        elif kind == "flush":
            kill_at_call(run_folder, "flush_file", flush)
        else:
            kill_at_call(Path, "rename", rename)

    return {"step": "after a step", "flush": "before a flush", "rename": "before a rename"}[kind], arm


def kill_when(owner: Any, name: str, due: Callable[..., bool]) -> None:
    """End the process after a call for which `due` says so."""
    inner = getattr(owner, name)

    def armed(*args: Any) -> Any:
        result = inner(*args)
        if due(*args):
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, armed)


def kill_at_call(owner: Any, name: str, number: int) -> None:
    """End the process before the nth call."""
    inner = getattr(owner, name)
    calls = 0

    def armed(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return inner(*args)

    setattr(owner, name, armed)


def launch(folder: Path, overrides: list[str], arm: Callable[[type[Trainer]], None] | None) -> bool:
    """One launch in a process of its own; whether it was killed."""
    with shared_imports() as share:
        child = os.fork()
        if child == 0:
            try:
                if arm is not None:
                    arm(Trainer)
                Trainer(folder / "run.toml", overrides, show=False).run()
                share()
            except BaseException:
                sys.excepthook(*sys.exc_info())
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code not in (0, -signal.SIGKILL):
        raise SystemExit(f"a launch ended with {code}")
    return code != 0


def outcome(run: Path) -> dict[str, Any]:
    """What must be equal: the final engine files, and every step's figures."""
    last = RunFolder(run).checkpoints()[-1]
    files = saved_bits(last.engine)
    figures = ("loss", "mean_loss", "grad_norm", "lr_multiplier", "loss_by_source", "epochs", "flops", "extra")
    steps = {step: [event[key] for key in figures] for step, event in steps_taken(run / "events.jsonl").items()}
    return {"step": last.step, "files": files, "steps": steps}


def saved_bits(engine: Path) -> dict[str, str]:
    """Hashes of what an engine saved, by name."""
    if saved_by(engine) == "jax":
        from trivium.engine.jax.state import array_hashes

        return array_hashes(engine)
    return {path.name: hash_file(path) for path in sorted(engine.rglob("*")) if path.is_file()}


if __name__ == "__main__":
    main()
