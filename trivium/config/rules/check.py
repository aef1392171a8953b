"""Rules across keys; gives every problem, not the first.

Each rule is a generator of findings over a `View` of the config. A value that did not validate is absent
from the config but stays in the raw tables, so that no rule calls it missing.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from trivium.config.rules import average, batches, evaluate, model, objective, optimizer, rates, sources, stages, until
from trivium.config.rules.view import Finding, View
from trivium.config.schema import Config
from trivium.errors import Problem

RULES: tuple[Callable[[View], Iterator[Finding]], ...] = (
    model.run_rules,
    model.model_rules,
    model.tokenizer_rules,
    optimizer.optimizer_rules,
    rates.schedule_rules,
    model.engine_rules,
    model.cadence_rules,
    model.guard_rules,
    sources.source_rules,
    evaluate.evaluate_rules,
    stages.name_rules,
    stages.budget_rules,
    stages.mixture_rules,
    batches.batch_rules,
    stages.fade_rules,
    rates.lr_rules,
    stages.rope_rules,
    objective.objective_rules,
    average.average_rules,
    stages.anneal_rules,
    until.until_rules,
    stages.use_rules,
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
