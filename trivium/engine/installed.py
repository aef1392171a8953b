"""`"package.module:function"` in a config -> the function, as an installed package has it: a model's, or a loss.

Only installed code runs. The file of every module on the way is looked up before it is imported: an installed package
lists it, or it is below the folder of one that is installed in place (`pip install -e`). The working folder is left out
while modules are looked for, and what is found there by another way is refused.
"""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.metadata import Distribution, distributions
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

from trivium.engine.own import Installed
from trivium.errors import ConfigError, Problem


def installed(path: str, key: str) -> Installed:
    """The function under a path; ConfigError that names the key where no installed package has it."""
    try:
        return _found(path)
    except LookupError as reason:
        raise ConfigError([Problem(key, f'is "{path}", but {reason.args[0]}')]) from reason.__cause__


@cache
def _found(path: str) -> Installed:
    """The function, imported once; LookupError with the reason in words."""
    module, _, name = path.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), *name.split("."))):
        raise LookupError('that is not the path of a function. Write "package.module:function".')
    with without_working_folder():
        _refuse_foreign(module)
        try:
            value = import_module(module)
        except Exception as error:  # whatever their module does
            what = f"{module} cannot be imported: {type(error).__name__}: {error}"
            raise LookupError(f"{what}. Repair the package.") from error
    for part in name.split("."):
        if not hasattr(value, part):
            raise LookupError(f"{module} has no {name}. Name a function or a class of it.")
        value = getattr(value, part)
    if not callable(value):
        raise LookupError(f"that is a {type(value).__name__}. Name a function or a class.")
    return Installed(path, value)


def _refuse_foreign(module: str) -> None:
    """LookupError where a module, or one above it, is not an installed package's; nothing of it is imported then."""
    parts = module.split(".")
    for count in range(1, len(parts) + 1):
        name = ".".join(parts[:count])
        try:
            spec = find_spec(name)  # imports the packages above it, which were looked at before
        except Exception as error:
            raise LookupError(f"{name} cannot be imported: {type(error).__name__}: {error}.") from error
        if spec is None and count > 1:
            raise LookupError(f"{name} is not in the package {parts[0]}. Name a module of it.")
        if spec is None:
            here = next((each for each in (Path(f"{name}.py"), Path(name)) if each.exists()), None)
            aside = f" ({here} in the working folder is not imported: pip install its package.)" if here else ""
            raise LookupError(f"{name} is not installed. Install the package that has it.{aside}")
        if spec.origin is not None and not (spec.has_location and owner_of(Path(spec.origin))):  # none: a namespace
            what = f"{name} ({spec.origin}) is not a file of an installed package"
            raise LookupError(f"{what}. No other code is run: pip install the package that has it.")


def owner_of(file: Path) -> str | None:
    """The installed package that a file belongs to; None where there is none."""
    file = file.resolve()
    for distribution in distributions():
        in_place = _in_place(distribution)
        if (in_place is not None and file.is_relative_to(in_place)) or _lists(distribution, file):
            return distribution.metadata["Name"]
    return None


def _lists(distribution: Distribution, file: Path) -> bool:
    """Whether a package's list of files has this one."""
    root = Path(str(distribution.locate_file(""))).resolve()
    if not file.is_relative_to(root):
        return False
    name, record = file.relative_to(root).as_posix(), distribution.read_text("RECORD")
    if record is not None:
        return f"\n{name}," in f"\n{record}"
    return any(str(each) == name for each in distribution.files or ())


def _in_place(distribution: Distribution) -> Path | None:
    """The folder of a package that is installed in place."""
    try:
        source = json.loads(distribution.read_text("direct_url.json") or "{}")
        url = urlsplit(source.get("url", ""))
        editable = source.get("dir_info", {}).get("editable", False)
    except (ValueError, AttributeError):
        return None
    return Path(unquote(url.path)).resolve() if editable is True and url.scheme == "file" else None


@contextmanager
def without_working_folder() -> Iterator[None]:
    """Inside, a module is not looked for in the folder that the process was started in.

    Python puts that folder first; a package that is installed in place from there has an entry of its own further on.
    """
    kept = list(sys.path)
    here = os.getcwd()
    first = [path for path in kept[:1] if path and os.path.abspath(path) != here]
    sys.path[:] = [*first, *filter(None, kept[1:])]
    try:
        yield
    finally:
        sys.path[:] = kept
