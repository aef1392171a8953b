"""The class that people use and override: a config in, a trained model out.

    trivium.Trainer("run.toml", overrides=["stages.0.steps=10"]).run()

Small methods may be overridden: `model`, `loss`, `optimizer`, `schedule`, `evaluator`, `batch`, `train_step`,
`val_step`, `save`, `load`, `run`, `state`, `load_state`, the property `done`, and four hooks, from `on_start` on.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from trivium.ask.open import LoadedModel, open_model
from trivium.config.load import Loaded, load, peek_engine
from trivium.config.schema import Config
from trivium.engine.base import Engine, EvalStats, MakeModel, StepSettings, StepStats, TokenLosses
from trivium.engine.loss_weight import LossWeights
from trivium.engine.make import join_ranks
from trivium.errors import UsageError
from trivium.loader.loader import Loader
from trivium.plan.make import make_plan
from trivium.plan.plan import CompletePlan
from trivium.plan.settings import engine_settings, mesh_shape, refuse_stage_meshes, refuse_teachers
from trivium.plan.share import found_out, known_sources
from trivium.plan.stage import CompleteStage
from trivium.rows.batch import Batch
from trivium.run.decisions import as_plain, from_plain, known_at
from trivium.run.events import Evaluated
from trivium.run.folder import RunFolder
from trivium.train.loop import train
from trivium.train.resume import restore, save_checkpoint, write_plan
from trivium.train.session import Session, open_session
from trivium.train.setup import Begun, GivenOptimizer, GivenSchedule, Own
from trivium.train.validation import (
    ValidationSet,
    evaluate,
    first_batch,
    named_scores,
    refuse_impossible,
    validation_set,
)

EVALUATION_TOKENS = 16_384  # in one pass of an evaluation, where no micro-batch says otherwise


class Trainer:
    """One run, from its first step or its last checkpoint to its end."""

    def __init__(
        self,
        config: Config | str | Path,
        overrides: Sequence[str] = (),
        *,
        dialect: str | None = None,
        world_size: int | None = None,
        dry_run: bool = False,
        until: str | int | None = None,
        batch_size: int | None = None,
        show: bool = True,
    ) -> None:
        """`until` names a stage or a step before which this launch ends.

        `batch_size` changes the size of a run that resumes, from its next step to the stage's end: it is a decision,
        which the run's folder keeps.
        """
        # What decides how ranks are joined is read before any of them may refuse the config.
        engine = config.engine if isinstance(config, Config) else peek_engine(config, overrides)
        self.ranks = join_ranks(engine.name, engine.device)
        with self.ranks.as_one():
            devices = world_size or self.ranks.size * self.ranks.local_devices
            self.loaded: Loaded | None = None  # where the config came from a file
            if not isinstance(config, Config):
                self.loaded = load(config, overrides, dialect=dialect, world_size=devices)
                config = self.loaded.config
            self.own = Own(self.optimizer(), self.schedule(), self.model(), self.loss())
            self.own.refuse_two_ways(config)
        self.dry_run = dry_run
        self._plan(self.own.configured(config), batch_size, until)
        self.show = show
        self.step = 0
        self.stopping = False
        self.figures: dict[str, float] = {}  # what `log` was given since the last step's event
        self._session: Session | None = None
        self._ahead: Iterator[tuple[int, Batch]] | None = None

    def _plan(self, asked: Config, batch_size: int | None, until: str | int | None) -> None:
        """Rank 0 prepares, hashes and plans; the others make the same plan of what it has found out."""
        ranks, own, made = self.ranks, self.own.record(), None
        begun, decided = Begun(None, ()), None  # what this launch decides
        with ranks.as_one(), self._named():
            local_devices = ranks.local_devices if asked.engine.name == "jax" else None
            self.mesh = mesh_shape(asked.engine.parallel, ranks.size, local_devices)
            if ranks.is_main:
                if batch_size is not None and self.dry_run:
                    raise UsageError("--batch-size: changes a run that resumes; a dry run starts over. Leave one out.")
                begun = Begun.of(asked)
                if self.dry_run:
                    begun = replace(begun, step=None)
                made = make_plan(asked, prepare=True, own=own, decisions=known_at(begun.decisions, begun.step or 0))
                decided = None if batch_size is None else begun.resized(made, batch_size)
                if decided is not None:
                    begun = replace(begun, decisions=(*begun.decisions, decided))
                    made = make_plan(asked, made.sources, own=own, decisions=known_at(begun.decisions, decided.step))
        found = ranks.share(None if made is None or ranks.size == 1 else found_out(made))
        self.planned_from = int(ranks.share(begun.step or 0))
        self.decides = bool(ranks.share(decided is not None))  # whether the plan's last decision is this launch's
        self.decisions = from_plain(ranks.share(as_plain(begun.decisions)), "rank 0")  # those to come among them
        decisions = known_at(self.decisions, self.planned_from)
        with ranks.as_one(), self._named():
            if made is None:
                known = known_sources(asked, found or {})
                made = make_plan(asked, known, prepare=True, own=own, decisions=decisions)
            self.plan = made.complete()
            self.config = self.plan.config  # with what it inherits from the run that its weights come from
            self.own.refuse_groups(self.plan)
            self.own.refuse_rates(self.plan)
            self.own.refuse_stage_optimizers(self.plan)
            refuse_impossible(self.plan, has_evaluator=type(self).evaluator is not Trainer.evaluator)
            settings = self.own.applied(engine_settings(self.config, self.plan.model))
            # What comes from there on may need another number of ranks: it is another launch's.
            self._asked_until = None if until is None else str(until)
            self.until = None if until is None else self.plan.step_of(str(until))
            start = max(self.planned_from, self.plan.decided_from)
            taken = {stage.index: stage.config for stage in self.plan.stages_between(start, self.until)}
            refuse_stage_meshes(settings, self.mesh, taken, local_devices)
            refuse_teachers(settings, self.mesh, [self.plan.stages[index] for index in taken])
            self.loader = Loader(self.plan, ranks.rank, ranks.size, mesh=self.mesh, start=start, end=self.until)

    def follow(self, plan: CompletePlan) -> None:
        """Go on from the current step by another plan, which has the same steps before it."""
        self._drop_batches()  # they were made by the old plan
        self.plan = plan
        if self._asked_until is not None and not self._asked_until.isdecimal():
            self.until = plan.step_of(self._asked_until)
        self.loader = self.loader.followed(plan, self.step, self.until)
        self.session.follow(plan)
        if self.ranks.is_main:
            write_plan(self, self.session)

    def _named(self) -> AbstractContextManager[None]:
        """Problems with keys of a config that came from a file name the file and line."""
        return nullcontext() if self.loaded is None else self.loaded.places.named()

    # What people override.

    def model(self) -> MakeModel | None:
        """A function of the ModelSpec that makes another model than the decoder; as the next three, called once."""
        return None

    def loss(self) -> TokenLosses | None:
        """A function of hidden states, lm_head and batch that gives each token's loss, to train on instead."""
        return None

    def optimizer(self) -> GivenOptimizer:
        """Another optimizer than the config's: a name, settings, an optimizer class, an optax transformation."""
        return None

    def schedule(self) -> GivenSchedule:
        """Another schedule than the config's: a shape's name, or a function of the step that multiplies the rate."""
        return None

    def evaluator(self) -> Callable[["Trainer"], Mapping[str, float]] | None:
        """A function that gives scores by name at every evaluation; called once, before the first."""
        return None

    def batch(self, step: int, split: Literal["train", "validation"] = "train") -> Batch:
        """This rank's rows of a step; training's are made ahead. For validation: an evaluation's first batch."""
        if split == "validation":
            return first_batch(self.validation_batches())
        self.plan.stage_at(step)  # PlanError for a step that the plan does not have
        if self._ahead is None:
            self._ahead = self.loader.batches(start=step)
        found, batch = next(self._ahead, (None, None))
        if found != step or batch is None:
            self._ahead = None
            return self.batch(step)
        return batch

    def train_step(self, batch: Batch, now: StepSettings) -> StepStats:
        """One update of the model."""
        return self.engine.step(batch, now)

    def val_step(self, batch: Batch) -> EvalStats:
        """Plain cross-entropy of a batch, without an update."""
        return self.engine.evaluate(batch)

    def state(self) -> dict[str, Any]:
        """State of your own for every checkpoint, as plain JSON values; it is restored by `load_state`."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned when the checkpoint was written."""

    def on_start(self) -> None:
        """Called before the first step of a launch."""

    def on_stage(self, stage: CompleteStage) -> None:
        """Called before a stage's first step of this launch, when the engine has entered it."""

    def on_step(self, step: int, stats: StepStats) -> None:
        """Called after each update, before its event is written."""

    def on_end(self) -> None:
        """Called after the last step of a launch."""

    @property
    def done(self) -> bool:
        """Whether to stop: the last step of the run or of this launch is taken, or `stopping` is set."""
        return self.stopping or self.finished or self.reached

    @property
    def reached(self) -> bool:
        """Whether this launch was to end before a step, and has."""
        return self.until is not None and self.step >= self.until

    def run(self) -> "Trainer":
        """Train to the end; a run that exists resumes from its last checkpoint."""
        with self.open_session() as session:
            self.load()
            self.on_start()
            train(self, session)
            self.on_end()
        return self

    def load(self) -> None:
        """Load the last sound checkpoint, or initial weights where there is none."""
        restore(self, self.session)

    def save(self, reason: str = "asked") -> None:
        """Write a checkpoint of the steps taken so far; a dry run writes only what a stage's KL needs."""
        save_checkpoint(self, self.session, reason)

    # What people call.

    def log(self, **figures: float) -> None:
        """Add figures of your own to this step's event, or between steps to the next one's: `self.log(entropy=0.3)`."""
        self.figures |= {name: float(value) for name, value in figures.items()}

    def evaluate(self) -> Evaluated | None:
        """Evaluate the model on the held-out rows, and by the evaluator; None where the run has neither.

        Where the config asks for both, the weights are evaluated first, and then their average; gives the first.
        """
        events = [self._evaluate(averaged=averaged) for averaged in self.evaluated_weights]
        return events[0]

    def _evaluate(self, *, averaged: bool) -> Evaluated | None:
        fingerprints = self._fingerprints(averaged=averaged)
        weights = LossWeights(self.stage.config.loss_weight or {})
        with self.session.under_way("evaluating"), self.with_weights(averaged=averaged):
            batches = self.validation_batches()
            event = evaluate(self.step, self.stage.name, batches, self.val_step, fingerprints, weights)
            if self._evaluator is not None:
                event = event or Evaluated.without_validation(self.step, self.stage.name)
                event = replace(event, scores=named_scores(self._evaluator(self)))
        if event is not None:
            event = replace(event, averaged=averaged)
            self.session.evaluated(event, is_first=averaged == self.evaluated_weights[0])
        return event

    @property
    def evaluated_weights(self) -> tuple[bool, ...]:
        """What an evaluation measures now, in order: False for the weights, True for their average."""
        has_average = self._session is not None and self.engine.has_average
        asked = self.config.evaluate.weights if has_average else None
        return {None: (False,), "average": (True,), "both": (False, True)}[asked]

    def with_weights(self, *, averaged: bool) -> AbstractContextManager[None]:
        """Inside, the engine has its weights, or their average."""
        return self.engine.averaged() if averaged else nullcontext()

    def validation_batches(self) -> Iterator[Batch]:
        """The batches of one evaluation."""
        rows = self.config.engine.micro_batch_size or max(1, EVALUATION_TOKENS // self._validation.seq_len)
        known = self._validation.known(self.stage.vocab or self.plan.model.vocab)
        for batch in known.batches(rows, *self.loader.reader_in(self.stage)):
            if self._session is not None:
                self._session.beat()
            yield batch

    @property
    def validation_fingerprints(self) -> dict[str, str]:
        """By source, what an evaluation would be measured on now; figures with the same one can be compared."""
        return self._fingerprints(averaged=self.evaluated_weights[0])

    def _fingerprints(self, *, averaged: bool) -> dict[str, str]:
        known = self._validation.known(self.stage.vocab or self.plan.model.vocab)
        return known.fingerprints(document_mask=self.stage.config.document_mask, averaged=averaged)

    @cached_property
    def _validation(self) -> ValidationSet:
        return validation_set(self.plan)

    @cached_property
    def _evaluator(self) -> Callable[["Trainer"], Mapping[str, float]] | None:
        found = self.evaluator()
        if found is not None and not callable(found):
            raise UsageError(f"Trainer.evaluator() returned {found!r}. Return a function of the trainer or None.")
        return found

    def open_model(self, step: int | None = None) -> LoadedModel:
        """The model of a checkpoint, by default the last one, to write texts or to be scored; needs no session."""
        run = Path(self.config.run.folder) / (self.config.run.name or "run")
        return open_model(run, step, device=self.config.engine.device, make_model=self.own.model)

    def sample(self, prompt: str = "", *, step: int | None = None, **how: Any) -> str:
        """What a checkpoint's model writes after a prompt; `how` is `LoadedModel.write`'s."""
        return self.open_model(step).write(prompt, **how)

    def settings_at(self, step: int) -> StepSettings:
        """What a step is taken with: the plan's settings, with the learning rates of an own schedule."""
        return self.own.settings_at(self.plan, step)

    @property
    def is_overridden(self) -> bool:
        """Whether anything here may be somebody's own."""
        return type(self) is not Trainer

    @property
    def finished(self) -> bool:
        return self.step >= self.plan.total_steps

    @property
    def stage(self) -> CompleteStage:
        """The stage that the engine has entered, or will enter first."""
        entered = -1 if self._session is None else self._session.entered
        return self.plan.stages[entered] if entered >= 0 else self.plan.stage_at(min(self.step, len(self.loader) - 1))

    @property
    def engine(self) -> Engine:
        return self.session.engine

    @property
    def folder(self) -> RunFolder:
        """The run's folder; of a dry run a temporary one."""
        return self.session.folder

    @property
    def session(self) -> Session:
        """What is open while the run trains; of a trainer that has ended, its last one."""
        if self._session is None:
            raise UsageError("the trainer has not been started. Call run(), or use it inside open_session().")
        return self._session

    @contextmanager
    def open_session(self) -> Iterator[Session]:
        """Lock the run's folder, make the engine, open the sinks; all is closed at the end. `load` gives it weights."""
        with self._named(), open_session(self) as self._session:
            try:
                yield self._session
            except BaseException as error:
                self._session.failed(self.step, error)
                self.ranks.failed(error)
                raise
            finally:
                self.close_batches()

    def close_batches(self) -> None:
        """Stop making batches ahead."""
        self._drop_batches()
        self.loader.close()

    def _drop_batches(self) -> None:
        if self._ahead is not None:
            self._ahead.close()  # type: ignore[attr-defined]
            self._ahead = None
