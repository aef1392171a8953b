"""What is known of a folder in which token files are prepared: finished shards, and in the end what it holds.

While it is being made the folder has a `.prepare` in it, with a record of every finished shard, and no source reads
it. When all is done come `prepared.json` (from what), then `manifest.json`, and `.prepare` goes away.
"""

import fcntl
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from trivium.config.numbers import show_count
from trivium.errors import SourceError
from trivium.files import draft, flush_file, hash_json, open_lock, read_json
from trivium.paths import UNFINISHED, Found
from trivium.prepare.encode import NO_NAME, Outcome, Recipe, shard_files
from trivium.prepare.shards import Shard, Work
from trivium.textfiles.bad_lines import BadLines
from trivium.textfiles.progress import say
from trivium.textfiles.read import InputPart
from trivium.tokenfiles.manifest import MANIFEST_NAME, Manifest, measure_file, read_manifest, write_manifest
from trivium.tokenfiles.open import open_files
from trivium.tokenfiles.write import ENDINGS

VERSION = 3  # of prepared.json; part of a folder's identity, so that a cached one of another version is not found
SUMMARY = "prepared.json"


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a folder of prepared files holds."""

    folder: Path
    manifest: Manifest
    text_bytes: int
    lines: int
    bad: BadLines = field(default_factory=BadLines)

    def __str__(self) -> str:
        counts = f"{self.manifest.documents:,} documents, {self.manifest.tokens:,} tokens"
        return f"{counts} from {show_count(self.text_bytes)} bytes of input"


def identity_of(work: Work, recipe: Recipe) -> str:
    """A hash of everything that decides the token files, and of the version of what describes them."""
    return hash_json([VERSION, work.content, recipe.content])


@contextmanager
def locked(folder: Path, title: str) -> Iterator[None]:
    """Be the only one who prepares in a folder; waits for another who does. Drafts of processes that died go away."""
    folder.mkdir(parents=True, exist_ok=True)
    with open_lock(folder / ".lock") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"{title}: another process prepares it; waiting")
            fcntl.flock(lock, fcntl.LOCK_EX)
        _remove_drafts(folder)
        try:
            yield
        finally:
            _remove_drafts(folder)


def _remove_drafts(folder: Path) -> None:
    for left in (*folder.glob(".*.draft"), *(folder / UNFINISHED).glob(".*.draft")):
        left.unlink(missing_ok=True)


class FinishedShards:
    """What is kept of every finished shard in a folder that is not finished."""

    def __init__(self, folder: Path, identity: str, recipe: Recipe) -> None:
        self.folder = folder
        self._identity = identity  # of all
        self._recipe = recipe.content  # of each shard: other input beside it changes nothing for it
        self._format = recipe.format
        self._place = folder / UNFINISHED
        self._place.mkdir(exist_ok=True)

    def outcome(self, shard: Shard) -> Outcome | None:
        """What came of a shard in an earlier try; None where it has to be encoded."""
        kept = self._read(shard.name)
        if kept is None or kept.get("key") != shard.key(self._recipe):
            return None
        try:
            outcome = Outcome.from_json(kept["outcome"])
            if outcome.facts is None:
                return outcome
            # Read again: a power cut may have left a name without its content.
            path = self._files(shard.name)[0]
            (file,) = open_files([Found(path, path.name)])
            return outcome if measure_file(file) == outcome.facts else None
        except (SourceError, KeyError, TypeError):
            return None

    def keep(self, shard: Shard, outcome: Outcome) -> None:
        self._write(shard.name, {"key": shard.key(self._recipe), "outcome": asdict(outcome)})

    def is_finished(self, shard: Shard) -> bool:
        """Whether an earlier try has written a shard, whole and by this recipe."""
        return self.outcome(shard) is not None

    def num_parts(self, name: str, part: InputPart) -> int | None:
        """In how many shards an input that is read from its start was cut, if it has been read to its end."""
        kept = self._read(name)
        if kept is None or kept.get("key") != part.hash or kept.get("bytes") != part.stop:
            return None
        parts: int = kept["parts"]
        return parts

    def set_parts(self, name: str, part: InputPart, count: int) -> None:
        """Keep that number: the input has been read to its end."""
        self._write(name, {"key": part.hash, "bytes": part.stop, "parts": count})

    def _files(self, name: str) -> list[Path]:
        return shard_files(self.folder, name, self._format)

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            kept = read_json(self._place / f"{name}.json")
        except (OSError, ValueError):
            return None
        return kept if isinstance(kept, dict) else None

    def _write(self, name: str, value: dict[str, Any]) -> None:
        with draft(self._place / f"{name}.json", durable=False) as file:
            file.write(json.dumps(value).encode())

    def finish(self, prepared: Prepared, outcomes: Mapping[str, Outcome]) -> None:
        """All is done: remove what an earlier try has left over, and write what the folder holds."""
        written = {path for name, outcome in outcomes.items() if outcome.facts for path in self._files(name)}
        for record in self._place.glob("*.json"):
            possible = {path for each in ENDINGS for path in shard_files(self.folder, record.stem, each)}
            for left_over in possible - written:
                left_over.unlink(missing_ok=True)
        for path in sorted(written):
            if path.exists():
                flush_file(path)
        content = {
            "version": VERSION,
            "identity": self._identity,
            "documents": prepared.manifest.documents,
            "tokens": prepared.manifest.tokens,
            "lines": prepared.lines,
            "text_bytes": prepared.text_bytes,
            "skipped": asdict(prepared.bad),
        }
        with draft(self.folder / SUMMARY) as file:
            file.write(json.dumps(content, indent=1).encode() + b"\n")
        write_manifest(prepared.manifest, self.folder / MANIFEST_NAME)
        shutil.rmtree(self._place)


def summed(folder: Path, tokenizer: str, outcomes: Mapping[str, Outcome]) -> Prepared:
    bad = BadLines()
    for outcome in outcomes.values():
        bad.join(outcome.bad)
    facts = tuple(outcome.facts for outcome in outcomes.values() if outcome.facts is not None)
    lines = sum(outcome.lines for outcome in outcomes.values())
    if not facts:
        listed = "; ".join(bad.lines()) or "nothing is in it"
        raise SourceError(f"no document was found in {lines:,} lines ({listed}). Look at its path and column.")
    text_bytes = sum(outcome.text_bytes for outcome in outcomes.values())
    return Prepared(folder, Manifest(facts, None if tokenizer == NO_NAME else tokenizer), text_bytes, lines, bad)


def is_prepared(folder: Path) -> bool:
    """Whether a folder was prepared to the end."""
    return (folder / MANIFEST_NAME).is_file() and not (folder / UNFINISHED).is_dir()


def find_prepared(folder: Path, identity: str) -> Prepared | None:
    """What is there already; None where there is nothing, or an unfinished try. Other content is refused."""
    if not (folder / MANIFEST_NAME).is_file() or not (folder / SUMMARY).is_file():
        there = (path for endings in ENDINGS.values() for path in folder.glob(f"**/*{endings[0]}"))
        if not (folder / UNFINISHED).is_dir() and any(there):
            what = "holds token files that were not prepared here"
            raise SourceError(f"{folder}: {what}. Give a folder that does not exist yet.")
        return None
    try:
        content = read_json(folder / SUMMARY)
        version = content["version"]
        if version != VERSION:
            raise SourceError(
                f"{folder / SUMMARY}: is of version {version}, and this trivium writes version {VERSION}. "
                f"Delete the folder, or give another."
            )
        same = content["identity"] == identity
        bad = BadLines.from_json(content["skipped"])
        prepared = Prepared(folder, read_manifest(folder / MANIFEST_NAME), content["text_bytes"], content["lines"], bad)
    except (ValueError, KeyError, TypeError) as error:
        what = f"cannot be read ({error})"
        raise SourceError(f"{folder / SUMMARY}: {what}. Delete the folder, or give another.") from None
    if not same:
        raise SourceError(
            f"{folder}: was prepared from other text, or with another tokenizer, column or format. "
            f"Give another folder, or delete this one."
        )
    if (folder / UNFINISHED).is_dir():
        shutil.rmtree(folder / UNFINISHED)  # killed when all but this was done
    return prepared
