"""trivium trains language models in stages: one TOML file says what a model reads, and when.

    config = trivium.load_config("run.toml", overrides=["stages.0.steps=10"])
    plan = trivium.make_plan(config)
    loader = trivium.Loader(plan, rank=0, world_size=1)
    batch = loader.batch(41_337)
    trivium.Trainer("run.toml").run()

Names are imported when they are first used, so that `import trivium` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trivium.config.load import load_config as load_config
    from trivium.config.schema import Config as Config
    from trivium.loader.loader import Loader as Loader
    from trivium.plan.make import make_plan as make_plan
    from trivium.plan.plan import Plan as Plan
    from trivium.rows.batch import Batch as Batch
    from trivium.train.trainer import Trainer as Trainer

_HOMES = {
    "Batch": "trivium.rows.batch",
    "Config": "trivium.config.schema",
    "Loader": "trivium.loader.loader",
    "Trainer": "trivium.train.trainer",
    "Plan": "trivium.plan.plan",
    "load_config": "trivium.config.load",
    "make_plan": "trivium.plan.make",
}
__all__ = ["Batch", "Config", "Loader", "Plan", "Trainer", "load_config", "make_plan"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'trivium' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
