"""A plan as JSON, and the lines that it has for stages with settings of their own."""

from tests.support.plans import plan_of
from trivium.plan.export import objective_lines, stage_json


def test_a_stages_own_engine_settings_have_a_line() -> None:
    plan = plan_of({"steps": 1}, {"steps": 1, "engine": {"recompute": "selective", "micro_batch_size": 2}})
    stages = [stage_json(plan, stage) for stage in plan.stages]
    assert [stage["engine"] for stage in stages] == [{}, {"recompute": "selective", "micro_batch_size": 2}]
    assert objective_lines(stages) == ["stage-1: engine.recompute selective, engine.micro_batch_size 2"]


def test_weights_and_masks_of_the_loss_have_a_line() -> None:
    own = {"loss_weight": {"code": 0.5, "web": 2.0}, "goldfish": {"k": 50, "h": 13}}
    plan = plan_of({"steps": 1}, {"steps": 1, "mixture": {"web": 0.5, "code": 0.5}, **own})
    stages = [stage_json(plan, stage) for stage in plan.stages]
    assert [(stage["loss_weight"], stage["goldfish"]) for stage in stages] == [(None, None), tuple(own.values())]
    weights = "loss weights code 0.5, web 2, others 1"
    assert objective_lines(stages) == [
        f"stage-1: {weights}, goldfish drops about 1 in 50 tokens from the loss, by the 13 before it"
    ]
