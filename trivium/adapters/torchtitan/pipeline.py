"""Micro-batches -> one turn of a pipeline's schedule, by torch 2.13's methods or the newer ones.

A schedule keeps buffers of the shapes that it saw first: `forget_shapes` lets it look again where a stage has others.
"""

import inspect
from typing import Any

from torch import Tensor

SHAPES = ("_stage_forward_initialized", "_stage_backward_initialized")  # of one part of the model on each rank
SHAPES_OF_PARTS = ("_stages_forward_initialized", "_stages_backward_initialized")  # of several


def forget_shapes(schedule: Any) -> None:
    """Make buffers again at the next step; all ranks must do so before the same one."""
    for flag in (*SHAPES, *SHAPES_OF_PARTS):
        if hasattr(schedule, flag):
            setattr(schedule, flag, False)


def run(
    schedule: Any,
    arguments: list[tuple[Tensor, ...]] | None,
    options: list[dict[str, Any]],
    targets: list[Tensor] | None,
    losses: list[Tensor] | None,
    loss_options: dict[str, Any],
    *,
    learns: bool,
) -> None:
    """Pass micro-batches forward, and where the model learns backward; `losses` gets one of each on the last rank."""
    given: dict[str, Any] = {"arg_mbs": arguments, "kwarg_mbs": options, "target_mbs": targets, "losses": losses}
    given |= {"return_outputs": False, "loss_kwargs": loss_options}
    backward = schedule._has_backward
    schedule._has_backward = learns
    try:
        if "arg_mbs" in inspect.signature(schedule.step).parameters:
            schedule.step(**given)
            return
        for stage in getattr(schedule, "_stages", None) or [schedule._stage]:
            stage.has_backward = learns
            stage.clear_runtime_states()
        schedule._step_microbatches(**given)
    finally:
        schedule._has_backward = backward
