"""Plans of small configs, made from tables."""

from typing import Any

from trivium.config.load import validate
from trivium.config.schema import Config
from trivium.plan.make import make_plan
from trivium.plan.plan import Plan


def config_of(stages: list[dict[str, Any]], **tables: Any) -> Config:
    """A config with these stages over three sources that are not on disk; `tables` adds or replaces whole tables."""
    raw: dict[str, Any] = {
        "run": {"name": "test"},
        "model": {"size": "tiny"},
        "sources": {name: {"kind": "tokens", "path": f"nowhere/{name}"} for name in ("web", "code", "math")},
        "defaults": {"mixture": {"web": 1.0}, "seq_len": 16, "batch_size": 4},
        "stages": [{"name": f"stage-{number}", **stage} for number, stage in enumerate(stages)],
        **tables,
    }
    return validate(raw, "run.toml")[0]


def plan_of(*stages: dict[str, Any], **tables: Any) -> Plan:
    """The plan of such a config."""
    return make_plan(config_of(list(stages), **tables))


def multipliers(plan: Plan) -> list[float]:
    """The learning rate's multiplier at every step."""
    assert plan.total_steps is not None
    return [plan.lr_multiplier(step) for step in range(plan.total_steps)]
