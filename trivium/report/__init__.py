"""A run's files -> one page; `trivium.report("runs/small")` shows it in a notebook."""

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trivium.report.notebook import ShownReport


class _Callable(ModuleType):
    """This room, which is also what a notebook calls: a package's attribute is its submodule, once that is imported."""

    def __call__(self, *runs: Any, **settings: Any) -> "ShownReport":
        """The page of one or several runs; `trivium.report.notebook.report` has what it takes."""
        from trivium.report.notebook import report

        return report(*runs, **settings)


sys.modules[__name__].__class__ = _Callable
