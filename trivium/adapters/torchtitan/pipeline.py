"""Micro-batches -> one turn of a pipeline's schedule, by torch 2.13's methods or the newer ones.

A schedule keeps buffers of the shapes that it saw first: `forget_shapes` lets it look again where a stage has others.
"""

import inspect
from typing import Any

import torch
from torch import Tensor

Pass = tuple[Tensor, Tensor, dict[str, Any]]  # tokens, targets, and what else the model is given
SHAPES = ("_stage_forward_initialized", "_stage_backward_initialized")  # of one part of the model on each rank
SHAPES_OF_PARTS = ("_stages_forward_initialized", "_stages_backward_initialized")  # of several


def forget_shapes(schedule: Any) -> None:
    """Make buffers again at the next step; all ranks must do so before the same one."""
    for flag in (*SHAPES, *SHAPES_OF_PARTS):
        if hasattr(schedule, flag):
            setattr(schedule, flag, False)


def run(
    schedule: Any, passes: list[Pass], has_first: bool, has_last: bool, learns: bool, **loss_options: Any
) -> Tensor | None:
    """Pass micro-batches forward, and where the model learns backward; gives the summed loss where its last part is."""
    losses: list[Tensor] = []
    given: dict[str, Any] = {
        "arg_mbs": [(inputs,) for inputs, _, _ in passes] if has_first else None,
        "kwarg_mbs": [options for _, _, options in passes],
        "target_mbs": [labels for _, labels, _ in passes] if has_last else None,
        "losses": losses if has_last else None,
        "return_outputs": False,
        "loss_kwargs": loss_options,
    }
    backward = schedule._has_backward
    schedule._has_backward = learns
    try:
        if "arg_mbs" in inspect.signature(schedule.step).parameters:
            schedule.step(**given)
        else:
            for stage in getattr(schedule, "_stages", None) or [schedule._stage]:
                stage.has_backward = learns
                stage.clear_runtime_states()
            schedule._step_microbatches(**given)
    finally:
        schedule._has_backward = backward
    return torch.stack(losses).sum() if has_last else None
