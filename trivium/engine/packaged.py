"""`optimizer.name = "PACKAGE:NAME"` -> what an installed package registered under that name.

A package registers an optimizer as an entry point of the group `trivium.optimizers`:

    [project.entry-points."trivium.optimizers"]
    soap = "their_package.optim:Soap"

Only what is installed is found: the working folder, which may hold a file of any name, is left out both where packages
are looked for and while the module is imported.
"""

import site
import sysconfig
from collections.abc import Callable, Iterator
from functools import cache
from importlib.metadata import EntryPoint, distributions
from typing import Any

from trivium.engine.installed import without_working_folder
from trivium.errors import ConfigError, Problem

GROUP = "trivium.optimizers"


def is_packaged(name: str) -> bool:
    """Whether a name is a package's: `their-package:soap`."""
    return ":" in name


@cache
def packaged(name: str) -> Callable[..., Any]:
    """The class or function of this name; ConfigError where no installed package has it, or it cannot be imported."""
    found = dict(_installed())
    problem = unknown_package(name)
    if problem is not None:
        raise ConfigError([Problem("optimizer.name", problem)])
    try:
        with without_working_folder():
            made = found[name].load()
    except Exception as error:  # whatever their module does
        what = f'"{name}" cannot be imported from {found[name].value}: {error}. Repair the package.'
        raise ConfigError([Problem("optimizer.name", what)]) from error
    if not callable(made):
        what = f'"{name}" is a {type(made).__name__}, not a class or a function that makes an optimizer.'
        raise ConfigError([Problem("optimizer.name", what)])
    return made  # type: ignore[no-any-return]


def unknown_package(name: str) -> str | None:
    """Why there is no such optimizer; None where a package has it, or it is built in. Nothing is imported."""
    if not is_packaged(name):
        return None
    known = sorted(each for each, _ in _installed())
    if name in known:
        return None
    have = (
        f"Installed are {', '.join(known)}." if known else "No installed package has one: install it, or write adamw."
    )
    return f'is "{name}", which no installed package registers as an entry point of "{GROUP}". {have}'


def _installed() -> Iterator[tuple[str, EntryPoint]]:
    """Entry points of the packages in Python's own folders, by name."""
    for distribution in distributions(path=_folders()):
        for entry in distribution.entry_points.select(group=GROUP):
            yield f"{distribution.metadata['Name']}:{entry.name}", entry


def _folders() -> list[str]:
    """Where packages are installed."""
    folders = [sysconfig.get_path(kind) for kind in ("purelib", "platlib")]
    if site.ENABLE_USER_SITE:
        folders.append(site.getusersitepackages())
    return list(dict.fromkeys(folders))
