"""`compiled`: a function compiled by numba, cached on disk, free of the interpreter's lock.

The decorator keeps the function's type, so that a kernel reads and checks like any other function.
"""

from collections.abc import Callable
from typing import TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., object])


def compiled(function: Function) -> Function:
    """Compile with numba on first use; bounds are not checked, so callers must pass arrays that fit."""
    return cast(Function, numba.njit(cache=True, nogil=True, error_model="numpy")(function))
