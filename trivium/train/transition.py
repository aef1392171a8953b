"""Two stages -> what differs between them, for the log of a transition."""

from typing import Any

from pydantic import BaseModel

from trivium.plan.stage import PlannedStage

STAGE_CHANGES = ("seq_len", "batch_size", "packing", "document_mask", "rope", "kl", "z_loss", "loss_on")


def stage_changes(before: PlannedStage, stage: PlannedStage) -> dict[str, tuple[Any, Any]]:
    """What differs between two stages: before and after, by key."""
    changes = {}
    for key in STAGE_CHANGES:
        old, new = (getattr(each.config, key) for each in (before, stage))
        if key == "batch_size":
            old, new = before.batch_size, stage.batch_size
        if old != new:
            changes[key] = (_plain(old), _plain(new))
    if before.shares != stage.shares:
        changes["mixture"] = (_shown_shares(before), _shown_shares(stage))
    if before.seed != stage.seed:
        changes["seed"] = (before.seed, stage.seed)
    return changes


def _shown_shares(stage: PlannedStage) -> dict[str, float]:
    return {name: round(float(share), 6) for name, share in (stage.shares or {}).items()}


def _plain(value: Any) -> Any:
    return value.model_dump(exclude_none=True) if isinstance(value, BaseModel) else value
