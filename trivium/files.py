"""Files: hashed, flushed, written whole or not at all, mapped, read within limits; and where what we computed is kept.

A draft costs two flushes to disk. A mapped file costs one system call and holds no descriptor.
"""

import ctypes
import errno
import fcntl
import functools
import json
import mmap
import os
import secrets
import stat
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, TypedDict

import platformdirs
import xxhash

from trivium.errors import SourceError, UsageError
from trivium.screen import echo_line

LARGEST_JSON = 256 << 20  # bytes; the largest tokenizers have about 40 MB
DEEPEST_JSON = 64  # tables and lists within one another
MOST_DIGITS = 40  # of a whole number
READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)
LONGEST_OWNER = 200  # bytes of a lock file


class FileFacts(TypedDict):
    """A written file's size, and the hash of its content."""

    bytes: int
    hash: str


@dataclass(frozen=True, slots=True)
class FileStamp:
    """A file as it was when it was opened: when its size or time of change differs, what was computed is stale."""

    path: Path
    size: int
    mtime_ns: int


def stamp_of(path: Path) -> FileStamp:
    """`path` as it is now."""
    status = os.stat(path)
    return FileStamp(path, status.st_size, status.st_mtime_ns)


def cache_key(what: str, stamps: tuple[FileStamp, ...], *settings: object) -> str:
    """The name under which `what` is cached: another file, size, time of change or setting is another name."""
    files = [(str(stamp.path.resolve()), stamp.size, stamp.mtime_ns) for stamp in stamps]
    return f"{what}-{hash_json([1, what, files, settings])}"


def hash_json(value: object) -> str:
    """A hash of plain values, whatever the order of a dict's keys."""
    return str(xxhash.xxh3_128_hexdigest(json.dumps(value, sort_keys=True).encode()))


def hash_file(path: Path) -> str:
    hasher = xxhash.xxh3_128()
    with open(path, "rb") as file:
        while part := file.read(1 << 22):
            hasher.update(part)
    return str(hasher.hexdigest())


def flushed_facts(path: Path) -> FileFacts:
    """Make a written file survive a power cut; its size and hash."""
    flush_file(path)
    return {"bytes": path.stat().st_size, "hash": hash_file(path)}


def write_flushed(path: Path, parts: Iterable[bytes | memoryview]) -> FileFacts:
    """Write a file part by part and flush it; hashed as it is written, so that it is not read again."""
    hasher = xxhash.xxh3_128()
    with open(path, "wb") as file:
        for part in parts:
            hasher.update(part)
            file.write(part)
        file.flush()
        os.fsync(file.fileno())
        return {"bytes": file.tell(), "hash": str(hasher.hexdigest())}


def read_json(path: Path, largest: int = LARGEST_JSON) -> Any:
    """The value of a JSON file that anyone may have written; OSError or ValueError where it cannot be read."""
    return parse_json(read_bounded(path, largest))


def read_bounded(path: Path, largest: int) -> bytes:
    """A file's content; ValueError where it has more than `largest` bytes, or is a pipe, a device or a folder."""
    with open(open_regular(path), "rb") as file:
        content = file.read(largest + 1)
    if len(content) > largest:
        raise ValueError(f"it has more than {largest:,} bytes")
    return content


def open_regular(path: Path) -> int:
    """A descriptor of a file; ValueError where it is a pipe, a device or a folder."""
    # A pipe that nobody writes to would wait here without end.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise ValueError(f"it is a {'pipe' if stat.S_ISFIFO(mode) else 'folder' if stat.S_ISDIR(mode) else 'device'}")
    return descriptor


def is_within(name: str) -> bool:
    """Whether a name leads to a file below its folder: no way up, no root, no second spelling of the same file."""
    pure = PurePosixPath(name)
    return not pure.is_absolute() and pure.as_posix() == name and name != "." and ".." not in pure.parts


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text that anyone may have written; ValueError where it is not JSON, or beyond our limits."""
    decoded = text.decode("utf-8-sig") if isinstance(text, bytes) else text
    try:
        value = _DECODER.decode(decoded)
    except RecursionError:
        raise ValueError(f"it is nested more than {DEEPEST_JSON} levels deep") from None
    level = [value]
    for _ in range(DEEPEST_JSON):
        level = [child for each in level for child in _children(each) if isinstance(child, dict | list)]
        if not level:
            return value
    raise ValueError(f"it is nested more than {DEEPEST_JSON} levels deep")


def _children(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _whole_number(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise ValueError(f"it has a number of {len(digits):,} digits")
    return int(digits)


_DECODER = json.JSONDecoder(parse_int=_whole_number)


@contextmanager
def draft(path: Path, *, durable: bool = True) -> Iterator[BinaryIO]:
    """A draft of `path`, open for writing: takes its name when the block ends well, is removed if not.

    Where it is not `durable`, a power cut may leave a file of that name without its content.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # In the same folder, since only there is a rename atomic; hidden, since no folder walk looks there.
    unfinished = path.parent / f".{secrets.token_hex(8)}.draft"
    try:
        with open(unfinished, "xb") as file:
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(unfinished, path)
    except BaseException as error:
        with suppress(OSError):  # what could not be made is not there
            unfinished.unlink(missing_ok=True)
        name_in_error(error, unfinished, path)
        raise
    if durable:
        flush_folder(path.parent)


def open_lock(path: Path) -> BinaryIO:
    """A lock file, made where there is none; whoever locks it may write its name into it."""
    what = "is a link, a pipe or a folder, and a lock is a plain file. Delete it."
    try:
        # Through a link, what is written into the lock would overwrite the file that the link leads to.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR):
            raise UsageError(f"{path}: {what}") from None
        raise
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        os.close(descriptor)
        raise UsageError(f"{path}: {what}")
    return open(descriptor, "rb+", buffering=0)


def try_lock(path: Path) -> tuple[BinaryIO | None, str]:
    """The lock file, locked until it is closed; or None, and what its owner has written into it."""
    while True:
        lock = open_lock(path)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with lock:
                return None, lock.read(LONGEST_OWNER).decode(errors="replace").strip()
        # Another folder may have taken the place of this one meanwhile: then its lock is the one that counts.
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock.fileno()), os.stat(path, follow_symlinks=False)):
                return lock, ""
        lock.close()


@contextmanager
def readable_by_others(path: Path) -> Iterator[None]:
    """Let a library write a file that gets the mode of any new file, where it would be its owner's alone."""
    path.touch()
    mode = path.stat().st_mode
    yield
    path.chmod(mode)


def name_in_error(error: BaseException, unfinished: Path, path: Path) -> None:
    """An error that names a draft names what was to be written instead."""
    if isinstance(error, OSError) and error.filename is not None and str(error.filename) == str(unfinished):
        error.filename = str(path)


def flush_file(path: Path) -> None:
    """Make a written file survive a power cut."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def flush_folder(folder: Path) -> None:
    """Make a rename in `folder` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        # Some network file systems cannot flush a folder; there the rename is as safe as they make it.
        with suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def map_file(path: Path) -> memoryview:
    """Map `path` for reading: its bytes, paged in when touched, without an open descriptor."""
    try:
        descriptor = open_regular(path)
    except ValueError as reason:
        raise SourceError(f"{path}: cannot be read: {reason}. Put the file itself there.") from None
    try:
        length = os.fstat(descriptor).st_size
        if length == 0:  # the system maps no empty file
            return memoryview(b"")
        # `mmap.mmap` (and so `np.memmap`) keeps a duplicate of the descriptor until Python 3.13, where
        # `trackfd=False` frees it: 3,000 token files would need more descriptors than the usual 1,024.
        address = _libc().mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
        if address == ctypes.c_void_p(-1).value:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))
    finally:
        os.close(descriptor)
    mapped = (ctypes.c_ubyte * length).from_address(address)
    release = weakref.finalize(mapped, _libc().munmap, address, length)
    release.atexit = False  # arrays may outlive us at exit; the system takes the pages back anyway
    return memoryview(mapped).cast("B").toreadonly()


@functools.cache
def _libc() -> ctypes.CDLL:
    """The C library's `mmap` and `munmap`, with their types declared."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return libc


@contextmanager
def cached_draft(path: Path, *, durable: bool = True) -> Iterator[BinaryIO]:
    """A draft in the cache folder; one that cannot be written to is an error that names the setting."""
    try:
        with draft(path, durable=durable) as file:
            yield file
    except OSError as error:
        raise SourceError(
            f"{path.parent}: nothing can be kept here: {error.strerror}. "
            f"Set TRIVIUM_CACHE to a folder with room that you may write to."
        ) from error


def keep_in_cache(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Keep what saves time and can be computed again; where the cache folder may only be read, go without."""
    try:
        with cached_draft(path, durable=durable) as file:
            file.write(content)
    except SourceError as error:
        if getattr(error.__cause__, "errno", None) not in READ_ONLY:
            raise
        _warn_read_only(cache_folder())


@functools.cache
def _warn_read_only(folder: Path) -> None:
    """Warn once in a process, not for every file."""
    what = "may only be read, so that what is computed is not kept, and is computed again next time"
    echo_line(f"{folder}: {what}.", err=True)


def cache_folder() -> Path:
    """Where what was computed from files is kept: $TRIVIUM_CACHE, or the user's cache folder."""
    return Path(os.environ.get("TRIVIUM_CACHE") or platformdirs.user_cache_dir("trivium", appauthor=False))
