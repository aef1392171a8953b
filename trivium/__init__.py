"""trivium trains language models in stages: one TOML file says what a model reads, and when.

    config = trivium.load_config("run.toml", overrides=["stages.0.steps=10"])
    plan = trivium.make_plan(config)  # or of a path
    with trivium.Loader(plan, rank=0, world_size=1) as loader:
        batch = loader.batch(41_337)
    trivium.Trainer("run.toml").run()
    trivium.report("runs/small")

Names are imported when they are first used, so that `import trivium` costs nothing.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from trivium.adapters.steps import Steps as Steps
    from trivium.config.load import load_config as load_config
    from trivium.config.schema import Config as Config
    from trivium.engine.base import Engine as Engine
    from trivium.engine.base import EvalStats as EvalStats
    from trivium.engine.base import LossBatch as LossBatch
    from trivium.engine.base import OptimizerSettings as OptimizerSettings
    from trivium.engine.base import StageSettings as StageSettings
    from trivium.engine.base import StepSettings as StepSettings
    from trivium.engine.base import StepStats as StepStats
    from trivium.errors import ConfigError as ConfigError
    from trivium.errors import GuardError as GuardError
    from trivium.errors import PlanError as PlanError
    from trivium.errors import Problem as Problem
    from trivium.errors import RankError as RankError
    from trivium.errors import ResumeError as ResumeError
    from trivium.errors import SaveError as SaveError
    from trivium.errors import SourceError as SourceError
    from trivium.errors import StoppedError as StoppedError
    from trivium.errors import TriviumError as TriviumError
    from trivium.errors import UsageError as UsageError
    from trivium.loader.loader import Loader as Loader
    from trivium.plan.make import make_plan as make_plan
    from trivium.plan.plan import CompletePlan as CompletePlan
    from trivium.plan.plan import Plan as Plan
    from trivium.plan.stage import CompleteStage as CompleteStage
    from trivium.plan.stage import PlannedStage as PlannedStage
    from trivium.report.notebook import report as report
    from trivium.rows.batch import Batch as Batch
    from trivium.train.session import Session as Session
    from trivium.train.trainer import Trainer as Trainer

_HOMES = {
    "trivium.adapters.steps": ("Steps",),
    "trivium.config.load": ("load_config",),
    "trivium.config.schema": ("Config",),
    "trivium.engine.base": (
        "Engine",
        "EvalStats",
        "LossBatch",
        "OptimizerSettings",
        "StageSettings",
        "StepSettings",
        "StepStats",
    ),
    "trivium.errors": (
        "ConfigError",
        "GuardError",
        "PlanError",
        "Problem",
        "RankError",
        "ResumeError",
        "SaveError",
        "SourceError",
        "StoppedError",
        "TriviumError",
        "UsageError",
    ),
    "trivium.loader.loader": ("Loader",),
    "trivium.plan.make": ("make_plan",),
    "trivium.plan.plan": ("CompletePlan", "Plan"),
    "trivium.plan.stage": ("CompleteStage", "PlannedStage"),
    "trivium.rows.batch": ("Batch",),
    "trivium.train.session": ("Session",),
    "trivium.train.trainer": ("Trainer",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
__all__ = ["__version__", *sorted((*_HOME_OF, "report"))]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return version("trivium")
    if name == "report":
        return import_module("trivium.report")  # a room that can be called
    if name not in _HOME_OF:
        raise AttributeError(f"module 'trivium' has no attribute {name!r}")
    return getattr(import_module(_HOME_OF[name]), name)
