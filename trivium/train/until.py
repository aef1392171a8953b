"""Stages that end on a figure: an evaluation -> a decision of all ranks, on the disk -> the plan from there on.

The decision is rank 0's, by the figures that it has just reported. It is in `decisions.jsonl` before any rank takes
another step; then every rank makes the same plan of config and decisions, and goes on by it as a resume would. What
was decided already, by a launch whose steps were lost or in a run that this one is to repeat, is not decided again.
"""

from typing import TYPE_CHECKING

from trivium.config.rules.until import asked_scores
from trivium.config.stages import EVERYTHING, Until
from trivium.errors import PlanError, ResumeError
from trivium.plan.budget import measured_every
from trivium.plan.make import decided_plan
from trivium.plan.plan import CompletePlan
from trivium.plan.stage import CompleteStage
from trivium.run.decisions import (
    Decision,
    StageEnded,
    as_plain,
    from_plain,
    in_force,
    keep_decisions,
    known_at,
    next_end,
)
from trivium.run.folder import RunFolder

if TYPE_CHECKING:
    from trivium.train.session import Session
    from trivium.train.trainer import Trainer


def measures_at(trainer: "Trainer", step: int) -> bool:
    """Whether the stage that the engine is in may end after this many steps: on a figure that is measured there.

    What was decided already holds at its step, also where figures are measured at others by now.
    """
    stage = trainer.stage
    if not (stage.may_end_early and stage.start < step < stage.end):
        return False
    every = measured_every(trainer.config.evaluate, stage.config)
    decided = decided_end(trainer, step)
    return (every is not None and step % every == 0) or (decided is not None and decided.step == step)


def decided_end(trainer: "Trainer", step: int) -> StageEnded | None:
    """The end of the engine's stage that was decided already, at this step or a later one."""
    coming = next_end(trainer.decisions, step - 1)
    return coming if coming is not None and is_end_of(coming, trainer.stage) else None


def heed_figure(trainer: "Trainer", session: "Session") -> None:
    """After an evaluation: end the stage here where its figure is reached, or where that was decided before."""
    session.measured_at = trainer.step
    decided = decided_end(trainer, trainer.step)
    if decided is not None:
        if decided.step == trainer.step:
            end_stage(trainer, session, trainer.decisions)
        return
    found = decision_on(trainer, session, trainer.stage.config.until or Until())
    shared = from_plain(session.ranks.share(as_plain([] if found is None else [found])), "rank 0")
    if shared:
        end_stage(trainer, session, (*trainer.decisions, *shared))


def is_end_of(ended: StageEnded, stage: CompleteStage) -> bool:
    """Whether it was decided on this stage that it ends early."""
    return stage.start < ended.step < stage.end and stage.config.ends_by(ended.until)


def decision_on(trainer: "Trainer", session: "Session", until: Until) -> StageEnded | None:
    """The decision that the stage ends, if the figure that was measured at this step is reached."""
    figure = measured(trainer, session, until)
    if figure is None or not until.is_met(figure):
        return None
    return StageEnded(step=trainer.step, until=until.rule, figure=figure)


def measured(trainer: "Trainer", session: "Session", until: Until) -> float | None:
    """The figure at this step; None where nothing was measured. Of weights and their average, what is told first."""
    if until.score is not None:
        scored = session.last_scores
        if scored is None or scored.step != trainer.step:
            return None
        return scored.scores[asked_scores(trainer.config, until.score)[0]]["score"]
    last = session.last_evaluation
    if last is None or last.step != trainer.step:
        return None
    if until.validation == EVERYTHING and EVERYTHING not in trainer.config.sources:
        return last.loss
    return last.loss_by_source.get(until.validation or "")


def end_stage(trainer: "Trainer", session: "Session", decisions: tuple[Decision, ...]) -> None:
    """Go on by the plan in which the stage ends here; where no such plan can be, the stage goes on, which is said."""
    try:
        plan = decided_plan(trainer.plan, known_at(decisions, trainer.step))
    except PlanError as error:
        reasons = "; ".join(map(str, error.problems))
        session.say(f"the figure of stage {trainer.stage.name} is reached, and it cannot end here yet: {reasons}")
        return
    with session.ranks.as_one():
        if session.ranks.is_main:
            keep_decisions(session.folder, decisions)
    trainer.decisions = decisions
    trainer.follow(plan)


def refuse_other_ends(plan: CompletePlan, decisions: tuple[Decision, ...], step: int, folder: RunFolder) -> None:
    """ResumeError where a stage's end was decided by a rule that the config no longer has.

    A stage that is written with the length that it came to has the same past.
    """
    ahead = next_end(decisions, step)
    ends = [each for each in in_force(decisions) if isinstance(each, StageEnded) and each.step <= step]
    for ended in (*ends, *([] if ahead is None else [ahead])):
        if any(stage.end == ended.step for stage in plan.stages):
            continue
        stage = plan.stage_at(min(ended.step, plan.total_steps) - 1)
        if is_end_of(ended, stage):
            continue
        has = "absent" if stage.config.until is None else stage.config.until.rule
        steps = ended.step - stage.start
        what = f"stages[{stage.index}].until was {ended.until}, on which the stage ended at step {ended.step:,}"
        fix = f"Put it back, write steps = {steps} instead of it, or fork an earlier checkpoint"
        raise ResumeError(
            f"cannot resume at step {step:,}: {what}, and is now {has}. "
            f"{fix}: trivium fork {folder.path} --at STEP new.toml"
        )
