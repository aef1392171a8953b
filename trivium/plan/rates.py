"""`[optimizer]` and the model's width -> the peak learning rate of each group of parameters; AdEMAMix's warm-ups.

And what a plan says about the optimizers of its stages: rates that are too low, packages that are not installed.
"""

from collections.abc import Iterator, Sequence
from math import log

from trivium.config.optimizer import Optimizer, StageOptimizer
from trivium.engine.packaged import unknown_package
from trivium.errors import Problem

GROUPS = ("matrix", "embedding", "unembedding", "rest")
MAIN_GROUP = "matrix"  # most parameters are in it: its learning rate is the one that is shown
LOW_MUON_LR = 2e-3  # Muon's updates have a norm of their own: 0.02 is usual
SCALED = ("embedding", "unembedding")
SCALED_FROM = 768  # the width at which rates are as they were given


def peak_lr(optimizer: Optimizer, width: int | None) -> dict[str, float]:
    """Rates by group; a rate that is scaled by a width that is not known yet is absent."""
    lr = optimizer.lr
    own: dict[str, float | None] = {group: getattr(lr, group) for group in GROUPS}
    rest = 0.0 if lr.rest is None else lr.rest  # absent only where every group has its own
    rates = {group: rest if rate is None else rate for group, rate in own.items()}
    if optimizer.lr_scaling is None:
        return rates
    if width is None:
        return {group: rate for group, rate in rates.items() if group not in SCALED}
    scale = (width / SCALED_FROM) ** -0.5
    return {group: rate * scale if group in SCALED else rate for group, rate in rates.items()}


def slow_rates(optimizer: Optimizer, updates: int | None) -> tuple[float, float]:
    """AdEMAMix's alpha and beta3 at its nth update, from 1 on, or with warm-ups that are over; 0 for other optimizers.

    As its authors have them: alpha rises evenly, and of beta3, which starts as beta1, the half-life does.
    """
    if optimizer.name != "ademamix":
        return 0.0, 0.0
    alpha, beta3 = optimizer.alpha, optimizer.beta3
    if updates is not None and updates < (optimizer.alpha_warmup or 0):
        alpha *= updates / (optimizer.alpha_warmup or 1)
    if updates is not None and updates < (optimizer.beta3_warmup or 0):
        part = updates / (optimizer.beta3_warmup or 1)
        first, last = _half_life(optimizer.betas[0]), _half_life(beta3)
        beta3 = 0.5 ** (1 / ((1 - part) * first + part * last + 1))
    return alpha, beta3


def _half_life(beta: float) -> float:
    """Updates after which a gradient counts half, less one."""
    return log(0.5) / log(beta + 1e-8) - 1


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
