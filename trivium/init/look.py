"""A folder -> its sources, by subfolder and kind, with estimated sizes; and what was passed over, and why.

Every file is listed and none is read whole: a file's ending tells what it is, and the first bytes of some files of each
ending confirm it. At most 200,000 files are listed, and about 100 MB are read, whatever the folder holds.
"""

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from trivium.errors import Problem, ProblemsError, SourceError, UsageError
from trivium.init.cover import cover
from trivium.init.endings import BELONGS, CODE, NOT_READ, TEXT, TOKENIZER
from trivium.init.found import Estimate, FoundFile, FoundFolder, FoundSource, Kind, PassedOver
from trivium.init.records import Records, estimate_records, look_at_records
from trivium.init.tokens import TokenGroup, estimate_tokens, look_at_tokens
from trivium.init.whole import estimate_texts, is_text
from trivium.paths import boundary, folders_below, refuse_link_outside
from trivium.textfiles.inputs import LINES
from trivium.textfiles.read import MOST_BYTES
from trivium.tokenfiles.find import COMPANIONS, ENDINGS

MOST_FILES = 200_000
MOST_SOURCES = 8
CRUMB = 0.02  # of the bytes of all text
MOST_SHOWN = 10  # problems of one kind
TRIED = 40  # files of an ending that is not known
SHARD = re.compile(r"([-_.]?(of|part|shard|train|split)?[-_.]?\d+)+$")
NOT_A_NAME = re.compile(r"[^a-z0-9]+")


class LookError(ProblemsError):
    """What is in a folder cannot be read, or not together."""


@dataclass(frozen=True, slots=True)
class Group:
    """Files of one label that are read alike."""

    label: str
    kind: Kind
    column: str | None = None
    tokens: TokenGroup | None = None


@dataclass(slots=True)
class Sorted:
    """Files as they are sorted: those of each group, and those passed over by reason."""

    groups: dict[Group, list[FoundFile]] = field(default_factory=dict)
    passed: dict[str, list[FoundFile]] = field(default_factory=dict)
    tokenizers: list[Path] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def add(self, file: FoundFile, kind: Kind, column: str | None = None, tokens: TokenGroup | None = None) -> None:
        self.groups.setdefault(Group(label_of(file, kind), kind, column, tokens), []).append(file)

    def pass_over(self, file: FoundFile, reason: str) -> None:
        self.passed.setdefault(reason, []).append(file)


def look(folder: Path) -> FoundFolder:
    """What a folder holds; LookError with every file that cannot be read, UsageError where nothing can be."""
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "does not exist"
        raise UsageError(
            f"{folder}: {what}. Name a folder of text, code, JSONL, Parquet, token files or conversations."
        )
    listed = list(islice(_listed(folder), MOST_FILES + 1))
    files, is_whole = listed[:MOST_FILES], len(listed) <= MOST_FILES
    if not files:
        raise UsageError(f"{folder}: is empty. Put text into it: .txt, .md, source code, JSONL or Parquet.")
    sorted_files = _sort(files)
    if sorted_files.problems:
        shown = sorted_files.problems[:MOST_SHOWN]
        more = len(sorted_files.problems) - len(shown)
        raise LookError([*shown, *([Problem(str(folder), f"{more:,} more such files.")] if more else [])])
    passed = tuple(
        PassedOver(reason, len(each), sum(file.size for file in each), each[0].name)
        for reason, each in sorted_files.passed.items()
    )
    if not sorted_files.groups:
        raise UsageError(_nothing_readable(folder, passed))
    merged = _merged(sorted_files.groups)
    return FoundFolder(folder, _sources(folder, merged, files), passed, tuple(sorted_files.tokenizers), is_whole)


def _nothing_readable(folder: Path, passed: Sequence[PassedOver]) -> str:
    reasons = "; ".join(f"{each.files:,} such as {each.example}: {each.reason}" for each in passed[:4])
    return (
        f"{folder}: holds nothing that can be read as text, tokens or conversations ({reasons}). Name another folder."
    )


def _listed(folder: Path) -> Iterator[FoundFile]:
    """Every file below a folder that is not hidden."""
    within = boundary(folder)
    for current, names in folders_below(folder):
        for name in sorted(names):
            path = current / name
            if path.is_symlink() and path.exists():  # others are listed with all that cannot be read
                refuse_link_outside(path, within)
            try:
                size = path.stat().st_size if path.is_file() else -1
            except OSError:
                size = -1
            yield FoundFile(path, path.relative_to(folder).as_posix(), size)


def _sort(files: Sequence[FoundFile]) -> Sorted:
    """Every file into its group, or passed over."""
    found = Sorted()
    by_ending: dict[str, list[FoundFile]] = {}
    seen: dict[tuple[int, int], FoundFile] = {}
    for file in files:
        if file.size < 0 or not os.access(file.path, os.R_OK):
            what = "cannot be read: it is a pipe, a device or a link that leads nowhere, or you may not read it"
            found.problems.append(Problem(str(file.path), f"{what}. Fix it, or take it out of the folder."))
            continue
        status = os.stat(file.path)
        earlier = seen.setdefault((status.st_dev, status.st_ino), file)
        if earlier is not file:
            what = f"is the same file as {earlier.path}, and would be read twice"
            found.problems.append(Problem(str(file.path), f"{what}. Take one of them out of the folder."))
            continue
        if Path(file.name).name == TOKENIZER:
            found.tokenizers.append(file.path)
        by_ending.setdefault(file.ending, []).append(file)
    for ending, same in by_ending.items():
        try:
            _sort_ending(ending, same, found)
        except SourceError as error:
            found.problems.append(Problem("", str(error)))
    return found


def _sort_ending(ending: str, files: Sequence[FoundFile], found: Sorted) -> None:
    """Files of one ending."""
    inner = Path(ending).suffix if not ending.startswith(".") else "." + ending.split(".")[1]
    is_known = inner in (*LINES, ".parquet") or ending in ENDINGS or ending in NOT_READ or inner in NOT_READ
    tried = [] if is_known or inner in TEXT or inner in CODE else files[:: max(1, len(files) // TRIED)]
    reads_as_text = sum(map(is_text, tried)) >= 0.9 * len(tried)
    for file in files:
        name = Path(file.name).name
        if file.size == 0:
            found.pass_over(file, "empty")
        elif name in BELONGS or name.endswith((*COMPANIONS, ".ds.metadata", ".origins.json")):
            found.pass_over(file, "part of a tokenizer or of token files")
        elif ending in ENDINGS:
            _sort_tokens(file, found)
        elif inner in LINES or inner == ".parquet":
            _sort_records(file, inner, found)
        elif (reason := NOT_READ.get(Path(ending).suffix) or NOT_READ.get(inner)) is not None:
            found.pass_over(file, reason)
        elif not reads_as_text:
            found.pass_over(file, "binary, or not UTF-8")
        elif file.size > MOST_BYTES:
            found.pass_over(file, "one document of over 200 MB: write it as JSONL, a document a line")
        else:
            found.add(file, "code" if inner in CODE else "text")


def _sort_tokens(file: FoundFile, found: Sorted) -> None:
    try:
        group = look_at_tokens(file)
    except SourceError as error:
        found.problems.append(Problem("", str(error)))
        return
    if isinstance(group, str):
        found.pass_over(file, group)
    else:
        found.add(file, "tokens", tokens=group)


def _sort_records(file: FoundFile, inner: str, found: Sorted) -> None:
    try:
        looked = look_at_records(file, inner)
    except SourceError as error:
        found.problems.append(Problem("", str(error)))
        return
    if isinstance(looked, Records):
        found.add(file, "chat" if looked.column is None else "records", looked.column)
    else:
        found.pass_over(file, looked)


def label_of(file: FoundFile, kind: Kind) -> str:
    """What a file's source is called: its first folder, or its name without the number of a shard, or its kind."""
    first, slash, _ = file.name.partition("/")
    if slash:
        return first
    stem = file.name.removesuffix(file.ending)
    return (SHARD.sub("", stem) or kind) if kind in ("records", "chat", "tokens") else kind


def _merged(groups: dict[Group, list[FoundFile]]) -> dict[Group, list[FoundFile]]:
    """Text, code and one column of records of one label are read together; of very many labels all of one kind."""
    found = _together(groups)
    if len(found) > MOST_SOURCES:
        found = {}
        for group, files in groups.items():
            found.setdefault(Group(group.kind, group.kind, group.column, group.tokens), []).extend(files)
    return _without_crumbs(found)


def _without_crumbs(groups: dict[Group, list[FoundFile]]) -> dict[Group, list[FoundFile]]:
    """The groups without those of text that are too small to be a source: their files go to the largest one."""
    sizes = {group: sum(file.size for file in files) for group, files in groups.items()}
    texts = [group for group in groups if group.kind in ("text", "code", "records")]
    found = dict(groups)
    for group in texts:
        larger = [each for each in texts if sizes[each] > sizes[group] and each.column in (group.column, None)]
        larger += [each for each in texts if sizes[each] > sizes[group] and group.column is None and each not in larger]
        if larger and sizes[group] < CRUMB * sum(sizes[each] for each in texts):
            largest = max(larger, key=lambda each: sizes[each])
            own = next(each for each in found if each.label == largest.label and each.kind == largest.kind)
            files = [*found.pop(own), *found.pop(group)]
            found[Group(own.label, own.kind, own.column or group.column)] = files
    return found


def _together(groups: dict[Group, list[FoundFile]]) -> dict[Group, list[FoundFile]]:
    found = dict(groups)
    for label in {group.label for group in groups}:
        same = [group for group in found if group.label == label and group.kind in ("text", "code", "records")]
        columns = {group.column for group in same} - {None}
        if len(same) > 1 and len(columns) <= 1:
            sizes = Counter({group: sum(file.size for file in found[group]) for group in same})
            largest = sizes.most_common(1)[0][0]
            files = [file for group in same for file in found.pop(group)]
            found[Group(label, largest.kind, next(iter(columns), None))] = files
    return found


def _sources(folder: Path, groups: dict[Group, list[FoundFile]], files: Sequence[FoundFile]) -> tuple[FoundSource, ...]:
    """The groups as sources, the largest first, with their names and paths."""
    names = _names(groups)
    of_file = {file: names[group] for group, own in groups.items() for file in own}
    texts = {file: of_file.get(file) for file in files}
    tokens = {file: of_file.get(file) for file in files if file.ending in ENDINGS}
    token_names = {names[group] for group in groups if group.kind == "tokens"}
    paths = cover(folder, texts)
    paths |= {name: each for name, each in cover(folder, tokens).items() if name in token_names}
    found = [
        FoundSource(
            names[group],
            group.kind,
            tuple(own),
            paths[names[group]],
            _estimate(group, own),
            group.column,
            None if group.tokens is None else group.tokens.tokenizer,
        )
        for group, own in groups.items()
    ]
    return tuple(sorted(found, key=lambda each: (-each.size, each.name)))


def _estimate(group: Group, files: Sequence[FoundFile]) -> Estimate:
    if group.kind == "tokens":
        return estimate_tokens(files)
    whole = [file for file in files if not _has_records(file)]
    lines = [file for file in files if _has_records(file)]
    parts = [estimate_texts(whole)] if whole else []
    parts += [estimate_records(lines, group.column)] if lines else []
    lookers = sum(part.documents for part in parts) or 1
    return Estimate(
        sum(part.documents for part in parts),
        sum(part.text_bytes for part in parts),
        bad=sum(part.bad * part.documents for part in parts) / lookers,
        texts=tuple(text for part in parts for text in part.texts),
    )


def _has_records(file: FoundFile) -> bool:
    inner = "." + file.ending.split(".")[1] if file.ending.startswith(".") else ""
    return inner in LINES or inner == ".parquet"


def _names(groups: dict[Group, list[FoundFile]]) -> dict[Group, str]:
    """A name of letters, digits and dashes for each group, none twice."""
    taken: Counter[str] = Counter()
    names = {}
    for group in groups:
        name = NOT_A_NAME.sub("-", group.label.lower()).strip("-") or group.kind
        if taken[name]:
            name = f"{name}-{group.kind}"
        taken[name] += 1
        names[group] = name if taken[name] == 1 else f"{name}-{taken[name]}"
    return names
