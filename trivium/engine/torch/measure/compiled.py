"""What torch's compiler has given up on."""

import sys

LIMIT = "Dynamo recompile limit exceeded"  # as torch counts it, whatever its log shows


def limits_hit() -> int:
    """How often this process has wanted more compiled shapes of a function than torch allows."""
    if "torch._dynamo" not in sys.modules:
        return 0
    from torch._dynamo.utils import counters

    return sum(count for reason, count in counters["unimplemented"].items() if reason.startswith(LIMIT))


def limit_notice() -> str:
    """What a user should know once the limit is used up."""
    from torch._dynamo import config

    limit: int = config.recompile_limit
    what = f"torch's limit of {limit:,} compiled shapes is used up: rows of other shapes run uncompiled, and slower"
    return f"{what}, to the end of the stage. A micro_batch_size that divides the rows of every rank gives one shape."
