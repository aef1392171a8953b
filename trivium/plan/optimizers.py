"""What a plan says about the optimizers of its stages before the first step: rates that are too low, and packages."""

from collections.abc import Iterator, Sequence

from trivium.config.optimizer import Optimizer, StageOptimizer
from trivium.engine.packaged import unknown_package
from trivium.errors import Problem

LOW_MUON_LR = 2e-3  # Muon's updates have a norm of their own: 0.02 is usual


def low_rates(run: Optimizer, optimizers: Sequence[StageOptimizer]) -> Iterator[Problem]:
    """A rate made for AdamW moves Muon's matrices hardly at all."""
    for place, optimizer in _begun(run, optimizers):
        lr = optimizer.lr
        if optimizer.name == "muon" and lr.matrix is None and lr.rest is not None and lr.rest < LOW_MUON_LR:
            what = f"is not given, and {lr.rest:g} is low for muon. Write lr = {{ matrix = 0.02, rest = {lr.rest:g} }}."
            yield Problem(f"{place}.lr.matrix", what)


def unknown_packages(run: Optimizer, optimizers: Sequence[StageOptimizer]) -> Iterator[Problem]:
    """An optimizer of a package is one that is installed here."""
    for place, optimizer in _begun(run, optimizers):
        problem = unknown_package(optimizer.name)
        if problem is not None:
            yield Problem(f"{place}.name", problem)


def _begun(run: Optimizer, optimizers: Sequence[StageOptimizer]) -> Iterator[tuple[str, Optimizer]]:
    """Every optimizer with the table that names it."""
    last = run
    yield "optimizer", run
    for number, optimizer in enumerate(optimizers):
        if optimizer.settings.name != last.name:
            yield f"stages[{number}].optimizer", optimizer.settings
        last = optimizer.settings
