"""Functions of torch's and of the engine's that measuring replaces for a while."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

ENGINE, MEASURE = "trivium.engine.torch.", "trivium.engine.torch.measure"


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Inside, an attribute is another."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextmanager
def replaced_in_engine(function: Callable[..., Any], value: Callable[..., Any]) -> Iterator[None]:
    """Inside, a function is another in every module of the engine that has imported it."""
    with ExitStack() as stack:
        names = [name for name in sys.modules if name.startswith(ENGINE) and not name.startswith(MEASURE)]
        for module in map(sys.modules.__getitem__, names):
            for name in [name for name, found in vars(module).items() if found is function]:
                stack.enter_context(replaced(module, name, value))
        yield
