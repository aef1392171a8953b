"""torchtitan as an engine: its trainer, models and parallelism, with the stages of our config.

    from torchtitan.models.llama3.config_registry import llama3_8b
    from trivium.adapters.torchtitan import staged

    def my_run():  # for torchtitan's own --module and --config
        return staged(llama3_8b(), "run.toml")

Or without a line of Python, with torchtitan's own options after the config:

    torchrun --nproc_per_node 8 -m trivium.adapters.torchtitan run.toml --module llama3 --config llama3_8b

Names are imported when they are first used: what is asked of a plan here needs no torchtitan.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trivium.adapters.torchtitan.trainer import StagedTrainer as StagedTrainer
    from trivium.adapters.torchtitan.trainer import staged as staged

__all__ = ["StagedTrainer", "staged"]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from trivium.adapters.torchtitan import versions

    versions.prepare()
    from trivium.adapters.torchtitan import trainer

    return getattr(trainer, name)
