"""find: the paths of a source -> its token files, in an order and under names that never change by chance.

A path is a file, a folder (all token files in it, however deep), a pattern such as `web/*/train-*.bin`, or a
Megatron prefix without its ending. Costs one listing of each folder; no file is opened.
"""

import glob
from collections.abc import Container, Iterator, Sequence
from pathlib import Path

from trivium.errors import SourceError
from trivium.paths import Found, find_with, fixed_part, folders_below, missing
from trivium.tokenfiles.masked import INDEX, MASK, TOKEN

ENDINGS = (".ds", ".npy", ".bin")
# Files that are useless without the token file beside them: `web.idx` needs `web.bin`.
COMPANIONS = {".ds.index": ".ds", ".ds.loss": ".ds", ".ds.task": ".ds", ".idx": ".bin", ".bin.mask": ".bin"}


def find_files(paths: str | Path | Sequence[str | Path]) -> tuple[Found, ...]:
    """The token files of a source: path after path as given, within each sorted by name."""
    return find_with(paths, _expand)


def exists(entry: str) -> bool:
    """Whether a path names anything that is on disk; a pattern may match nothing yet."""
    return (
        Path(entry).exists() or any(map(Path.is_file, _megatron_files(entry))) or bool(glob.glob(entry, recursive=True))
    )


def _megatron_files(prefix: str) -> tuple[Path, Path]:
    return Path(f"{prefix}.bin"), Path(f"{prefix}.idx")


def _expand(entry: str) -> tuple[Path, list[Found]]:
    """The folder that names are relative to, and the files below it that `entry` names."""
    path = Path(entry)
    if path.is_dir():
        root, files = path, list(_walk(path))
    elif path.is_file():
        root, files = path.parent, [path]
    elif any(map(Path.is_file, _megatron_files(entry))):
        tokens, index = _megatron_files(entry)
        if not (tokens.is_file() and index.is_file()):
            there, lacking = (tokens, index) if tokens.is_file() else (index, tokens)
            raise SourceError(f"{lacking}: does not exist, and {there} needs it beside it. Copy it too.")
        root, files = path.parent, [tokens]
    elif glob.has_magic(entry):
        root, files = fixed_part(path), list(_match(entry))
    else:
        raise missing(entry)
    if not files:
        raise SourceError(
            f"{entry}: holds no token files: nothing ends in {', '.join(ENDINGS)}. "
            f"Name the folder that holds them, or prepare the text first."
        )
    for file in files:
        if file.suffix not in ENDINGS:
            raise SourceError(f"{file}: is not a token file: those end in {', '.join(ENDINGS)}. Name one of those.")
    named = [Found(file, file.relative_to(root).as_posix()) for file in files]
    return root, sorted(named, key=lambda file: file.name)


def _walk(folder: Path) -> Iterator[Path]:
    for current, present in folders_below(folder):
        _refuse_orphans(current, present)
        yield from (current / name for name in present if _is_tokens(name, present))


def _is_tokens(name: str, names: Container[str]) -> bool:
    """Whether a name is a token file's, and not one of an array beside it: `a_index.npy` beside `a_token.npy`."""
    beside = [name.removesuffix(ending) + TOKEN for ending in (INDEX, MASK) if name.endswith(ending)]
    return name.endswith(ENDINGS) and not any(owner in names for owner in beside)


def _refuse_orphans(folder: Path, names: set[str]) -> None:
    """Refuse an index without its tokens: the token file was lost in copying."""
    for name in sorted(names):
        for ending, of in COMPANIONS.items():
            owner = name.removesuffix(ending) + of
            if name.endswith(ending) and owner not in names:
                what = f"belongs to {owner}, which does not exist. Copy {owner} too, or delete {name}."
                raise SourceError(f"{folder / name}: {what}")


def _match(pattern: str) -> set[Path]:
    """The token files that match a pattern, and those below folders that match it."""
    matches = [Path(match) for match in sorted(glob.glob(pattern, recursive=True))]
    names = {str(match) for match in matches}
    files = {match for match in matches if match.is_file() and _is_tokens(str(match), names)}
    return files.union(*(_walk(match) for match in matches if match.is_dir()))
