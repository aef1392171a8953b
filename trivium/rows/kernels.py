"""What kernels are made of: functions compiled by numba, and arrays by their address.

`compiled` caches a function on disk, frees it of the interpreter's lock and keeps its type, so that a kernel reads
and checks like any other function. An address lets one kernel call read from thousands of mapped files: it is a
number, and whoever passes it on keeps the array alive. Inside a kernel, `carray(pointer(address), length, dtype)` is
the array again; its bounds are not checked.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from numba.core import cgutils, types
from numba.extending import intrinsic, register_jitable
from numpy.typing import NDArray

Function = TypeVar("Function", bound=Callable[..., object])
carray = cast(Callable[..., Any], numba.carray)  # type: ignore[attr-defined]


def compiled(function: Function) -> Function:
    """Compile with numba on first use; bounds are not checked, so callers must pass arrays that fit."""
    return cast(Function, numba.njit(cache=True, nogil=True, error_model="numpy")(function))


def formula(function: Function) -> Function:
    """One definition for two uses: kernels inline it, and Python calls it with numbers or with whole arrays."""
    return register_jitable(function)


@intrinsic
def _pointer(context: Any, address: Any) -> Any:
    """A number as a pointer."""

    def make(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), make


pointer = cast(Callable[[Any], Any], _pointer)


def address_of(array: NDArray[Any]) -> int:
    """Where a contiguous array begins."""
    assert array.flags.c_contiguous, "only a contiguous array can be read by its address"
    return int(array.__array_interface__["data"][0])
