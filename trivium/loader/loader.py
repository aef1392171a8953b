"""Plan + rank -> batches: arithmetic from a step to its rows, one kernel call from rows to arrays.

    with Loader(plan, rank=0, world_size=1) as loader:
        batch = loader.batch(41_337)  # this rank's shard of that step
        for step, batch in loader: ...

A batch depends on the plan and the step alone. Ranks get neighbouring rows of one global batch, so that the
world size never changes the data: 4 rows, 2 ranks -> rows [0, 1] and [2, 3]. Sequential reading plans many
steps at once; a step at random costs some ten microseconds more. A stream goes through all rows before a step,
so that `state_dict` carries the state of its lanes.
"""

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from trivium.engine.mesh import MeshShape
from trivium.errors import PlanError, Problem, ResumeError, SourceError
from trivium.loader.stage_reader import FoundRows, StageReader
from trivium.loader.streams import Streams
from trivium.loader.unknown_ids import unknown_in_file, unknown_in_stream
from trivium.loader.without import Without
from trivium.plan.plan import Plan
from trivium.plan.record import first_difference
from trivium.plan.settings import stage_mesh
from trivium.plan.stage import CompleteStage, PlannedStage
from trivium.rows.batch import Batch
from trivium.rows.gather import gather
from trivium.screen import as_html

LOG = logging.getLogger("trivium")
AHEAD_STEPS = 64  # steps that are planned together in sequence, at the most
AHEAD_ROWS = 4096  # and rows


class Loader:
    """Batches of one rank: `batch` for any step, `batches` for all of them from a step on.

    Close it when done, or use it in a `with` statement: a stream has threads of its own. With a `mesh`, ranks that
    share rows or matrices get the same rows; without one every rank gets its own. Ranks must be able to share every
    batch from step `start` on, up to step `end` where others go on from there.
    """

    def __init__(
        self,
        plan: Plan,
        rank: int = 0,
        world_size: int = 1,
        *,
        mesh: MeshShape | None = None,
        start: int = 0,
        end: int | None = None,
        prefetch: int | None = None,
        workers: int | None = None,
    ) -> None:
        self.plan = plan = plan.readable()
        refuse_uneven(plan, rank, world_size, mesh, start, end)
        self.start = start
        self.end = end
        self.mesh = mesh
        self.rank = rank
        self.world_size = world_size
        self.prefetch = plan.config.loader.prefetch if prefetch is None else prefetch
        self.workers = max(1, plan.config.loader.workers if workers is None else workers)
        self.step = 0
        self.sources = tuple(sorted(plan.config.sources))
        self.without = Without.of(plan, self.sources)  # documents that do not count in the loss
        self.say: Callable[[str], None] = LOG.warning
        self.stopping: Callable[[], bool] = lambda: False  # asked while a stream is waited for
        # Rows are found ahead of the batches that are taken: a state may be asked for there, or a step again.
        keep_rows = AHEAD_ROWS + max(stage.batch_size for stage in plan.stages) * (self.prefetch + 3)
        self.streams = Streams(plan, lambda text: self.say(text), lambda: self.stopping(), keep_rows)
        self._readers: OrderedDict[int, StageReader] = OrderedDict()
        # The last ones, those of the step that was taken last among them.
        self._found: deque[FoundRows] = deque(maxlen=self.prefetch + 2)
        self._last_step = -1
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Steps of the whole run."""
        return self.plan.total_steps

    def __getitem__(self, step: int) -> Batch:
        """The batch of a step, as `batch` gives it; IndexError after the last, as loops expect it."""
        if not -len(self) <= step < len(self):
            raise IndexError(f"there is no step {step:,}: the run has {len(self):,}.")
        return self.batch(step % len(self))

    def __iter__(self) -> Iterator[tuple[int, Batch]]:
        """Every step from the current one on, and its batch."""
        return self.batches()

    def __enter__(self) -> "Loader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as its plan and where it stands, so that it may be sent to another process."""
        named = {key: getattr(self, key) for key in ("mesh", "start", "end", "prefetch", "workers")}
        state = self.step, self.state_at(self.step)["lanes"]
        return partial(Loader, **named), (self.plan, self.rank, self.world_size), state

    def __setstate__(self, state: tuple[int, Mapping[str, Any]]) -> None:
        self.seek(*state)

    def __repr__(self) -> str:
        """`Loader of small: rank 0 of 1, at step 12 of 300 (stage long, 4 rows of 1,024)`."""
        where = f"rank {self.rank} of {self.world_size}, at step {self.step:,} of {len(self):,}"
        stage = self.plan.stage_at(min(self.step, len(self) - 1))
        size = stage.size_at(min(self.step, len(self) - 1))
        return (
            f"Loader of {self.plan.config.run.name}: {where} (stage {stage.name}, {size:,} rows of {stage.seq_len:,})"
        )

    def _repr_html_(self) -> str:
        """Where it stands, and its plan, in a notebook."""
        return as_html(lambda console: console.print(repr(self), highlight=False)) + self.plan._repr_html_()

    def batch(self, step: int) -> Batch:
        """This rank's rows of any step, in any order of calls; a stream is read forward alone."""
        return self._gather(step, self._rows(step))

    def rows(self, step: int, start: int, stop: int) -> Batch:
        """Some of this rank's rows of any step; the others are not read."""
        found = self._rows(step)
        if not 0 <= start < stop <= found.size:
            what = f"step {step:,} has rows 0 to {found.size - 1:,} here, and {start:,} to {stop - 1:,} were asked for."
            raise PlanError([Problem("", what)])
        return self._gather(step, found, start, stop)

    def batches(self, start: int | None = None) -> Iterator[tuple[int, Batch]]:
        """Every step from `start` on (by default from the current one) and its batch."""
        self.step = self.step if start is None else start
        total = self.plan.total_steps
        end = total if self.end is None else min(self.end, total)
        if not 0 <= self.step <= total:
            what = f"there is no step {self.step:,}: the run has {total:,} steps, from 0 to {total - 1:,}."
            raise PlanError([Problem("", what)])
        if self.prefetch:
            yield from self._prefetched(self.step, end)
            return
        for step in range(self.step, end):
            batch = self.batch(step)
            self.step = step + 1
            yield step, batch

    def _prefetched(self, first: int, end: int) -> Iterator[tuple[int, Batch]]:
        """Rows are found here, in order; threads gather them ahead. All have ended when this generator has."""
        coming: deque[Future[Batch]] = deque()
        ahead = first
        with ThreadPoolExecutor(self.workers, thread_name_prefix="trivium-loader") as pool:
            try:
                for step in range(first, end):
                    while ahead < end and len(coming) <= self.prefetch:
                        coming.append(pool.submit(self._gather, ahead, self._rows(ahead)))
                        ahead += 1
                    batch = coming.popleft().result()
                    self.step = step + 1
                    yield step, batch
            finally:
                for future in coming:
                    future.cancel()

    def state_dict(self) -> dict[str, Any]:
        """The current step, and what decided the steps before it: all plain values."""
        return self.state_at(self.step)

    def state_at(self, step: int) -> dict[str, Any]:
        """The state at a step, for `load_state_dict`; a stream that is not there yet is read up to it."""
        stage = self.plan.stage_at(min(step, len(self) - 1))
        with self._lock:
            lanes = self.streams.state(step)
        return {
            "step": step,
            "stage": stage.index,
            "stage_name": stage.name,
            "fingerprint": self.plan.fingerprint(step),
            "record": self.plan.record(step),
            "lanes": lanes,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved step; refuses a state whose earlier steps are not those of this plan."""
        try:
            step, saved, record = int(state["step"]), str(state["fingerprint"]), dict(state["record"])
        except (KeyError, TypeError, ValueError):
            raise ResumeError("this is not the state of a loader. Give what its state_dict returned.") from None
        if 0 <= step <= len(self) and self.plan.fingerprint(step) != saved:
            difference = first_difference(record, self.plan.record(step))
            taken = f", and steps 0 to {step - 1:,} have been taken" if step else ""
            found = difference or "this plan's earlier steps differ from the saved ones"
            raise ResumeError(f"cannot resume at step {step:,}: {found}{taken}. Put it back, or start a new run.")
        self.seek(step, state.get("lanes", {}))

    def seek(self, step: int, lanes: Mapping[str, Any]) -> None:
        """Continue from a step with the state of the streams there; whether it is the same run's is not checked."""
        if not 0 <= step <= len(self):
            raise ResumeError(f"cannot resume at step {step:,}: the plan has {len(self):,}. Lengthen its last stage.")
        with self._lock:
            self.streams.load(lanes, step)
        self.step = step

    def followed(self, plan: Plan, step: int, end: int | None = None) -> "Loader":
        """A loader that goes on from a step by another plan, with the same steps before it; closes this one.

        What was read ahead for the old plan is read again: a stream goes on as after a resume at that step.
        """
        with self._lock:
            lanes = self.streams.state(step)
        self.close()
        how = {"prefetch": self.prefetch, "workers": self.workers}
        other = Loader(plan, self.rank, self.world_size, mesh=self.mesh, start=step, end=end, **how)
        other.say, other.stopping = self.say, self.stopping
        other.seek(step, lanes)
        return other

    def close(self) -> None:
        """Let the threads of streams end; without streams nothing happens."""
        self.streams.close()

    def rows_in_memory(self, step: int) -> FoundRows | None:
        """The rows of a step, if they have been found and are still in memory; reads nothing."""
        for found in reversed(self._found):
            if found.first_step <= step < found.end_step:
                return found
        return None

    def _rows(self, step: int) -> FoundRows:
        """The rows of a step; in sequence, many steps are found at once."""
        with self._lock:
            found = self.rows_in_memory(step)
            if found is None:
                reader = self._reader(self.plan.stage_at(step))
                number, readers = self.reader_in(reader.stage)
                rows = reader.stage.size_at(step)
                size, rest = divmod(rows, readers)
                if rest:  # of a step before `start`
                    raise PlanError(_uneven(reader.stage, readers, step - reader.stage.start))
                shard = slice(number * size, (number + 1) * size)
                steps = 1
                if step == self._last_step + 1:
                    steps = min(AHEAD_STEPS, max(1, AHEAD_ROWS // rows), reader.end_of_size(step) - step)
                try:
                    found = reader.find(step, steps, shard)
                except SourceError as error:
                    raise SourceError(f"step {step:,}: {error}") from error
                self._found.append(found)
            self._last_step = step
            return found

    def reader_in(self, stage: CompleteStage) -> tuple[int, int]:
        """This rank's number among those that read rows of their own in a stage, and how many these are."""
        return _reader_in(stage, self.rank, self.world_size, self.mesh)

    def _reader(self, stage: CompleteStage) -> StageReader:
        """A stage's reader; that of the stage before is kept, others are let go."""
        reader = self._readers.get(stage.index)
        if reader is None:
            reader = self._readers[stage.index] = StageReader(stage, self.sources, self.streams, self._vocabs(stage))
            if len(self._readers) > 2:
                self._readers.popitem(last=False)
        return reader

    def _gather(self, step: int, found: FoundRows, start: int = 0, stop: int | None = None) -> Batch:
        before = (step - found.first_step) * found.size
        first, stop = before + start, before + (found.size if stop is None else stop)
        arrays = np.empty((4, stop - first, found.seq_len), np.int32)  # fresh ones cost no more than used ones
        row, file, offset = gather(found.rows[first:stop], arrays, *found.goldfish.rule)
        if row >= 0:
            raise SourceError(f"step {step:,}: {self._unknown_id(found, first + row, file, offset)}")
        self.without.apply(found.rows[first:stop], found.source[first:stop], arrays[1])
        return Batch(arrays[0], arrays[1], arrays[2], arrays[3], found.source[first:stop], self.sources)

    def _vocabs(self, stage: CompleteStage) -> dict[str, int]:
        """By source, how many ids it may have in a stage: those that the model knows, else what the source says."""
        return {name: stage.vocab or self._own_ids(name) for name in self.sources}

    def _own_ids(self, name: str) -> int:
        if name in self.streams.lanes:
            return self.streams.lanes[name].stream.tokenizer.vocab
        return self.plan.sources[name].largest_id + 1 if name in self.plan.sources else 0

    def _unknown_id(self, found: FoundRows, row: int, file: int, offset: int) -> SourceError:
        name = self.sources[found.source[row]]
        vocab = self._vocabs(self.plan.stage_at(found.first_step))[name]
        documents = found.streamed(row)
        if documents is not None:
            return unknown_in_stream(name, documents[file], offset, vocab)
        return unknown_in_file(name, self.plan.sources[name].blocks, file, offset, vocab)


def _reader_in(stage: PlannedStage, rank: int, world_size: int, mesh: MeshShape | None) -> tuple[int, int]:
    if mesh is None:
        return rank, world_size
    mesh = stage_mesh(mesh, stage.config)
    return mesh.reader(rank, world_size), mesh.readers(world_size)


def refuse_uneven(
    plan: Plan, rank: int, world_size: int, mesh: MeshShape | None = None, start: int = 0, end: int | None = None
) -> None:
    """Every rank gets the same number of rows, in every step from `start` on, of stages that begin before `end`."""
    if world_size < 1:
        raise PlanError([Problem("", f"a world of {world_size} ranks reads nothing. Give at least 1.")])
    if not 0 <= rank < world_size:
        raise PlanError([Problem("", f"rank {rank} is not one of {world_size} ranks. Give 0 to {world_size - 1}.")])
    problems = []
    for stage in plan.stages_between(start, end):
        _, readers = _reader_in(stage, rank, world_size, mesh)
        problems += _uneven(stage, readers, max(0, start - (stage.start or 0)))
    if problems:
        raise PlanError(problems)


def _uneven(stage: PlannedStage, readers: int, since: int) -> list[Problem]:
    """The first size of a stage's steps that readers cannot share, from a step of the stage on."""
    reached = [piece for piece in stage.batches.since(since) if stage.steps is None or piece.step < stage.steps]
    piece = next((piece for piece in reached if piece.size % readers), None)
    if piece is None:
        return []
    config, where = stage.config, f"stages[{stage.index}].batch_size"
    lower = piece.size // readers * readers
    near = " or ".join(f"{size:,}" for size in (lower, lower + readers) if size)
    at, fix = "", f"Write {near}."
    if piece.size != config.batches.size_at(piece.step):
        at, fix = f" at step {(stage.start or 0) + piece.step:,}, as was decided there", f"Give --batch-size {near}."
    elif config.batch_tokens is not None and config.batch_tokens.is_ramp:
        at, where = f" at step {piece.step:,} of the stage", f"stages[{stage.index}].batch_tokens"
        fix = f"Write multiples of {readers * stage.seq_len:,} for from, to and by."
    elif config.batch_tokens is None and config.batch_size.is_ramp:
        at, fix = f" at step {piece.step:,} of the stage", f"Write multiples of {readers:,} for from, to and by."
    return [Problem(where, f"is {piece.size:,} rows{at}, which {readers} ranks cannot share evenly. {fix}")]
