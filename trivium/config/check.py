"""Rules across keys; gives every problem, not the first.

Each rule is a generator of findings over a `View` of the config. A value that did not validate is absent
from the config but stays in the raw tables, so that no rule calls it missing.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from trivium.config import check_model, check_stages
from trivium.config.schema import Config
from trivium.config.view import Finding, View
from trivium.errors import Problem

RULES: tuple[Callable[[View], Iterator[Finding]], ...] = (
    check_model.run_rules,
    check_model.model_rules,
    check_model.tokenizer_rules,
    check_model.optimizer_rules,
    check_model.schedule_rules,
    check_model.cadence_rules,
    check_model.guard_rules,
    check_model.source_rules,
    check_model.evaluate_rules,
    check_stages.name_rules,
    check_stages.budget_rules,
    check_stages.mixture_rules,
    check_stages.shape_rules,
    check_stages.fade_rules,
    check_stages.lr_rules,
    check_stages.rope_rules,
    check_stages.objective_rules,
    check_stages.anneal_rules,
    check_stages.use_rules,
)


@dataclass(frozen=True, slots=True)
class Findings:
    """What the rules found: what cannot be, and what the user should know."""

    problems: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)


def check(config: Config, raw: Mapping[str, Any], file: str) -> Findings:
    """Every problem and every warning, in the order of the rules."""
    view = View(config, raw, file)
    findings = Findings()
    for rule in RULES:
        for finding in rule(view):
            (findings.warnings if finding.is_warning else findings.problems).append(finding.problem)
    return findings
