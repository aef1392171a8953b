"""Raw text -> a folder of token files, in parallel: resumable, atomic, the same for any number of workers.

    00000.ds 00000.ds.index 00000.ds.metadata ... prepared.json manifest.json    or, as Megatron's, 00000.bin 00000.idx

A try that was killed resumes with the shards that are missing; the same text prepared twice is a no-op.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from trivium.cores import available_cores
from trivium.prepare.encode import Job, Outcome, Recipe
from trivium.prepare.folder import FinishedShards, Prepared, find_prepared, identity_of, is_prepared, locked, summed
from trivium.prepare.shards import QueuedShard, Shard, Work
from trivium.prepare.workers import encode_all
from trivium.text.fast_bpe import FastTokenizer, make_fast
from trivium.text.file_tokenizer import FileTokenizer
from trivium.textfiles.bad_lines import MOST_BAD, BadLines, too_many
from trivium.textfiles.progress import say, show_progress

SAMPLES = (
    "The 3 quick brown foxes can't jump over 12,345.67 dogs... IT'S TRUE!\n\n\tdef f(x): return x**2  # ok\r\n",
    "Zw\u00f6lf Boxk\u00e4mpfer; \u0441\u044a\u0435\u0448\u044c \u0435\u0449\u0451; \u5929\u5730\u7384\u9ec3\u3002",
    "\u0645\u0631\u062d\u0628\u0627 \u0928\u092e\u0938\u094d\u0924\u0947 \U0001f469\u200d\U0001f467 \u200b\xa0 \ufb01",
)
WORTH_A_PROCESS = 4 << 20  # bytes of input
FEW_BAD = 100  # too few to stop before all is read


def prepare(
    work: Work, recipe: Recipe, folder: Path, *, title: str, workers: int | None = None, most_bad: float = MOST_BAD
) -> Prepared:
    """Make the token files of an input in `folder`, or find that they are there."""
    identity = identity_of(work, recipe)
    if is_prepared(folder):  # may be on a disk that cannot be written to, not even locked
        there = find_prepared(folder, identity)
        if there is not None:
            return there
    job = recipe.job(folder)
    with locked(folder, title):
        there = find_prepared(folder, identity)
        if there is not None:
            return there
        finished = FinishedShards(folder, identity, recipe)
        job = _with_fast_encoder(job, recipe, title)
        outcomes = Preparation(work, job, finished, most_bad, title).run(workers or enough_workers(work))
        prepared = summed(folder, job.name, outcomes)
        if prepared.bad.harmful > most_bad * prepared.lines:
            raise too_many(prepared.bad, prepared.lines, most_bad, title)
        finished.finish(prepared, outcomes)
    for line in prepared.bad.lines():
        say(f"{title}: skipped {line}")
    return prepared


def _with_fast_encoder(job: Job, recipe: Recipe, title: str) -> Job:
    """The job by the fastest library that gives the same ids; logs which that is."""
    if not isinstance(recipe.tokenizer, FileTokenizer) or recipe.form == "tokenised":
        return job
    reason: FastTokenizer | str = "TRIVIUM_SLOW_ENCODER is set"
    if not os.environ.get("TRIVIUM_SLOW_ENCODER"):
        reason = make_fast(recipe.tokenizer, SAMPLES)
    if isinstance(reason, str):
        say(f"{title}: encoded by tokenizers, not by tiktoken ({reason})")
        return job
    say(f"{title}: encoded by tiktoken, whose ids were compared and are the same")
    return replace(job, fast=reason.pattern)


def enough_workers(work: Work) -> int:
    """As many as this process may use cores; fewer where a process would start longer than it works."""
    return max(1, min(available_cores(), work.total // WORTH_A_PROCESS))


@dataclass(slots=True)
class Preparation:
    """One try at an input."""

    work: Work
    job: Job
    finished: FinishedShards
    most_bad: float
    title: str
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    bad: BadLines = field(default_factory=BadLines)
    lines: int = 0
    size: int = 0

    def run(self, workers: int) -> dict[str, Outcome]:
        """What came of every shard, by name; those of earlier tries too."""
        with show_progress(self.title, self.work.total) as progress:

            def todo() -> Iterator[QueuedShard]:
                for queued in self.work.shards(self.finished):
                    known = self.finished.outcome(queued.shard)
                    if known is None:
                        yield queued
                    else:
                        progress.add(queued.shard.size, 0, 0)
                        self._note(queued.shard, known)

            def done(shard: Shard, outcome: Outcome) -> None:
                self.finished.keep(shard, outcome)
                self._note(shard, outcome)

            encode_all(self.job, todo(), max(1, min(workers, self.work.most_workers)), progress.add, done)
        return dict(sorted(self.outcomes.items()))

    def _note(self, shard: Shard, outcome: Outcome) -> None:
        """Count a finished shard; stop where the bad lines exceed the limit for all lines that are expected."""
        self.outcomes[shard.name] = outcome
        self.bad.join(outcome.bad)
        self.lines += outcome.lines
        self.size += shard.size
        expected = self.lines * max(1.0, self.work.total / max(1, self.size))
        if self.bad.harmful > max(FEW_BAD, self.most_bad * expected):
            raise too_many(self.bad, self.lines, self.most_bad, self.title)
