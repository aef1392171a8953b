"""A run's folder: its config, plan, events and checkpoints; one launch at a time.

    runs/small/
      config.toml  plan.json  events.jsonl  decisions.jsonl
      checkpoints/
        step-00004000/  engine/  state.json  COMPLETE

A checkpoint is written to a draft, flushed and renamed. COMPLETE, written last, lists every file with its size
and hash; what has none does not exist.
"""

import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from pydantic import ValidationError

from trivium.config.schema import Config
from trivium.errors import ResumeError, SaveError
from trivium.files import (
    FileFacts,
    draft,
    flush_file,
    flush_folder,
    flushed_facts,
    hash_file,
    is_within,
    read_json,
    try_lock,
)
from trivium.model.huggingface import CONFIG_FILE

COMPLETE = "COMPLETE"
STATE = "state.json"
LINEAGE = "lineage.json"
LOCK = ".lock"
LOOK_SECONDS = 1.0  # a look at a lock takes far less
CORRUPT = "is corrupt: truncated, or changed since it was written"
NAME = re.compile(r"step-(\d+)")  # of a checkpoint's folder


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint."""

    step: int
    path: Path

    @property
    def engine(self) -> Path:
        """What the engine wrote."""
        return self.path / "engine"

    def state(self) -> dict[str, Any]:
        """The run's own state; ResumeError where its file does not say it."""
        path = self.path / STATE
        state = read_table(path)
        if state is None or not _is_state(state):
            raise ResumeError(f"{path}: {CORRUPT}. Put it back, or give another checkpoint.")
        return state

    def files(self) -> dict[str, FileFacts]:
        """Every file with its size and hash, as COMPLETE lists them; ResumeError where it does not."""
        listed = (read_table(self.path / COMPLETE) or {}).get("files")
        if not _lists_a_checkpoint(listed):
            raise ResumeError(f"{self.path / COMPLETE}: {CORRUPT}. Put it back, or give another checkpoint.")
        return cast(dict[str, FileFacts], listed)

    def verify(self, part: int = 0, parts: int = 1, hash_of: Callable[[Path], str] | None = hash_file) -> str | None:
        """What is wrong with the first file that is not as it was written, or None. Or look at every nth file.

        With no `hash_of` only names and sizes are compared, which reads no file but COMPLETE.
        """
        try:
            listed = list(self.files().items())
        except ResumeError:
            return f"{self.path / COMPLETE}: {CORRUPT}"
        for name, was in listed[part::parts]:
            path = self.path / name
            if not path.is_file():
                return f"{path}: is missing"
            if path.stat().st_size != was["bytes"]:
                return f"{path}: had {was['bytes']:,} bytes, has {path.stat().st_size:,}"
            if hash_of is not None and hash_of(path) != was["hash"]:
                return f"{path}: its content has changed since it was written"
        return None

    def refuse_damaged(self, part: int = 0, parts: int = 1) -> None:
        """ResumeError where a file is not as it was written; reads all of them, or every nth."""
        fault = self.verify(part, parts)
        if fault is not None:
            raise ResumeError(f"{fault}. Put it back, or give another checkpoint.")


def _lists_a_checkpoint(listed: object) -> bool:
    """Whether a list of files is one of a checkpoint: state and engine, each within its folder, with size and hash."""
    if not isinstance(listed, dict) or STATE not in listed or not any(name.startswith("engine/") for name in listed):
        return False
    return all(
        isinstance(facts, dict)
        and type(facts.get("bytes")) is int
        and isinstance(facts.get("hash"), str)
        and is_within(name)
        for name, facts in listed.items()
    )


class RunFolder:
    """One run on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: BinaryIO | None = None

    @property
    def events(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def decisions(self) -> Path:
        return self.path / "decisions.jsonl"

    @property
    def checkpoints_folder(self) -> Path:
        return self.path / "checkpoints"

    def lock(self) -> None:
        """Keep other launches out until this process ends; ResumeError where one is in."""
        until = time.monotonic() + LOOK_SECONDS
        with written_to(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock, owner = try_lock(self.path / LOCK)
            while self._lock is None and time.monotonic() < until:  # `is_locked` has it for an instant
                time.sleep(LOOK_SECONDS / 20)
                self._lock, owner = try_lock(self.path / LOCK)
        if self._lock is None:
            what = f"{owner or 'another process'} is training this run. Stop it first, or give run.name another name."
            raise ResumeError(f"{self.path}: {what}")
        with written_to(self.path):
            self._lock.truncate(0)
            self._lock.write(f"process {os.getpid()}".encode())
            self.clear_up()

    def clear_up(self) -> None:
        """Undo a replacement that was killed between its two renames; remove what kills have left half made or removed.

        Only for who has the folder: of a second place that is the run that copies there.
        """
        left = [path for kind in (".draft-*", ".copy-*", ".gone-*") for path in self.checkpoints_folder.glob(kind)]
        for unfinished in left:
            shutil.rmtree(unfinished, ignore_errors=True)
        for old in self.checkpoints_folder.glob(".old-step-*"):
            name = old.name.removeprefix(".old-")
            if (old / COMPLETE).is_file() and not (self.checkpoints_folder / name).exists():
                old.rename(self.checkpoints_folder / name)
            else:
                shutil.rmtree(old, ignore_errors=True)

    def unlock(self) -> None:
        """Let others in; a launch that was refused before it wrote anything leaves its lock alone.

        The lock stays: two launches that wait for it must not get one each, of the file before and after.
        """
        if self._lock is None:
            return
        with suppress(OSError):
            if self.events.is_file() and not self.events.stat().st_size:
                self.events.unlink()
        self._lock.close()
        self._lock = None

    def write_plan(self, config_toml: str, plan_json: dict[str, Any]) -> None:
        """Keep the config as given and the plan as resolved."""
        for name, text in (("config.toml", config_toml), ("plan.json", json.dumps(plan_json, indent=1))):
            with written_to(self.path), draft(self.path / name) as file:
                file.write(text.encode())

    def checkpoints(self) -> list[Checkpoint]:
        """All that are complete, by step."""
        if not self.checkpoints_folder.is_dir():
            return []
        found = [
            Checkpoint(int(name[1]), path)
            for path in self.checkpoints_folder.glob("step-*")
            if (name := NAME.fullmatch(path.name)) is not None and (path / COMPLETE).is_file()
        ]
        return sorted(found, key=lambda checkpoint: checkpoint.step)

    def checkpoint(self, name: str) -> Checkpoint:
        """The one of a folder's name, such as `step-00004000`."""
        return Checkpoint(int(name.removeprefix("step-")), self.checkpoints_folder / name)

    def last_step(self) -> int | None:
        checkpoints = self.checkpoints()
        return checkpoints[-1].step if checkpoints else None

    def draft_path(self, step: int) -> Path:
        """Where a checkpoint is written before it is one."""
        return self.checkpoints_folder / f".draft-{step:08d}"

    def fresh_draft(self, step: int) -> None:
        """An empty folder for a checkpoint, without what a launch that was killed left there."""
        self.drop_draft(step)
        self.draft_path(step).mkdir(parents=True)

    def drop_draft(self, step: int) -> None:
        """Remove what a save that failed has left."""
        shutil.rmtree(self.draft_path(step), ignore_errors=True)

    def commit(self, step: int, state: dict[str, Any], written: Mapping[str, FileFacts]) -> Checkpoint:
        """Make a draft whose engine files are written a checkpoint, whole or not at all.

        Files of which size and hash are known were flushed by who wrote them.
        """
        draft_folder = self.draft_path(step)
        (draft_folder / STATE).write_text(json.dumps(state, indent=1))
        files: dict[str, FileFacts] = {f"engine/{name}": facts for name, facts in written.items()}
        for path in sorted(path for path in draft_folder.rglob("*") if path.is_file()):
            name = path.relative_to(draft_folder).as_posix()
            if name not in files:
                files[name] = flushed_facts(path)
        (draft_folder / COMPLETE).write_text(json.dumps({"files": files}, indent=1))
        flush_file(draft_folder / COMPLETE)
        for folder in [path for path in draft_folder.rglob("*") if path.is_dir()] + [draft_folder]:
            flush_folder(folder)
        return self._put(draft_folder, step)

    def _put(self, draft_folder: Path, step: int) -> Checkpoint:
        """Give a whole draft its name, in place of a checkpoint of the same step."""
        final = self.checkpoints_folder / f"step-{step:08d}"
        old = self.checkpoints_folder / f".old-{final.name}"
        if final.exists():  # the same step again, after a resume; `clear_up` repairs a kill between the renames
            final.rename(old)
        draft_folder.rename(final)
        flush_folder(self.checkpoints_folder)
        shutil.rmtree(old, ignore_errors=True)
        return Checkpoint(step, final)

    def set_aside(self, checkpoint: Checkpoint) -> Path:
        """Rename a damaged checkpoint out of the way; returns its new path."""
        aside = checkpoint.path.with_name(f"damaged-{checkpoint.path.name}")
        shutil.rmtree(aside, ignore_errors=True)
        checkpoint.path.rename(aside)
        flush_folder(self.checkpoints_folder)
        return aside

    def take(self, checkpoint: Checkpoint) -> Checkpoint:
        """A copy of another folder's checkpoint, whole or not at all."""
        draft_folder = self.drop_copy(checkpoint)
        shutil.copytree(checkpoint.path, draft_folder)
        copied = Checkpoint(checkpoint.step, draft_folder)
        fault = copied.verify()
        if fault is not None:
            shutil.rmtree(draft_folder, ignore_errors=True)
            raise ResumeError(f"{fault}, while it was copied.")
        for path in (path for path in draft_folder.rglob("*") if path.is_file()):
            flush_file(path)
        return self._put(draft_folder, checkpoint.step)

    def drop_copy(self, checkpoint: Checkpoint) -> Path:
        """Remove what a copy that was not finished has left; returns where copies are made."""
        draft_folder = self.checkpoints_folder / f".copy-{checkpoint.path.name}"
        shutil.rmtree(draft_folder, ignore_errors=True)
        return draft_folder

    @property
    def is_locked(self) -> bool:
        """Whether a launch is training this run now; a launch that comes in this instant waits for the answer."""
        try:
            descriptor = os.open(self.path / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    @property
    def is_begun(self) -> bool:
        """Whether the folder holds anything of a run."""
        return self.path.exists() and any(each.name != LOCK for each in self.path.iterdir())

    @contextmanager
    def whole(self) -> Iterator["RunFolder"]:
        """A draft of this folder, beside it: takes its name when the block ends well, is removed if not."""
        unfinished = self.path.with_name(f".fork-{self.path.name}")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        try:
            yield RunFolder(unfinished)
            if (self.path / LOCK).exists():  # a launch that was refused has left it, and another may come
                self.lock()
                (self.path / LOCK).rename(unfinished / LOCK)
            unfinished.rename(self.path)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
        finally:
            self.unlock()
        flush_folder(self.path.parent)

    @property
    def lineage(self) -> dict[str, Any] | None:
        """The run and step that this one was forked from; None where it was not. ResumeError where it does not say."""
        path = self.path / LINEAGE
        if not path.is_file():
            return None
        lineage = read_table(path) or {}
        if not isinstance(lineage.get("run"), str) or type(lineage.get("step")) is not int:
            raise ResumeError(f"{path}: {CORRUPT}. Put it back, or delete it: the run then forgets what it forked.")
        return lineage

    def write_rows(self, step: int, rows: list[dict[str, Any]]) -> str:
        """Keep a list of the rows of a step that went wrong; returns the file's name within the run."""
        name = f"rows/step-{step:08d}.json"
        with draft(self.path / name) as file:
            file.write(json.dumps(rows, indent=1).encode())
        return name

    def keep_only(self, steps: Iterable[int]) -> None:
        """Remove every complete checkpoint that is not of these steps."""
        kept = set(steps)
        for checkpoint in self.checkpoints():
            if checkpoint.step not in kept:
                gone = checkpoint.path.with_name(f".gone-{checkpoint.path.name}")
                checkpoint.path.rename(gone)  # first, so that a kill leaves nothing that looks whole
                shutil.rmtree(gone, ignore_errors=True)


def read_table(path: Path) -> dict[str, Any] | None:
    """The table that a JSON file of a run holds; None where the file is absent or holds another thing."""
    try:
        content = read_json(path)
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def _is_state(state: dict[str, Any]) -> bool:
    """Whether a state has what resuming, exporting and asking need of it, in the right types."""
    kinds = {"config": dict, "stage": int, "loader": dict, "settings": dict}
    if not all(isinstance(state.get(key), kind) for key, kind in kinds.items()) or state["stage"] < 0:
        return False
    try:
        Config.model_validate(state["config"])
    except ValidationError:
        return False
    return isinstance(state["loader"].get("record"), dict) and "fingerprint" in state["loader"]


def find_checkpoint(path: Path, step: int | None) -> Checkpoint:
    """A run's checkpoint by its step, or its last one; also given the checkpoint's own folder."""
    if (path / STATE).is_file():
        return _given_checkpoint(path, step)
    found = RunFolder(path).checkpoints()
    if not found:
        raise ResumeError(f"{path}: has no checkpoint. Give a run's folder, or one of its checkpoints.")
    if step is None:
        return found[-1]
    by_step = {checkpoint.step: checkpoint for checkpoint in found}
    if step not in by_step:
        known = ", ".join(f"{each:,}" for each in by_step)
        raise ResumeError(f"{path}: has no checkpoint of step {step:,}. It has: {known}.")
    return by_step[step]


def _given_checkpoint(path: Path, step: int | None) -> Checkpoint:
    name = NAME.fullmatch(path.name)
    if name is None or not (path / COMPLETE).is_file():
        raise ResumeError(f"{path}: is not a checkpoint. Give a run's folder, or one of its step-... folders.")
    if step not in (None, int(name[1])):
        raise ResumeError(f"{path}: is the checkpoint of step {int(name[1]):,}, not {step:,}. Leave the step out.")
    return Checkpoint(int(name[1]), path)


@contextmanager
def written_to(path: Path) -> Iterator[None]:
    """SaveError that names a folder which cannot be written to."""
    try:
        yield
    except OSError as error:
        raise SaveError(
            f"{path}: cannot be written to: {error.strerror or error}. "
            "Make room, or give run.folder a place that you may write to."
        ) from error


def weights_folder(path: Path, step: int | None) -> Path:
    """A Hugging Face folder as it is; of a run or one of its checkpoints the engine's part."""
    return path if (path / CONFIG_FILE).is_file() else find_checkpoint(path, step).engine
