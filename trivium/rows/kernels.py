"""What kernels are made of: functions that numba compiles when they are first called, and arrays by their address.

`compiled` caches a function on disk, frees it of the interpreter's lock and keeps its type, so that a kernel reads
and checks like any other function. numba is imported with the first call: a command that calls no kernel does not
wait half a second for it. An address lets one kernel call read from thousands of mapped files: it is a number, and
whoever passes it on keeps the array alive. Inside a kernel, `array_at(address, shape, dtype)` is the array again; its
bounds are not checked.
"""

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

from numpy.typing import NDArray

LOG = logging.getLogger("trivium")

Function = TypeVar("Function", bound=Callable[..., object])

_said: list[str] = []  # that kernels are being compiled


class _Kernel:
    """Takes a function's place until it is called; then numba's dispatcher takes its place in the caller's module."""

    def __init__(self, function: Callable[..., Any], make: Callable[[Callable[..., Any]], Any]) -> None:
        self.function = function
        self._make = make
        self._made: dict[str, Any] = {}

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        names, name = sys._getframe(1).f_globals, self.function.__name__
        if names.get(name) is self:
            names[name] = self.dispatcher  # from now on a call from there costs what numba's does
        return self.dispatcher(*arguments, **named)

    @property
    def dispatcher(self) -> Any:
        """What numba made of the function; two threads that ask at once get the same."""
        if not self._made:
            self._made.setdefault("dispatcher", self._make(self.function))
        return self._made["dispatcher"]

    @property
    def _numba_type_(self) -> Any:
        """What numba asks for when it compiles a kernel that calls this one."""
        return self.dispatcher._numba_type_


class _Formula(_Kernel):
    """A kernel to other kernels; called from Python, the function itself."""

    def __call__(self, *arguments: Any) -> Any:
        return self.function(*arguments)


def _njit(function: Callable[..., Any]) -> Any:
    import numba

    dispatcher = numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    if not _said and not _is_cached(dispatcher.stats.cache_path, function):
        _said.append("once a process")
        LOG.warning("compiling kernels for this machine, once: about 15 seconds")
    return dispatcher


def _is_cached(folder: str | None, function: Callable[..., Any]) -> bool:
    """Whether a compiled function is on disk and newer than its source."""
    source = Path(function.__code__.co_filename)
    try:
        newest = max(
            file.stat().st_mtime for file in Path(folder or "").glob(f"{source.stem}.{function.__name__}-*.nbi")
        )
        return newest >= source.stat().st_mtime
    except (OSError, ValueError):  # there is none
        return False


def compiled(function: Function) -> Function:
    """Compile with numba on first use; bounds are not checked, so callers must pass arrays that fit."""
    return cast(Function, _Kernel(function, _njit))


def formula(function: Function) -> Function:
    """One definition for two uses: kernels inline it, and Python calls it with numbers or with whole arrays."""
    return cast(Function, _Formula(function, _njit))


def kernel_of(function: Function) -> Function:
    """A formula's kernel, for Python to call where compiled code is worth the import of numba."""
    return cast(Function, cast(_Formula, function).dispatcher)


def _compile_array_at(_: Callable[..., Any]) -> Any:
    import numba
    from numba.core import cgutils, types
    from numba.extending import intrinsic

    @intrinsic
    def pointer(context: Any, address: Any) -> Any:
        """A number as a pointer."""

        def make(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], cgutils.voidptr_t)

        return types.voidptr(types.int64), make

    carray = numba.carray  # type: ignore[attr-defined]

    @numba.njit(nogil=True, error_model="numpy")
    def array_at(address: Any, shape: Any, dtype: Any) -> Any:
        return carray(pointer(address), shape, dtype)  # type: ignore[call-arg]

    return array_at


def _array_at(address: int, shape: Any, dtype: Any) -> NDArray[Any]:
    """The array that begins at an address; inside of kernels only."""
    raise NotImplementedError


array_at = cast(Callable[[Any, Any, Any], NDArray[Any]], _Kernel(_array_at, _compile_array_at))


def address_of(array: NDArray[Any]) -> int:
    """Where a contiguous array begins."""
    assert array.flags.c_contiguous, "only a contiguous array can be read by its address"
    return int(array.__array_interface__["data"][0])
