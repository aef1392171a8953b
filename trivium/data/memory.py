"""Arrays by their address, so that one kernel call can read from thousands of mapped files.

An address is a number: whoever passes it on keeps the array alive. Inside a kernel,
`carray(pointer(address), length, dtype)` is the array again; its bounds are not checked.
"""

from collections.abc import Callable
from typing import Any, cast

import numba
from numba.core import cgutils, types
from numba.extending import intrinsic
from numpy.typing import NDArray

carray = cast(Callable[..., Any], numba.carray)  # type: ignore[attr-defined]


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
