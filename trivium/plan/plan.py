"""The config with every unit resolved: a stage, a learning rate and a batch size for every step."""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, cast

from trivium.config.keys import nearest
from trivium.config.optimizer import StageOptimizer, stage_optimizers
from trivium.config.schema import Config
from trivium.config.sources import StreamSource
from trivium.engine.base import StepSettings
from trivium.errors import PlanError, Problem, SourceError, UsageError
from trivium.model.foreign import with_vocab
from trivium.model.spec import ModelSpec
from trivium.model.starting import StartingWeights
from trivium.plan.inherit import Inherited
from trivium.plan.lr.curve import Curve
from trivium.plan.places import first_reads, without_entries
from trivium.plan.rates import MAIN_GROUP, peak_lr, slow_rates
from trivium.plan.record import Record, fingerprint, group_rate_entries, record
from trivium.plan.stage import CompleteStage, PlannedStage
from trivium.run.decisions import BatchResized, Decision, in_force
from trivium.screen import as_html
from trivium.sources.open import OpenSource
from trivium.text.tokenizer import open_tokenizer


@dataclass(frozen=True)
class Plan:
    """Stages that cover `[0, total)`, as far as what is on disk tells; `gaps` are what is not known."""

    config: Config
    sources: Mapping[str, OpenSource]
    stages: tuple[PlannedStage, ...]
    learning_rate: Curve | None
    momentum: Curve
    warnings: tuple[Problem, ...]
    gaps: tuple[Problem, ...]
    inherited: Inherited
    model: ModelSpec | None  # None where its vocabulary or the weights that it starts from are not known
    own: Mapping[str, Any] = field(default_factory=dict)  # what a Trainer overrides of it, for the record
    decisions: tuple[Decision, ...] = ()  # made while the run went on
    starting: StartingWeights | None = None  # what it reads of `model.init`; None where that is absent, or not there
    group_learning_rates: Mapping[str, Curve] = field(default_factory=dict)  # of groups that a stage scales by itself
    longest_steps: int | None = None  # of the run, had no stage ended on a figure: what its schedule is over

    @property
    def total_steps(self) -> int | None:
        """Steps of the whole run; None where a stage's length is not known."""
        return self.stages[-1].end

    @property
    def known_steps(self) -> int:
        """Steps of the stages from the first on whose lengths are known."""
        return self._ends[-1] if self._ends else 0

    @property
    def makes_model(self) -> str | None:
        """The function that makes another model than the decoder: a Trainer's, or the config's; None: the decoder."""
        by_trainer: str | None = self.own.get("Trainer.model")
        return by_trainer or (None if self.model is None else self.model.own)

    def stage_at(self, step: int) -> PlannedStage:
        """The stage that a step belongs to."""
        number = bisect_right(self._ends, step)
        if not self._ends and self.gaps:
            raise PlanError(self.gaps)
        if step < 0 or number == len(self._ends):
            steps = self.known_steps
            what = f"there is no step {step:,}: the run has {steps:,} steps, from 0 to {steps - 1:,}."
            raise PlanError([*(self.gaps if self.total_steps is None else ()), Problem("", what)])
        return self.stages[number]

    def stages_between(self, start: int, end: int | None = None) -> list[PlannedStage]:
        """The stages with steps from `start` on that begin before `end`; those whose steps are not known among them."""
        return [
            stage
            for stage in self.stages
            if (stage.end is None or stage.end > start) and (end is None or stage.start is None or stage.start < end)
        ]

    def step_of(self, text: str) -> int:
        """The step that a stage's name stands for, which is its first, or that a number is."""
        starts = {stage.name: stage.start for stage in self.stages}
        if text in starts:
            return starts[text] or 0
        if not text.isdecimal():
            raise UsageError(f'--until: there is no stage "{text}". {nearest(text, starts)} Or give a step.')
        if self.total_steps is not None and int(text) > self.total_steps:
            raise UsageError(
                f"--until: there is no step {int(text):,}: the run has {self.total_steps:,}. Leave it out."
            )
        return int(text)

    @cached_property
    def _ends(self) -> list[int]:
        return [stage.end for stage in self.stages if stage.end is not None]

    @property
    def decided_from(self) -> int:
        """The step at which a batch size was decided last, so that those before it are taken; 0 where none was."""
        return max((each.step for each in in_force(self.decisions) if isinstance(each, BatchResized)), default=0)

    def tokens_before(self, step: int) -> int:
        """Tokens of all steps before this one, padding included; the run's last end is allowed."""
        total = 0
        for stage in self.stages:
            if stage.start is None or stage.end is None or stage.start >= step:
                break
            total += stage.rows_before(min(step, stage.end)) * stage.seq_len
        return total

    def copies_at(self, step: int) -> bool:
        """Whether the weights are copied for an average after this step."""
        stage = self.stage_at(step)
        tokens = self.tokens_before(step), self.tokens_before(step + 1)
        return stage.average is not None and stage.average.copies_at(step, *tokens)

    def lr_multiplier(self, step: int, group: str = MAIN_GROUP) -> float:
        """What a group's peak learning rate is multiplied by at a step; the layers' matrices', if none is named."""
        if self.learning_rate is None:
            raise PlanError([*self.gaps, Problem("", "the learning rate is not known before the run's length is.")])
        return self.group_learning_rates.get(group, self.learning_rate).at(step)

    def flops_per_token(self, stage: PlannedStage) -> float | None:
        """FLOPs of learning one token of a stage, its references' passes included; None where the model is not known.

        What is frozen is counted as all else: figures can then be compared.
        """
        if self.model is None:
            return None
        model = self.model if stage.vocab is None else with_vocab(self.model, stage.vocab)
        references = [model] if stage.config.kl is not None else []
        references += [] if stage.teacher is None else [stage.teacher]
        return model.flops(stage.seq_len) + sum(each.forward_flops(stage.seq_len) for each in references)

    @property
    def largest_vocab(self) -> int:
        """Tokens that the model knows at the run's end."""
        return max((stage.vocab or 0 for stage in self.stages), default=0)

    def settings_at(self, step: int) -> StepSettings:
        """Everything that a step is taken with."""
        stage = self.stage_at(step)
        multiplier = self.lr_multiplier(step)
        optimizer = self.optimizers[stage.index]
        alpha, beta3 = slow_rates(optimizer.settings, self._updates(step, optimizer))
        return StepSettings(
            step=step,
            stage=stage.index,
            seq_len=stage.seq_len,
            batch_size=stage.size_at(step),
            tokens_before=self.tokens_before(step),
            lr_multiplier=multiplier,
            lr={group: self.lr_multiplier(step, group) * peak for group, peak in self.peak_lr_of(stage).items()},
            momentum=self.momentum.at(step),
            weight_decay=optimizer.settings.weight_decay,
            alpha=alpha,
            beta3=beta3,
        )

    @cached_property
    def optimizers(self) -> tuple[StageOptimizer, ...]:
        """The optimizer of each stage."""
        return stage_optimizers(self.config.optimizer, [stage.config for stage in self.stages])

    def optimizer_before(self, step: int) -> StageOptimizer:
        """The optimizer that took the step before this one; of none, the first stage's."""
        return self.optimizers[self.stage_at(max(0, step - 1)).index]

    def _updates(self, step: int, optimizer: StageOptimizer) -> int | None:
        """Which step this is since the optimizer's state began, from 1 on; None where that was in another run."""
        if optimizer.began == 0 and self.config.model.init_optimizer:
            return None
        return step + 1 - (self.stages[optimizer.began].start or 0)

    @property
    def peak_lr(self) -> dict[str, float]:
        """`optimizer.lr` by group of parameters, scaled where it asks for that; without what is not known yet."""
        return peak_lr(self.config.optimizer, None if self.model is None else self.model.width)

    def peak_lr_of(self, stage: PlannedStage) -> dict[str, float]:
        """The same of a stage, which may have an optimizer of its own."""
        return peak_lr(self.optimizers[stage.index].settings, None if self.model is None else self.model.width)

    def record(self, step: int) -> Record:
        """Everything that decided the steps before this one, by key."""
        curves = self.learning_rate, self.momentum
        facts = self.config, self.model, self.sources, self.stages
        entries = record(*facts, *curves, step, self._stream_tokenizer)
        entries |= without_entries(self._first_reads, step)
        if step and self.learning_rate is not None:
            entries |= group_rate_entries(self.learning_rate, self.group_learning_rates, step)
        return {**entries, **self.own} if step else entries

    @cached_property
    def _first_reads(self) -> dict[str, dict[int, int]]:
        return first_reads(self.config, self.stages, self.sources)

    @cached_property
    def _stream_tokenizer(self) -> str | None:
        """The fingerprint of the tokenizer where a stream needs it; None where it is not there yet."""
        if not any(isinstance(source, StreamSource) for source in self.config.sources.values()):
            return None
        try:
            tokenizer = open_tokenizer(self.config.tokenizer, fetch=False)
        except SourceError:
            return None
        return None if tokenizer is None else tokenizer.fingerprint

    def fingerprint(self, step: int) -> str:
        """A hash of the record: changes if and only if something before the step changed."""
        return fingerprint(self.record(step))

    def epochs_before(self, step: int) -> dict[str, float]:
        """How often each source has been read by the steps before this one; within a stage by its rows."""
        epochs: dict[str, float] = {}
        for stage in self.stages:
            if stage.start is None or stage.end is None or stage.start >= step or stage.mixture is None:
                break
            rows = stage.rows_before(min(step, stage.end))
            counts = dict(zip(stage.mixture.names, stage.mixture.count(rows).tolist(), strict=True))
            for name, use in stage.uses.items():
                if use.epochs is not None and use.rows:
                    epochs[name] = epochs.get(name, 0.0) + use.epochs * counts[name] / use.rows
        return epochs

    def lr_ends(self, stage: PlannedStage) -> tuple[float | None, float | None]:
        """The learning rate's multiplier at a stage's first and last step; None where it is not known."""
        if self.learning_rate is None or stage.start is None or stage.end is None:
            return None, None
        return self.learning_rate.at(stage.start), self.learning_rate.at(stage.end - 1)

    def readable(self) -> "ReadablePlan":
        """The plan, if every step's rows can be read; raises PlanError with the gaps if not."""
        stages = [known for stage in self.stages if (known := CompleteStage.of(stage)) is not None]
        if len(stages) < len(self.stages) or self.learning_rate is None or any(map(self._lacks_source, stages)):
            raise PlanError([*self.gaps, Problem("", "the plan is not complete, so that nothing can be read yet.")])
        return ReadablePlan(**{**_fields(self), "stages": tuple(stages)})

    def complete(self) -> "CompletePlan":
        """The plan, if the run can be trained; raises PlanError with the gaps if not."""
        readable = self.readable()
        if self.model is None:
            raise PlanError(self.gaps)
        return CompletePlan(**_fields(readable))

    def __reduce__(self) -> tuple[Any, ...]:
        return self.readable().__reduce__()

    def _repr_html_(self) -> str:
        """What `trivium plan` prints, in a notebook."""
        from trivium.plan.show import show_plan

        return as_html(lambda console: show_plan(self, console))

    def _lacks_source(self, stage: PlannedStage) -> bool:
        return any(
            use.rows and use.segment is None and not isinstance(self.config.sources[name], StreamSource)
            for name, use in stage.uses.items()
        )


@dataclass(frozen=True)
class ReadablePlan(Plan):
    """A plan of which every step is known, and every source is open: enough to read all batches."""

    stages: tuple[CompleteStage, ...]
    learning_rate: Curve

    @property
    def total_steps(self) -> int:
        return self.stages[-1].end

    def stage_at(self, step: int) -> CompleteStage:
        return cast(CompleteStage, super().stage_at(step))  # every batch asks

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as what was found out about its sources: the other process opens no file before it reads from it."""
        from trivium.plan.share import found_out, remade

        facts = self.inherited, found_out(self), dict(self.own), self.decisions
        return remade, (*facts, isinstance(self, CompletePlan))

    def readable(self) -> "ReadablePlan":
        """The plan itself."""
        return self


@dataclass(frozen=True)
class CompletePlan(ReadablePlan):
    """A plan without gaps: all that a run is trained from."""

    model: ModelSpec

    def complete(self) -> "CompletePlan":
        """The plan itself."""
        return self


def _fields(plan: Plan) -> dict[str, Any]:
    return {each.name: getattr(plan, each.name) for each in fields(plan)}
