"""`[optimizer]` and the model's width -> the peak learning rate of each group of parameters."""

from trivium.config.schema import Optimizer

GROUPS = ("matrix", "embedding", "unembedding", "rest")
MAIN_GROUP = "matrix"  # most parameters are in it: its learning rate is the one that is shown
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
