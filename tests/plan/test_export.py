"""A plan as JSON, and the lines that it has for stages with settings of their own."""

from tests.support.plans import plan_of
from trivium.plan.export import objective_lines, stage_json


def test_a_stages_own_engine_settings_have_a_line() -> None:
    plan = plan_of({"steps": 1}, {"steps": 1, "engine": {"recompute": "selective", "micro_batch_size": 2}})
    stages = [stage_json(plan, stage) for stage in plan.stages]
    assert [stage["engine"] for stage in stages] == [{}, {"recompute": "selective", "micro_batch_size": 2}]
    assert objective_lines(stages) == ["stage-1: engine.recompute selective, engine.micro_batch_size 2"]
