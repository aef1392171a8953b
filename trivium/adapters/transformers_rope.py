"""A stage's rotary positions -> a model of transformers that is being trained, whoever made it."""

import torch

from trivium.errors import PlanError, Problem
from trivium.model.foreign import rope_parameters
from trivium.model.spec import RopeSpec
from trivium.plan.plan import ReadablePlan


@torch.no_grad()
def set_rope(model: torch.nn.Module, rope: RopeSpec, where: str) -> None:
    """From now on these rotary positions: what computes them is filled again from the model's changed config."""
    config = getattr(model, "config", None)
    before = getattr(config, "rope_parameters", None)
    rotary = [module for module in model.modules() if "Rotary" in type(module).__name__]
    if not isinstance(before, dict) or not rotary or rope.dropped:
        what = f"cannot be set on {type(model).__name__}, which has no rope_parameters for all of its layers."
        raise PlanError([Problem(where, f"{what} Take it out.")])
    assert config is not None
    config.rope_parameters = rope_parameters(before, rope)
    for module in rotary:
        made = type(module)(config)
        for key, value in vars(made).items():
            if key.startswith("rope_type") or key.endswith("attention_scaling"):
                setattr(module, key, value)
        for key, buffer in module.named_buffers(recurse=False):
            buffer.copy_(made.get_buffer(key))


class RopeOfStages:
    """Sets the rotary positions of each stage that is entered, in runs whose stages differ in them."""

    def __init__(self, plan: ReadablePlan) -> None:
        self._plan = plan
        self._changes = len({stage.rope for stage in plan.stages}) > 1
        self._stage = -1

    def enter(self, model: torch.nn.Module, step: int) -> None:
        """Before a step; does something at the first step of a launch or a stage alone."""
        stage = self._plan.stage_at(step)
        if self._changes and stage.index != self._stage and stage.rope is not None:
            set_rope(model, stage.rope, f"stages[{stage.index}].rope")
        self._stage = stage.index
