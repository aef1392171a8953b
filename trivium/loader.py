"""Plan + rank -> batches: arithmetic from a step to its rows, one kernel call from rows to arrays.

    loader = Loader(plan, rank=0, world_size=1)
    batch = loader.batch(41_337)                     # this rank's shard of that step
    for step, batch in loader.batches(start=0): ...

A batch depends on the plan and the step alone. Ranks get neighbouring rows of one global batch, so that the
world size never changes the data: 4 rows, 2 ranks -> rows [0, 1] and [2, 3]. Sequential reading plans many
steps at once; a step at random costs some ten microseconds more.
"""

import threading
from collections import OrderedDict, deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trivium.data.batch import Batch
from trivium.data.compiled import compiled
from trivium.data.gather import ROW_ADDRESS, ROW_FILES, ROW_PIECES, gather
from trivium.data.memory import address_of, carray, pointer
from trivium.data.reading import Reading
from trivium.data.window import Window
from trivium.errors import PlanError, Problem, ResumeError, SourceError, TriviumError
from trivium.plan.plan import Plan
from trivium.plan.record import first_difference
from trivium.plan.stage import PlannedStage

Int64s = NDArray[np.int64]

AHEAD_STEPS = 64  # steps that are planned together in sequence, at the most
AHEAD_ROWS = 4096  # and rows
WINDOWS_EACH = 2  # windows of one source that a stage keeps at hand

# What the kernel knows of a window at hand: the positions it covers, and where its arrays are.
SLOT_FIRST, SLOT_END, SLOT_ROW_STARTS, SLOT_PIECES = range(4)


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of some neighbouring steps, found but not yet gathered."""

    first_step: int
    end_step: int
    size: int  # rows of each step
    seq_len: int
    masks_loss: NDArray[np.bool_]  # (rows,) whether a row's loss bytes count
    source: NDArray[np.int32]  # (rows,) index into the plan's sources
    rows: Int64s  # (rows, 3) as `gather` takes them
    windows: tuple[Window, ...]  # kept alive: the rows point into them


class StageReader:
    """Finds the rows of one stage: which source, which window, which pieces."""

    def __init__(self, stage: PlannedStage, names: tuple[str, ...], first_file: dict[str, int]) -> None:
        assert stage.mixture is not None, "a stage whose steps are known has a mixture"
        self.stage = stage
        self.mixture = stage.mixture
        self.segments = [stage.given[name].segment for name in self.mixture.names]
        number_of = {name: number for number, name in enumerate(names)}
        self._source_index = np.array([number_of[name] for name in self.mixture.names], np.int32)
        self._starts = np.array([segment.start if segment else 0 for segment in self.segments], np.int64)
        self._files = np.array([first_file.get(name, 0) for name in self.mixture.names], np.int64)
        self._masks_loss = np.array([stage.given[name].masks_loss for name in self.mixture.names], np.bool_)
        self._slots = np.zeros((len(self.segments), WINDOWS_EACH, 4), np.int64)  # see _find
        self._next_slot = [0] * len(self.segments)
        self._held: dict[tuple[int, int], Window] = {}
        self._at_hand: tuple[Window, ...] = ()
        self._lock = threading.Lock()

    def find(self, step: int, num_steps: int, shard: slice) -> Rows:
        """The rows of some steps, those of a shard only."""
        assert self.stage.start is not None, "only a stage whose place is known is read"
        batch_size = self.stage.batch_size
        sources, source_rows = self.mixture.deal((step - self.stage.start) * batch_size, num_steps * batch_size)
        if shard != slice(0, batch_size):
            sources = np.ascontiguousarray(sources.reshape(-1, batch_size)[:, shard]).reshape(-1)
            source_rows = np.ascontiguousarray(source_rows.reshape(-1, batch_size)[:, shard]).reshape(-1)
        rows = np.empty((len(sources), 3), np.int64)
        with self._lock:
            windows = self._at_hand
            done = _find(sources, source_rows, 0, self._starts, self._files, self._slots, rows)
            while done < len(rows):
                source = int(sources[done])
                windows = (*windows, self._bring(source, int(self._starts[source] + source_rows[done])))
                done = _find(sources, source_rows, done, self._starts, self._files, self._slots, rows)
        return Rows(
            step,
            step + num_steps,
            shard.stop - shard.start,
            self.stage.seq_len,
            self._masks_loss[sources],
            self._source_index[sources],
            rows,
            windows,
        )

    def _bring(self, source: int, position: int) -> Window:
        """Put the window of a position into one of its source's slots."""
        segment = self.segments[source]
        name = self.mixture.names[source]
        if segment is None:
            raise PlanError([Problem(f"sources.{name}", "is not on disk, so that no row of it can be read.")])
        try:
            number, _ = segment.reading.locate(position)
            window = segment.reading.window(number)
        except TriviumError as error:
            raise SourceError(f"source {name}, row {position:,}: {error}") from error
        slot = self._next_slot[source]
        self._next_slot[source] = (slot + 1) % WINDOWS_EACH
        first = segment.reading.rows_before(number)
        addresses = address_of(window.row_starts), address_of(window.pieces)
        self._slots[source, slot] = first, first + window.num_rows, *addresses
        self._held[source, slot] = window
        self._at_hand = tuple(self._held.values())
        return window


@compiled
def _find(
    sources: NDArray[np.int32],
    source_rows: Int64s,
    done: int,
    starts: Int64s,
    files: Int64s,
    slots: Int64s,
    rows: Int64s,
) -> int:
    """Find rows from `done` on; stops at the first whose window is not at hand."""
    for row in range(done, sources.size):
        source = sources[row]
        position = starts[source] + source_rows[row]
        found = False
        for slot in range(slots.shape[1]):
            if slots[source, slot, SLOT_FIRST] <= position < slots[source, slot, SLOT_END]:
                within = position - slots[source, slot, SLOT_FIRST]
                row_starts = carray(pointer(slots[source, slot, SLOT_ROW_STARTS]), (within + 2,), np.int64)
                rows[row, ROW_ADDRESS] = slots[source, slot, SLOT_PIECES] + row_starts[within] * 16
                rows[row, ROW_PIECES] = row_starts[within + 1] - row_starts[within]
                rows[row, ROW_FILES] = files[source]
                found = True
                break
        if not found:
            return row
    return sources.size


class RowReader:
    """Rows of one reading by position, for validation: no mixture and no steps."""

    def __init__(self, source: str, reading: Reading, sources: tuple[str, ...], *, masks_loss: bool = True) -> None:
        self._masks_loss = masks_loss
        table = reading.blocks.table
        self.reading = reading
        self.sources = sources
        self._source = sources.index(source)
        self._files = np.stack((table.tokens, table.itemsize, table.loss), axis=1)

    def batch(self, first: int, count: int) -> Batch:
        """The rows from a position on."""
        rows = np.zeros((count, 3), np.int64)
        windows = []
        for index in range(count):
            number, within = self.reading.locate(first + index)
            window = self.reading.window(number)
            windows.append(window)  # kept alive: the row points into it
            pieces = window.row_pieces(within)
            rows[index, ROW_ADDRESS], rows[index, ROW_PIECES] = address_of(pieces), len(pieces)
        arrays = np.empty((4, count, self.reading.settings.seq_len), np.int32)
        gather(rows, self._files, np.full(count, self._masks_loss), arrays)
        source = np.full(count, self._source, np.int32)
        return Batch(arrays[0], arrays[1], arrays[2], arrays[3], source, self.sources)


class Loader:
    """Batches of one rank; `batch` for any step, `batches` for all of them from a step on."""

    def __init__(
        self,
        plan: Plan,
        rank: int = 0,
        world_size: int = 1,
        *,
        prefetch: int | None = None,
        workers: int | None = None,
    ) -> None:
        _refuse_unknown(plan)
        _refuse_uneven(plan, rank, world_size)
        self.plan = plan
        self.rank = rank
        self.world_size = world_size
        self.prefetch = plan.config.loader.prefetch if prefetch is None else prefetch
        self.workers = max(1, plan.config.loader.workers if workers is None else workers)
        self.step = 0
        self.sources = tuple(sorted(plan.config.sources))
        self._first_file, self._files = _file_table(plan)
        self._readers: OrderedDict[int, StageReader] = OrderedDict()
        self._ahead: Rows | None = None
        self._last_step = -1
        self._lock = threading.Lock()

    def batch(self, step: int) -> Batch:
        """This rank's shard of a step."""
        return self._gather(step, self._rows(step))

    def batches(self, start: int | None = None) -> Iterator[tuple[int, Batch]]:
        """Every step from `start` on (by default from where `state_dict` says) and its batch."""
        self.step = self.step if start is None else start
        total = self.plan.known_steps
        if not 0 <= self.step <= total:
            raise PlanError(
                [Problem("", f"there is no step {self.step:,}: the last of the {total:,} is step {total - 1:,}.")]
            )
        if self.prefetch:
            yield from self._prefetched(self.step, total)
            return
        for step in range(self.step, total):
            batch = self.batch(step)
            self.step = step + 1
            yield step, batch

    def _prefetched(self, first: int, total: int) -> Iterator[tuple[int, Batch]]:
        """Rows are found here, in order; threads gather them ahead. All have ended when this generator has."""
        coming: deque[Future[Batch]] = deque()
        ahead = first
        with ThreadPoolExecutor(self.workers, thread_name_prefix="trivium-loader") as pool:
            try:
                for step in range(first, total):
                    while ahead < total and len(coming) <= self.prefetch:
                        coming.append(pool.submit(self._gather, ahead, self._rows(ahead)))
                        ahead += 1
                    batch = coming.popleft().result()
                    self.step = step + 1
                    yield step, batch
            finally:
                for future in coming:
                    future.cancel()

    def state_dict(self) -> dict[str, Any]:
        """Where `batches` stands, and what decided the steps before: all plain values."""
        step = min(self.step, self.plan.known_steps - 1)
        stage = self.plan.stage_at(step)
        return {
            "step": self.step,
            "stage": stage.index,
            "stage_name": stage.name,
            "fingerprint": self.plan.fingerprint(self.step),
            "record": self.plan.record(self.step),
            "lanes": {},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved step; refuses a plan whose past is another."""
        try:
            step, taken_with, past = int(state["step"]), str(state["fingerprint"]), dict(state["record"])
        except (KeyError, TypeError, ValueError):
            raise ResumeError("this is no state of a loader. Give what its state_dict returned.") from None
        if not 0 <= step <= self.plan.known_steps:
            raise ResumeError(
                f"cannot go on at step {step:,}: the plan has {self.plan.known_steps:,}. Lengthen its last stage."
            )
        if self.plan.fingerprint(step) != taken_with:
            difference = first_difference(past, self.plan.record(step))
            taken = f", and steps 0 to {step - 1:,} have been taken" if step else ""
            found = difference or "its past is another"
            raise ResumeError(f"cannot go on at step {step:,}: {found}{taken}. Put it back, or start a new run.")
        self.step = step

    def _rows(self, step: int) -> Rows:
        """The rows of a step; in sequence, many steps are found at once."""
        with self._lock:
            if self._ahead is None or not self._ahead.first_step <= step < self._ahead.end_step:
                stage = self.plan.stage_at(step)
                assert stage.end is not None, "the loader's plan is complete"
                in_sequence = step == self._last_step + 1
                many = min(AHEAD_STEPS, max(1, AHEAD_ROWS // stage.batch_size), stage.end - step)
                try:
                    self._ahead = self._reader(stage).find(step, many if in_sequence else 1, self._shard(stage))
                except SourceError as error:
                    raise SourceError(f"step {step:,}: {error}") from error
            self._last_step = step
            return self._ahead

    def _shard(self, stage: PlannedStage) -> slice:
        size = stage.batch_size // self.world_size
        return slice(self.rank * size, (self.rank + 1) * size)

    def _reader(self, stage: PlannedStage) -> StageReader:
        """A stage's reader; that of the stage before is kept, others are let go."""
        if stage.index not in self._readers:
            self._readers[stage.index] = StageReader(stage, self.sources, self._first_file)
            if len(self._readers) > 2:
                self._readers.popitem(last=False)
        return self._readers[stage.index]

    def _gather(self, step: int, found: Rows) -> Batch:
        first = (step - found.first_step) * found.size
        stop = first + found.size
        arrays = np.empty((4, found.size, found.seq_len), np.int32)  # fresh ones cost no more than used ones
        gather(found.rows[first:stop], self._files, found.masks_loss[first:stop], arrays)
        return Batch(arrays[0], arrays[1], arrays[2], arrays[3], found.source[first:stop], self.sources)


def _refuse_unknown(plan: Plan) -> None:
    unread = [given for stage in plan.stages for given in stage.given.values() if given.rows and not given.segment]
    if plan.total_steps is None or unread:
        raise PlanError([*plan.gaps, Problem("", "the plan is not complete, so that nothing can be read yet.")])


def _refuse_uneven(plan: Plan, rank: int, world_size: int) -> None:
    """Every rank gets the same number of rows, in every stage."""
    if world_size < 1:
        raise PlanError([Problem("", f"a world of {world_size} ranks reads nothing. Give at least 1.")])
    if not 0 <= rank < world_size:
        raise PlanError([Problem("", f"rank {rank} is not one of {world_size} ranks. Give 0 to {world_size - 1}.")])
    problems = []
    for stage in plan.stages:
        if stage.batch_size % world_size:
            lower = stage.batch_size // world_size * world_size
            near = " or ".join(f"{size:,}" for size in (lower, lower + world_size) if size)
            what = f"is {stage.batch_size:,} rows, which {world_size} ranks cannot share evenly. Write {near}."
            problems.append(Problem(f"stages[{stage.index}].batch_size", what))
    if problems:
        raise PlanError(problems)


def _file_table(plan: Plan) -> tuple[dict[str, int], Int64s]:
    """All sources' files in one table, and where each source's begin."""
    first_file: dict[str, int] = {}
    tables = []
    count = 0
    for name in sorted(plan.sources):
        table = plan.sources[name].blocks.table
        first_file[name] = count
        count += len(table.tokens)
        tables.append(np.stack((table.tokens, table.itemsize, table.loss), axis=1))
    return first_file, np.concatenate(tables) if tables else np.zeros((0, 3), np.int64)
