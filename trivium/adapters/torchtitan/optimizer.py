"""`[optimizer]` and a plan's rates -> torchtitan's AdamW in our four groups, and the rate of each at every step.

Without `[optimizer]` in the config, torchtitan's own optimizer stays and the plan's schedule multiplies its rates.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn
from torchtitan.components.checkpointer.utils import canonical_fqn
from torchtitan.components.optimizer import LRSchedulersContainer, OptimizersContainer, ParamGroupConfig

from trivium.config.optimizer import Optimizer
from trivium.engine.parameters import ParameterGroup, parameter_group
from trivium.plan.plan import CompletePlan

THEIRS = {"tok_embeddings": "embedding", "lm_head": "unembedding"}  # torchtitan's name of a module -> ours


def group_of(name: str, dimensions: int, settings: Optimizer) -> ParameterGroup:
    """A parameter's group by its name in torchtitan; experts, which are matrices in one block, count as matrices."""
    owner = canonical_fqn(name).split(".")[0]
    ours = f"{THEIRS[owner]}.weight" if owner in THEIRS else canonical_fqn(name)
    return parameter_group(ours, settings.no_decay, min(dimensions, 2))


class PlannedOptimizers(OptimizersContainer):
    """torchtitan's AdamW with one group for each of ours that a part of the model has."""

    @dataclass(kw_only=True, slots=True)
    class Config(OptimizersContainer.Config):
        settings: Optimizer | None = None

        def to_dict(self) -> dict[str, Any]:
            """For torchtitan's logs."""
            return {} if self.settings is None else self.settings.model_dump(mode="json")

    def __init__(self, config: Config, *, model_parts: list[nn.Module]) -> None:
        assert config.settings is not None
        self.settings = config.settings
        super().__init__(config, model_parts=model_parts)

    def _build_param_groups(
        self, model: nn.Module, _: Sequence[ParamGroupConfig], options: dict[str, Any]
    ) -> tuple[dict[str, list[dict[str, Any]]], dict[str, list[str]]]:
        found: dict[ParameterGroup, dict[str, list[Any]]] = {}
        for name, parameter in model.named_parameters():
            kind = group_of(name, parameter.ndim, self.settings)
            group = found.setdefault(kind, {"params": [], "param_names": []})
            group["params"].append(parameter)
            group["param_names"].append(canonical_fqn(name))
        made = [{**group, **options, "lr": 0.0} for group in found.values()]
        return {"AdamW": made}, {"AdamW": [f"{kind.name}, decay {kind.decays}" for kind in found]}


class PlannedRates(LRSchedulersContainer):
    """The rates of every group at every step, and what else of an optimizer a stage may change."""

    @dataclass(kw_only=True, slots=True)
    class Config(LRSchedulersContainer.Config):
        plan: CompletePlan | None = None
        is_ours: bool = False  # whether the optimizer is the config's

        def to_dict(self) -> dict[str, Any]:
            """For torchtitan's logs."""
            return {}

        def build(self, *, optimizers: OptimizersContainer, training_steps: int) -> "PlannedRates":
            """As torchtitan asks for it."""
            assert self.plan is not None
            return PlannedRates(optimizers, self.plan, is_ours=self.is_ours)

    def __init__(self, optimizers: OptimizersContainer, plan: CompletePlan, *, is_ours: bool) -> None:
        self.optimizers, self.plan, self.is_ours = optimizers, plan, is_ours
        self.schedulers: list[Any] = []  # torchtitan's own; none is needed
        self.peaks = [[group["lr"] for group in optimizer.param_groups] for optimizer in optimizers]
        self.taken = 0
        self.set(0)

    def set(self, step: int) -> None:
        """Give every group what the plan has for a step; what a checkpoint brought is overwritten."""
        self.taken = step
        step = min(step, self.plan.total_steps - 1)
        now, settings = self.plan.settings_at(step), self.plan.optimizers[self.plan.stage_at(step).index].settings
        for optimizer, peaks in zip(self.optimizers, self.peaks, strict=True):
            for group, peak in zip(optimizer.param_groups, peaks, strict=True):
                if not self.is_ours:
                    group["lr"] = peak * now.lr_multiplier
                    continue
                kind = group_of(group["param_names"][0], group["params"][0].ndim, settings)
                group |= {"lr": now.lr[kind.name], "betas": tuple(settings.betas), "eps": settings.eps}
                group["weight_decay"] = now.weight_decay if kind.decays else 0.0

    def get_metrics(self) -> dict[str, float]:
        """The rates of this step; one where all groups have the same."""
        rates = {float(group["lr"]) for optimizer in self.optimizers for group in optimizer.param_groups}
        if len(rates) == 1:
            return {"lr": rates.pop()}
        if self.is_ours:
            step = min(self.taken, self.plan.total_steps - 1)
            return {f"lr/{name}": rate for name, rate in self.plan.settings_at(step).lr.items()}
        return {f"lr/{number}": rate for number, rate in enumerate(sorted(rates))}

    def step(self) -> None:
        """After an update: the next step's rates."""
        self.set(self.taken + 1)

    def state_dict(self) -> dict[str, int]:
        """Under torchtitan's own key; the plan has the rest."""
        return {"last_epoch": self.taken}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Stand at a saved step; the rates are the plan's."""
        self.set(int(state_dict["last_epoch"]))
