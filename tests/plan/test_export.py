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


def test_the_line_of_a_stage_has_every_key_of_its_scaling_that_is_not_the_usual_one() -> None:
    yarn = {"scaling": "yarn", "factor": 4.0, "beta_fast": 16.0, "beta_slow": 2.0, "attention_factor": 1.3}
    sliding = {"scaling": "llama3", "factor": 2.0, "high_freq_factor": 8.0}
    model = {"size": "tiny", "vocab": 256, "window": 8, "layers_pattern": "SL"}
    stages = {"steps": 5}, {"steps": 5, "seq_len": 64, "rope": {**yarn, "sliding": sliding}}
    plan = plan_of(*stages, model=model)
    full = "theta 10,000, yarn by 4 of 16, attention_factor 1.3, beta_fast 16, beta_slow 2"
    assert objective_lines([stage_json(plan, stage) for stage in plan.stages]) == [
        f"stage-1: rope {full}, sliding layers theta 10,000, llama3 by 2 of 16, high_freq_factor 8"
    ]
