"""Config + what is on disk -> Plan, or every reason why it cannot be."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from trivium.config.batches import Batches
from trivium.config.load import load_config
from trivium.config.numbers import show_count
from trivium.config.optimizer import StageOptimizer, stage_optimizers
from trivium.config.schema import Config
from trivium.config.stages import BatchSize, Reference, Stage, merged_stages
from trivium.errors import ConfigError, PlanError, Problem, SourceError
from trivium.model.starting import StartingWeights
from trivium.plan.average import average_problems, stage_averages, unfilled_averages
from trivium.plan.budget import (
    Before,
    Following,
    Length,
    asked_length,
    decided,
    endless_ramp,
    epochs_length,
    mixture_of,
    own_sources,
    shares_of,
    steps_for_tokens,
    unmeasured,
    with_parameters_counted,
)
from trivium.plan.epochs import epoch_problems, shared_documents
from trivium.plan.inherit import Inherited, inherited
from trivium.plan.ledger import Ledger
from trivium.plan.lr.curve import Curve, exact
from trivium.plan.lr.lengths import extension_of, lengths_of, needs_length, resolve
from trivium.plan.lr.shapes import Lengths
from trivium.plan.places import without_problems
from trivium.plan.plan import CompletePlan, Plan
from trivium.plan.rates import GROUPS, MAIN_GROUP, low_rates, unknown_packages
from trivium.plan.schedule import StageSpan, learning_rate, momentum
from trivium.plan.settings import unknown_losses
from trivium.plan.shape.depth import dialed
from trivium.plan.shape.model import PlannedModel, plan_model, starting_weights
from trivium.plan.stage import PlannedStage, SourceUse
from trivium.rows.mixture import StageMixture
from trivium.rows.reading import RowSettings
from trivium.run.decisions import Decision, StageEnded
from trivium.sources.locate import Gap
from trivium.sources.open import OpenSource, OpenSources, open_sources
from trivium.sources.provide import provide_tokenizer


def make_plan(
    config: Config | str | Path,
    sources: Mapping[str, OpenSource] | None = None,
    *,
    prepare: bool = False,
    own: Mapping[str, Any] | None = None,
    decisions: Sequence[Decision] = (),
) -> Plan:
    """Resolve every unit; raises PlanError with every problem that what is on disk brings up.

    `config` may be the path of one. `sources` are opened where they are not given. Text that is not tokenised yet, and
    datasets that are not fetched, are gaps of the plan, unless `prepare` is true: then both are done here, which may
    take hours, and so is a tokenizer that is to be fetched or trained. `own` is what a Trainer overrides, for the
    record; `decisions` are those made while the run went on.
    """
    if not isinstance(config, Config):
        config = load_config(config)
    taken = inherited(config) if config.model.depth is None else dialed(config)
    try:
        if prepare:
            provide_tokenizer(taken.config)
        opened = open_sources(taken.config, prepare=prepare) if sources is None else OpenSources(dict(sources), {})
        return make_inherited(taken, opened, own or {}, tuple(decisions))
    except PlanError as error:
        raise PlanError([*([] if taken.gap is None else [taken.gap]), *error.problems]) from None


def make_inherited(
    taken: Inherited, opened: OpenSources, own: Mapping[str, Any], decisions: tuple[Decision, ...]
) -> Plan:
    """The same of a config that has what it takes from its base, and of sources that are open."""
    made = Builder(taken.config, opened.sources, opened.gaps, taken, decisions).plan()
    return replace(made, own=dict(own), decisions=decisions)


def decided_plan(plan: CompletePlan, decisions: Sequence[Decision]) -> CompletePlan:
    """The plan of a run in which other things were decided; PlanError where they cannot be. Opens nothing."""
    return make_inherited(plan.inherited, OpenSources(dict(plan.sources), {}), plan.own, tuple(decisions)).complete()


def stage_configs(config: Config) -> list[Stage]:
    """The stages of a config as they will run, as far as can be known without its sources and base run."""
    return Builder(config, {}, {}, Inherited(config)).stage_configs()


@dataclass(slots=True)
class Builder:
    """Goes through the stages once, in order; collects problems, warnings and gaps."""

    config: Config
    sources: Mapping[str, OpenSource]
    source_gaps: Mapping[str, Gap]
    inherited: Inherited
    decisions: tuple[Decision, ...] = ()
    sizes: Sequence[Batches] | None = None  # of the stages' steps, in place of what was decided
    problems: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)
    gaps: list[Problem] = field(default_factory=list)
    optimizers: tuple[StageOptimizer, ...] = ()

    def plan(self) -> Plan:
        """The plan, or PlanError."""
        configs = self.stage_configs()
        self.optimizers = stage_optimizers(self.config.optimizer, configs)
        planned = self._planned(configs)
        model = self._model(planned)
        averages = stage_averages([stage.config for stage in planned])
        stages = tuple(
            replace(model.in_stage(stage), average=average) for stage, average in zip(planned, averages, strict=True)
        )
        self._check_ids(stages)
        self._check_fades(stages)
        self.problems += filter(None, map(endless_ramp, stages))
        self.problems += [problem for stage in stages if (problem := unmeasured(stage, self.config.evaluate))]
        self.problems += shared_documents(stages, self.sources)
        self._check_loss_tokens(stages)
        self._check_epochs(stages)
        self.warnings.extend(low_rates(self.config.optimizer, self.optimizers))
        self.problems.extend(without_problems(self.config, self.sources))
        self.problems.extend(unknown_packages(self.config.optimizer, self.optimizers))
        self.problems.extend(average_problems(stages))
        self.problems.extend(unknown_losses(stage.config for stage in stages))
        self.warnings.extend(unfilled_averages(stages))
        self._note_gaps(stages)
        longest = self._longest(stages)
        curve, momenta, group_curves = self._curves(stages, longest)
        self.gaps.extend(model.gaps)
        self.warnings.extend(model.warnings)
        if self.inherited.warning is not None:
            self.warnings.append(self.inherited.warning)
        if self.inherited.problem is not None:
            self.problems.append(self.inherited.problem)
        starting = self._starting(model)
        if self.problems:
            raise PlanError(self.problems)
        notes = tuple(self.warnings), tuple(self.gaps)
        facts = self.config, self.sources, stages, curve, momenta
        plan = Plan(*facts, *notes, self.inherited, model.spec, group_learning_rates=group_curves)
        return replace(plan, longest_steps=longest[-1].end, starting=starting)

    def stage_configs(self) -> list[Stage]:
        """The stages as they will run: `[defaults]` merged into each, and the anneal as a stage of its own."""
        stages = list(merged_stages(self.config.stages, self.config.defaults))
        if any(stage.tokens is not None and stage.tokens.per_parameter is not None for stage in stages):
            with suppress(ConfigError):  # told once, when the stages' positions are planned
                spec = self._planned_model(stages).spec
                stages = [with_parameters_counted(stage, spec) for stage in stages]
        return self._with_anneal(stages)

    @property
    def _expected(self) -> dict[str, int]:
        """The tokens that sources are expected to have which are not on disk."""
        given = {name: source.expected_tokens for name, source in self.config.sources.items()}
        return {name: count for name, count in given.items() if count is not None and name not in self.sources}

    @property
    def _sizes(self) -> dict[str, int]:
        """The tokens of each source, counted or expected; without those of which neither is known."""
        return {name: source.tokens for name, source in self.sources.items()} | self._expected

    def _planned_model(self, stages: Sequence[Stage]) -> PlannedModel:
        largest_id = max((source.largest_id for source in self.sources.values()), default=0)
        return plan_model(self.config, stages, self.inherited.weights, largest_id)

    def _model(self, stages: Sequence[PlannedStage]) -> PlannedModel:
        """The model's shape and each stage's rotary positions."""
        try:
            model = self._planned_model([stage.config for stage in stages])
        except ConfigError as error:
            self.problems.extend(error.problems)
            return PlannedModel(None)
        return model

    def _starting(self, model: PlannedModel) -> StartingWeights | None:
        """What is read of the weights that the run starts from; those that do not fit are problems."""
        if model.spec is None or self.inherited.weights is None or self.inherited.problem is not None:
            return None
        try:
            return starting_weights(self.config, model.spec, self.inherited.weights)
        except ConfigError as error:
            self.problems.extend(error.problems)
            return None

    def _check_ids(self, stages: Sequence[PlannedStage]) -> None:
        """A model may know fewer ids than a source has, at the end or in a stage that reads it."""
        for name, source in self.sources.items():
            largest, last = source.largest_id, stages[-1].vocab
            reading = [stage for stage in stages if stage.mixture is not None and name in stage.mixture.names]
            short = next((stage for stage in reading if stage.vocab is not None and stage.vocab <= largest), None)
            if last is not None and last <= largest:
                what = f"holds the token id {largest:,}, the model knows 0 to {last - 1:,}"
                self.problems.append(Problem(f"sources.{name}", f"{what}. Tokenise with the model's tokenizer."))
            elif short is not None and short.vocab is not None:
                what = f"holds the token id {largest:,}, the model knows 0 to {short.vocab - 1:,} in {short.name}"
                fix = f"Write vocab = {largest + 1} or more there, or read the source in later stages alone."
                self.problems.append(Problem(f"sources.{name}", f"{what}. {fix}"))

    def _planned(self, stages: list[Stage]) -> tuple[PlannedStage, ...]:
        """Every stage after the one before it: where it starts, what it takes."""
        ledger = Ledger(self.sources, self._expected)
        planned: list[PlannedStage] = []
        start: int | None = 0
        before: Before | None = None
        for index, stage in enumerate(stages):
            length = asked_length(stage)
            batches, ended = self._decided(index, stage, start, length)
            mixture = self._mixture(index, stages, before, batches, length)
            seed = self.config.run.seed if stage.seed is None else stage.seed
            settings = RowSettings(stage.seq_len, stage.packing, seed)
            if stage.epochs is not None:
                to_read = ledger.rows_to_read(stage, settings, own_sources(stage, self.config))
                length = epochs_length(mixture, to_read)
                batches, ended = self._decided(index, stage, start, length)
            most = None if length is None else length.in_steps(batches)
            steps = most if ended is None or start is None else ended.step - start
            rows = None if steps is None else batches.rows_before(steps)
            uses: dict[str, SourceUse] = {}
            if mixture is not None and rows is not None and start is not None:
                try:
                    uses = ledger.give(stage, settings, mixture, rows)
                except SourceError as error:
                    raise PlanError([*self.problems, Problem("sources", str(error))]) from None
            made = PlannedStage(index, stage, seed, start, steps, mixture, uses, batches, longest=most, ended=ended)
            planned.append(made)
            start = planned[-1].end
            before = None
            if mixture is not None and rows is not None:
                before = Before(mixture.new, mixture.new_rows(rows), mixture.next_rows(rows))
        return tuple(planned)

    def _decided(
        self, index: int, stage: Stage, start: int | None, length: Length | None
    ) -> tuple[Batches, StageEnded | None]:
        return decided(stage, start, length, self.decisions) if self.sizes is None else (self.sizes[index], None)

    def _longest(self, planned: tuple[PlannedStage, ...]) -> tuple[PlannedStage, ...]:
        """The stages as they would be had none ended on a figure: the run's schedule is theirs, whatever was decided.

        Sizes that were decided are kept where they are in their stages.
        """
        if not any(stage.ended for stage in planned):
            return planned
        sizes = [stage.batches for stage in planned]
        other = replace(self, sizes=sizes, problems=[], warnings=[], gaps=[])
        return other._planned([stage.config for stage in planned])

    def _mixture(
        self, index: int, stages: Sequence[Stage], before: Before | None, batches: Batches, length: Length | None
    ) -> StageMixture | None:
        """A stage's mixture; None where its shares, or those that fade into its last rows, are not known."""
        try:
            shares = shares_of(stages[index], self.config, self._sizes)
            out = None
            if index + 1 < len(stages) and (fade := stages[index + 1].fade) is not None and fade.center:
                next_shares = shares_of(stages[index + 1], self.config, self._sizes)
                if next_shares is None:
                    return None
                if length is not None:
                    out = Following(next_shares, fade).out_of(stages[index], batches, length.in_steps(batches))
            return None if shares is None else mixture_of(stages[index], shares, before, out)
        except ValueError as reason:
            self.problems.append(Problem(f"stages[{index}]", str(reason)))
            return None

    def _with_anneal(self, stages: list[Stage]) -> list[Stage]:
        """The end of the last stage as a stage of its own, where `run.anneal` asks for it."""
        anneal = self.config.run.anneal
        if anneal is None or anneal.start is None:
            return stages
        planned = self._planned(stages)
        total, last_start = planned[-1].end, planned[-1].start
        if total is None or last_start is None:
            self.gaps.append(Problem("run.anneal", "starts at a fraction of a run whose length is not known yet."))
            return stages
        begin = int(exact(anneal.start) * total)
        if not last_start < begin < total:
            low = (last_start + 1) / total
            what = (
                f"is {anneal.start:g}, which is step {begin:,}, not inside the last stage of steps "
                f"[{last_start:,}, {total:,}). Write a start between {low:.4g} and 1."
            )
            self.problems.append(Problem("run.anneal.start", what))
            return stages
        own = {key: getattr(anneal, key) for key in anneal.model_fields_set - {"start"}}
        if {"mixture", "weights"} & own.keys():
            cleared = dict.fromkeys(("mixture", "weights", "sources", "replay"))
            own = cleared | {"temperature": anneal.temperature} | own
        cut = {"tokens": None, "epochs": None}
        last = stages[-1].model_copy(update=cut | {"steps": begin - last_start})
        fresh: dict[str, object] = {"fade": None, "lr": None, "reset_optimizer": False, "evaluate": False}
        fresh |= {"start_from": None, "vocab": None}
        fresh["name"] = anneal.name
        # It continues with the size that the stage has there, also where that was changed while the run went on.
        fresh |= {"batch_size": BatchSize(size=planned[-1].size_at(begin)), "batch_tokens": None}
        if stages[-1].kl is not None and stages[-1].kl.reference is None:
            # The reference stays the model as it was when the whole stage began.
            fresh["kl"] = stages[-1].kl.model_copy(update={"reference": Reference(stage=stages[-1].name)})
        tail = stages[-1].model_copy(update=cut | fresh | {"steps": total - begin} | own)
        return [*stages[:-1], last, tail]

    def _curves(
        self, stages: tuple[PlannedStage, ...], longest: tuple[PlannedStage, ...]
    ) -> tuple[Curve | None, Curve, dict[str, Curve]]:
        """Learning rate and momentum over the stages whose place is known; rates of groups that have another."""
        schedule, known = self.config.schedule, len(self.problems)
        spans = [
            self._span(stage, stage.start, stage.steps, (place.start or 0) - stage.start)
            for stage, place in zip(stages, longest, strict=True)
            if stage.start is not None and stage.steps is not None
        ]
        total = longest[-1].end
        momenta = momentum(self.config.optimizer.momentum, spans, warm=self.config.model.init_optimizer)
        if total is None and schedule.horizon is None and needs_length(schedule):
            self.gaps.append(Problem("schedule", "the learning rate is not known before the run's length is."))
            return None, momenta, {}
        lengths = self._run_lengths(partial(steps_for_tokens, longest), total or 0)
        if len(self.problems) > known:  # lengths that do not fit make no curve
            return None, momenta, {}
        curves = {group: learning_rate(schedule, lengths, spans, group) for group in GROUPS}
        curve = curves[MAIN_GROUP]
        self._check_zero_rates(curve, stages, lengths.extension.end if lengths.extension else lengths.span)
        return curve, momenta, {group: each for group, each in curves.items() if each != curve}

    def _run_lengths(self, steps_for_tokens: Callable[[int], int], total: int) -> Lengths:
        """The lengths of the run's schedule, over its horizon or the run's steps."""
        schedule = self.config.schedule
        horizon = total if schedule.horizon is None else resolve(schedule.horizon, 0, steps_for_tokens)
        lengths, problems = lengths_of("schedule", schedule, horizon, steps_for_tokens)
        if schedule.extend is not None:
            extension, more = extension_of(schedule.extend, horizon, steps_for_tokens)
            lengths, problems = replace(lengths, extension=extension), [*problems, *more]
        self.problems.extend(problems)
        return lengths

    def _check_zero_rates(self, curve: Curve, stages: tuple[PlannedStage, ...], horizon: int) -> None:
        """A stage whose last steps are at a learning rate of 0 learns nothing there; one that starts so, never."""
        for stage in stages:
            if stage.start is None or stage.end is None:
                continue
            pieces = [*curve.between(stage.start, stage.end)]
            zero = stage.end
            while pieces and pieces[-1].is_zero:
                zero = pieces.pop().start
            if zero == stage.end:
                continue
            which = "all of its steps" if zero == stage.start else f"its last {stage.end - zero:,} steps"
            what, lr = f"the learning rate is 0 at {which}", stage.config.lr
            if lr is not None and lr.start is not None and zero == stage.start:
                what = "starts where the learning rate stands, which is 0: the stage would learn nothing"
                fix = "Leave it out, or let the stage before end above 0"
                self.problems.append(Problem(f"stages[{stage.index}].lr.from", f"{what}. {fix}."))
            elif lr is not None and lr.points:
                self.warnings.append(Problem(f"stages[{stage.index}].lr.points", f"{what}. Raise the last point."))
            else:
                last = self.config.schedule.points[-1:]
                ends = f"points end at step {zero:,}. Raise the last point" if last else ""
                ends = ends or f"horizon ends at step {horizon:,}. Write a larger horizon"
                what += f': schedule.{ends}, or give the stage its own rate: lr = {{ shape = "linear" }}.'
                self.warnings.append(Problem(f"stages[{stage.index}]", what))

    def _span(self, stage: PlannedStage, start: int, steps: int, left_out: int) -> StageSpan:
        """A stage's own curve is over its longest length: its past stays as it was where the stage ends early."""
        longest = stage.longest or steps
        lr, lengths = stage.config.lr, Lengths(longest)
        if lr is not None:
            path = f"stages[{stage.index}].lr"
            lengths, problems = lengths_of(path, lr, longest, stage.steps_for)
            self.problems.extend(problems)
        optimizer = self.optimizers[stage.index]
        momenta = optimizer.settings.momentum
        return StageSpan(start, start + steps, lr, lengths, optimizer.is_fresh, momenta, left_out)

    def _check_loss_tokens(self, stages: tuple[PlannedStage, ...]) -> None:
        """A stage in which no token counts in the loss teaches nothing."""
        for stage in stages:
            counts = [use.loss_tokens for use in stage.uses.values() if use.rows]
            if counts and all(count == 0 for count in counts):
                what = "no token of it counts in the loss. Look at its documents and loss masks."
                self.warnings.append(Problem(f"stages[{stage.index}]", what))

    def _check_fades(self, stages: tuple[PlannedStage, ...]) -> None:
        """A fade ends before its stage does, and before the next one's begins, also where only the plan knows when."""
        for stage in stages:
            if stage.mixture is None or stage.rows is None:
                continue
            fade, out, first_step = stage.mixture.fade, stage.mixture.out, stage.batches.size_at(0) * stage.seq_len
            length, here = stage.rows * stage.seq_len, (fade.rows - fade.before) * stage.seq_len
            if fade.rows - fade.before > stage.rows:
                what = f"is {show_count(here)} tokens, longer than its stage of {show_count(length)}."
                what = f"{what} Write fade = {length} or less."
                self.problems.append(Problem(f"stages[{stage.index}].fade", what))
            elif out is not None and fade.rows - fade.before > out.first:
                what = f"ends after {show_count(here)} tokens of its stage, and the next stage's begins after"
                what = f"{what} {show_count(out.first * stage.seq_len)}. Shorten one of them."
                self.problems.append(Problem(f"stages[{stage.index}].fade", what))
            elif (asked := stage.config.fade) and asked.tokens is not None and asked.tokens < first_step:
                what = f"is {show_count(asked.tokens)} tokens, less than a step of {show_count(first_step)}."
                what = f"{what} For steps write fade = {{ steps = 100 }}."
                self.warnings.append(Problem(f"stages[{stage.index}].fade", what))

    def _check_epochs(self, stages: tuple[PlannedStage, ...]) -> None:
        """Caps on epochs."""
        for problem, is_error in epoch_problems(stages, self.config, self._sizes):
            (self.problems if is_error else self.warnings).append(problem)

    def _note_gaps(self, stages: tuple[PlannedStage, ...]) -> None:
        """What the config alone cannot tell."""
        if self.inherited.gap is not None:
            self.gaps.append(self.inherited.gap)
        for name, source in self.config.sources.items():
            if name not in self.sources and source.kind != "stream":
                gap = self.source_gaps.get(name) or Gap(f"{source.where} is not opened")
                known = "its size and epochs are not known"
                if name in self._expected:
                    known = "its epochs, and steps and shares by them, are those of its expected_tokens"
                what = f"{gap.reason}: {known}.{gap.fix}"
                self.gaps.append(Problem(f"sources.{name}", what))
        for stage in stages:
            if stage.mixture is None:
                what = "shares are in proportion to sizes that are not known."
                self.gaps.append(Problem(f"stages[{stage.index}]", what))
            if stage.steps is None and stage.config.epochs is None:
                what = "counts parameters of a model that is not known yet: where this stage ends is not known."
                self.gaps.append(Problem(f"stages[{stage.index}].tokens", what))
            elif stage.steps is None:
                what = "counts epochs of a source of unknown size: where this stage ends is not known."
                self.gaps.append(Problem(f"stages[{stage.index}].epochs", what))
