"""Steps of a run taken again, from the nearest checkpoint before them, with or without some documents.

The run itself is only read: a launch in a temporary folder, with links to the checkpoints that it needs, takes the
steps as a resume would. Up to the first step that was asked for nothing is left out, so that those give the recorded
losses bit for bit, on the same ranks, threads and versions. Costs a start and the steps; to take them once more from
the same place costs a load and the steps.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trivium.config.schema import Config
from trivium.config.sources import StreamSource
from trivium.errors import UsageError
from trivium.loader.without import Without
from trivium.plan.make import decided_plan
from trivium.rows.blocks import FileBlocks
from trivium.run.decisions import known_at
from trivium.run.folder import Checkpoint, RunFolder
from trivium.train.loop import Loop, garbage_by_step
from trivium.train.resume import bit_settings, changed_keys, versions
from trivium.train.session import Session
from trivium.train.trainer import Trainer
from trivium.why.rows import base_name, run_config

Chosen = Mapping[str, Sequence[int] | None]  # documents by source; None: all of a source's


@dataclass(frozen=True, slots=True)
class Retaken:
    """A step that was taken again."""

    step: int
    loss: float
    grad_norm: float
    limit: float  # of the loss, above which it is a spike
    skipped: str | None = None

    @property
    def is_spike(self) -> bool:
        """Whether the loss is over the limit, or no update was made."""
        return self.skipped is not None or not self.loss <= self.limit


@dataclass(slots=True)
class Rerun:
    """A launch that stands at the first step that was asked for, and takes the steps from there as often as asked."""

    loop: Loop
    first: int
    checkpoint: int  # the step that it began at
    before: list[Retaken]  # the steps from there up to the first
    different: dict[str, str]  # what may change bits, and is not as it was when the checkpoint was written
    over: float | None = None  # a loss over this is a spike, whatever the guard says
    _place: "_Place | None" = None

    @property
    def config(self) -> Config:
        return self.loop.trainer.config

    @property
    def is_main(self) -> bool:
        return self.loop.trainer.ranks.is_main

    def keep_place(self) -> None:
        """Keep where it stands, so that the steps can be taken more than once."""
        self._place = _Place.of(self.loop)

    def take(self, last: int, chosen: Chosen) -> list[Retaken]:
        """The steps from the first to the last, without the chosen documents."""
        if self.loop.trainer.step != self.first:
            assert self._place is not None, "kept where steps are taken again"
            self._place.restore(self.loop)
        return _take(self.loop, range(self.first, last + 1), chosen, self.over)


@contextmanager
def open_rerun(
    run: Path, first: int, over: float | None = None, *, last: int | None = None, chosen: Chosen | None = None
) -> Iterator[Rerun]:
    """A launch at a step of a run; nothing of the run is written. What cannot be taken is refused before any step."""
    config = run_config(run)
    found = [each for each in RunFolder(run).checkpoints() if each.step <= first]
    checkpoint = found[-1] if found else None
    trainer = Trainer(_quiet(config, run), dry_run=True, show=False)
    for step in (first, first if last is None else last):
        if step >= trainer.plan.total_steps:
            what = f"there is no step {step:,}: the run has {trainer.plan.total_steps:,}"
            raise UsageError(f"{what}. Give an earlier one.")
    _refuse_absent(trainer, chosen or {})
    with trainer.open_session() as session, garbage_by_step():
        with trainer.ranks.as_one():
            if checkpoint is not None and trainer.ranks.is_main:
                _link(session, run, checkpoint)
        trainer.load()
        begins = 0 if checkpoint is None else checkpoint.step
        assert trainer.step == begins, "the checkpoint that was linked is the last one"
        loop = Loop(trainer, session)
        before = _take(loop, range(begins, first), {}, over)
        different = {} if checkpoint is None else _different(trainer, checkpoint.state())
        yield Rerun(loop, first, begins, before, different, over)


def _refuse_absent(trainer: Trainer, chosen: Chosen) -> None:
    """UsageError where a source does not have a document that was chosen."""
    for name, documents in chosen.items():
        source = trainer.plan.sources.get(name)
        if source is None or not isinstance(source.blocks, FileBlocks):
            continue
        count = source.blocks.num_documents
        for document in documents or ():
            if document >= count:
                what = f"--without: {name} has no document {document:,}"
                raise UsageError(f"{what}. Give one from 0 to {count - 1:,}.")


def _quiet(config: Config, run: Path) -> Config:
    """The run's config in its own place, without trackers, and without an end by too many skipped updates."""
    place = run.resolve()
    changed: dict[str, Any] = {
        "run": config.run.model_copy(update={"folder": str(place.parent), "name": place.name}),
        "track": config.track.model_copy(update={"trackers": ()}),
        "guard": config.guard.model_copy(update={"max_consecutive_skips": 2**31}),
    }
    return config.model_copy(update=changed)


def _link(session: Session, run: Path, checkpoint: Checkpoint) -> None:
    """Let the temporary folder have the checkpoint to begin from, and those that its KL stages refer to."""
    folder = session.folder.checkpoints_folder
    folder.mkdir(parents=True, exist_ok=True)
    for each in RunFolder(run.resolve()).checkpoints():
        is_reference = each.step in session.references.boundaries and each.step < checkpoint.step
        if is_reference or each.step == checkpoint.step:
            (folder / each.path.name).symlink_to(each.path, target_is_directory=True)


def _different(trainer: Trainer, state: Mapping[str, Any]) -> dict[str, str]:
    keys = ("settings", "versions", "world_size")
    now = {"settings": bit_settings(trainer), "versions": versions(), "world_size": trainer.ranks.size}
    return changed_keys({key: state.get(key) for key in keys}, now)


def _take(loop: Loop, steps: range, chosen: Chosen, over: float | None) -> list[Retaken]:
    """Take steps; one that the config skips is not among them."""
    trainer, session, taken = loop.trainer, loop.session, []
    for step in steps:
        _plan_at(trainer, step)
        if loop.stage_begins(step):
            loop.begin_stage(step)
        if session.guard.skips(step):
            loop.skip(step)
            continue
        limit = session.guard.spike_limit if over is None else over
        trainer.loader.without = _without(trainer, chosen)
        stats = loop.take(step, trainer.loader.batch(step))
        taken.append(Retaken(step, stats.loss, stats.grad_norm, limit, stats.skipped))
    return taken


def _plan_at(trainer: Trainer, step: int) -> None:
    """Plan with what was known at a step: a stage may have ended on a figure there."""
    known = known_at(trainer.decisions, step)
    if known != trainer.plan.decisions:
        trainer.follow(decided_plan(trainer.plan, known))


def _without(trainer: Trainer, chosen: Chosen) -> Without:
    """What is left out of every source: the documents that its config names already, and those that were chosen."""
    names, config = trainer.loader.sources, trainer.config
    merged: dict[str, Sequence[int] | None] = {}
    for name in names:
        base = base_name(config, name)
        own = config.sources[base].without or ()
        if any(each in chosen and chosen[each] is None for each in (name, base)):
            merged[name] = None
        elif own or base in chosen:
            merged[name] = [*own, *(chosen.get(base) or ())]
    return Without.given(trainer.plan, names, merged)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a launch stands before a step: what it needs to come back."""

    step: int
    folder: Path
    guard: dict[str, Any]
    lanes: Mapping[str, Any]

    @classmethod
    def of(cls, loop: Loop) -> "_Place":
        trainer, session = loop.trainer, loop.session
        folder = session.folder.path / f"place-{trainer.step}"
        session.engine.save(folder, background=False).wait()
        lanes = trainer.loader.state_at(trainer.step)["lanes"]
        return cls(trainer.step, folder, session.guard.state(), lanes)

    def restore(self, loop: Loop) -> None:
        trainer, session = loop.trainer, loop.session
        trainer.step = self.step
        _plan_at(trainer, self.step)
        trainer.loader.seek(self.step, self.lanes)
        optimizer = trainer.own.optimizer_of(trainer.plan.optimizer_before(self.step))
        session.engine.load(self.folder, optimizer)
        session.guard.load_state(self.guard)
        session.entered = -1


def chosen_documents(config: Config, given: Sequence[str]) -> dict[str, Sequence[int] | None]:
    """`web:1234` or `web` -> documents by the source that has them, or a whole source."""
    chosen: dict[str, list[int]] = {}
    whole: set[str] = set()
    for text in given:
        name, _, number = text.rpartition(":")
        if text in config.sources:
            whole.add(text)
            continue
        if name not in config.sources or not number.isdecimal():
            known = ", ".join(sorted(config.sources))
            what = f'--without: "{text}" is neither a source nor a document'
            raise UsageError(f"{what}. Write web:1234 or web; the sources are {known}.")
        if isinstance(config.sources[name], StreamSource):
            what = f"--without: {name} is a stream, whose documents have no numbers"
            raise UsageError(f"{what}. Leave the whole source out: --without {name}.")
        chosen.setdefault(base_name(config, name), []).append(int(number))
    return {**chosen, **dict.fromkeys(whole)}
