"""Functions of the user's own -> names that are the same in every launch, and hashes that change when they do.

A hash is of a function's source without its comments, of the values in its closure, and of the functions, classes and
constants that it names in the user's own modules. Of libraries, names and closures count, not their source: an optax
schedule is known by its numbers, whichever version made it. The package of a function that the config names by its path
is the user's own, wherever it is installed. What a loss of one's own returns is checked here too.
"""

import ast
import inspect
import sysconfig
import textwrap
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any

from trivium.errors import UsageError
from trivium.seeds import derive_key

LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})
PLAIN = (int, float, complex, str, bytes, bool, type(None))


@dataclass(frozen=True, slots=True)
class Installed:
    """A function of an installed package, by the path that a config names it with; called as it is."""

    path: str  # such as my_package.models:make
    function: Callable[..., Any]

    def __call__(self, *given: Any) -> Any:
        return self.function(*given)


def name_of(function: Any) -> str:
    """`WithSgd.optimizer.make`: the same whichever module it is run from; or the path in a config."""
    if isinstance(function, Installed):
        return function.path
    if isinstance(function, partial):
        return name_of(function.func)
    name: str = getattr(function, "__qualname__", type(function).__qualname__)
    return name.replace(".<locals>", "")


def loss_name(function: Callable[..., Any]) -> str:
    """What messages call a loss of one's own: the path in the config, or the Trainer's method."""
    return f"the loss {function.path}" if isinstance(function, Installed) else "Trainer.loss()"


def losses_and_figures(found: Any, tokens: int, function: Callable[..., Any]) -> tuple[Any, dict[str, Any]]:
    """What a loss of one's own returned, checked: a loss for each token, and further figures by token."""
    losses, figures = found if isinstance(found, tuple) and len(found) == 2 else (found, {})
    for name, array in {"a loss": losses, **figures}.items():
        shape = getattr(array, "shape", type(array).__name__)
        if shape != (tokens,):
            shown = shape if isinstance(shape, str) else tuple(shape)
            what = f"the function of {loss_name(function)} returned {shown} as {name}"
            raise UsageError(f"{what}, not one for each token.")
    return losses, dict(figures)


def source_hash(value: Any) -> str:
    """A hash of what a function or a class does, or of values that hold some."""
    package = value.path.partition(":")[0].partition(".")[0] if isinstance(value, Installed) else None
    return f"{derive_key(0, 'source', *_Walk(package).parts(value)):016x}"


@dataclass(frozen=True, slots=True)
class _Walk:
    """A walk through what a value is made of; `package` is the user's own, though it may be among the libraries."""

    package: str | None
    seen: set[int] = field(default_factory=set)

    def parts(self, value: Any) -> Iterator[str]:
        """Texts that decide what a value does, in an order that does not change."""
        value = inspect.unwrap(value) if callable(value) else value
        if isinstance(value, PLAIN):
            yield repr(value)
            return
        if id(value) in self.seen:
            return
        self.seen.add(id(value))
        for text_or_value in self._inside(value):
            if isinstance(text_or_value, str):
                yield text_or_value
            else:
                yield from self.parts(text_or_value)

    def _inside(self, value: Any) -> Iterator[Any]:
        """What a value is made of; of what is not known here, its kind."""
        yield name_of(value)
        if isinstance(value, tuple | list):
            yield from value
        elif isinstance(value, dict):
            yield from (part for pair in value.items() for part in pair)
        elif isinstance(value, partial):
            yield from (value.func, value.args, value.keywords)
        elif isinstance(value, MethodType):
            yield value.__func__
        elif isinstance(value, FunctionType):
            yield from self._of_function(value)
        elif isinstance(value, type):
            yield from self._of_class(value)
        elif is_dataclass(value):
            yield from (getattr(value, each.name) for each in fields(value))
        elif callable(getattr(value, "tolist", None)):  # an array of any framework
            yield repr(value.tolist())
        elif callable(value) and hasattr(value, "__dict__"):
            yield from (type(value), vars(value))

    def _of_function(self, function: FunctionType) -> Iterator[Any]:
        for cell in function.__closure__ or ():
            with suppress(ValueError):  # a name that has no value yet
                yield cell.cell_contents
        yield from (function.__defaults__, function.__kwdefaults__)
        if not self._is_library(function.__code__.co_filename, function) and not _is_of("trivium", function):
            yield self._source(function) or repr((function.__code__.co_code, function.__code__.co_names))
            yield from _named_in(function.__code__, function.__globals__)

    def _of_class(self, kind: type) -> Iterator[Any]:
        source = None if _is_of("trivium", kind) else self._source(kind)
        if source is not None:
            yield source
            yield from kind.__bases__
            for part in vars(kind).values():
                function = getattr(part, "fget", None) or getattr(part, "__func__", part)
                if isinstance(function, FunctionType):
                    yield from _named_in(function.__code__, function.__globals__)

    def _source(self, value: Callable[..., Any]) -> str | None:
        """Without comments; None where it is a library's, or not to be found."""
        try:
            if self._is_library(inspect.getsourcefile(value) or "", value):
                return None
            source = textwrap.dedent(inspect.getsource(value))
        except (OSError, TypeError):
            return None
        try:
            return ast.unparse(ast.parse(source))
        except SyntaxError:  # a lambda in the middle of a call
            return source

    def _is_library(self, file: str, value: Any) -> bool:
        return file.startswith(LIBRARIES) and (self.package is None or not _is_of(self.package, value))


def _named_in(code: CodeType, known: dict[str, Any]) -> Iterator[Any]:
    """Functions, classes and constants of a module that its code names."""
    for name in sorted({*code.co_names}):
        if isinstance(known.get(name), (*PLAIN, FunctionType, type)) and name in known:
            yield known[name]
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _named_in(constant, known)


def _is_of(package: str, value: Any) -> bool:
    return str(getattr(value, "__module__", "")).partition(".")[0] == package
