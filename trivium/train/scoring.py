"""Scores and texts of a run: tasks' questions and prompts that the config names, asked at chosen steps.

Nothing of training changes by it: no draw, no weight, no place in the data.
"""

import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from trivium.ask.generate.generate import generate
from trivium.ask.generate.row import Writing, text_ends
from trivium.ask.generate.sampling import Sampling
from trivium.ask.open import begins_with, prompt_tokens
from trivium.ask.score.examine import Examinee, examine, overall
from trivium.ask.score.questions import exam_tokenizer, open_exams, refuse_unaskable
from trivium.engine.base import Engine
from trivium.engine.ranks import Ranks
from trivium.errors import PlanError, Problem
from trivium.files import hash_json
from trivium.plan.plan import CompletePlan
from trivium.plan.stage import CompleteStage
from trivium.run.events import Sampled, Scored

TEMPERATURE = 0.8  # of texts that are sampled
ReaderIn = Callable[[CompleteStage], tuple[int, int]]


class Scoring:
    """What a run's model is asked; opened once, when the run starts."""

    def __init__(self, plan: CompletePlan, engine: Engine, ranks: Ranks, reader_in: ReaderIn) -> None:
        """`reader_in` gives this rank's number among those that read in a stage, and how many these are."""
        self._engine = engine
        self._ranks = ranks
        self._reader_in = reader_in
        self._config, self._spec = plan.config, plan.model
        self._settings = plan.config.evaluate
        if self._settings.tasks or self._settings.prompts:
            self._tokenizer = exam_tokenizer(plan.config)
        shortest = min(stage.seq_len for stage in plan.stages)
        self._prompts = self._prompt_tokens(max(plan.model.max_seq_len, shortest))
        tasks, questions = self._settings.tasks, self._settings.questions
        self._exams = open_exams(tasks, questions, self._tokenizer) if tasks else []
        refuse_unaskable(self._exams, max(plan.model.max_seq_len, shortest))

    def score(
        self, step: int, stage: CompleteStage, beat: Callable[[], None], *, averaged: bool = False
    ) -> Scored | None:
        """The scores of every task, on all ranks; None where the config names none.

        `averaged` says that the engine's weights are their average now: such scores are compared with their like alone.
        """
        if not self._exams:
            return None
        started = time.perf_counter()
        seq_len = max(self._spec.max_seq_len, stage.seq_len)
        room = min(self._settings.max_new_tokens, seq_len - 1)
        who = Examinee(self._engine, self._tokenizer, seq_len, room, self._ranks, *self._reader_in(stage))
        scores = {}
        for exam in self._exams:
            scores[exam.name] = examine(who, exam)
            beat()
        fingerprints = {exam.name: exam.fingerprint for exam in self._exams}
        if averaged:
            fingerprints = {name: hash_json(["average", each]) for name, each in fingerprints.items()}
        return Scored(
            step=step,
            scores={name: score.figures() for name, score in scores.items()},
            overall=overall(scores),
            seconds=time.perf_counter() - started,
            fingerprint=hash_json(fingerprints),
            fingerprint_by_task=fingerprints,
            stage=stage.name,
            averaged=averaged,
        )

    def sample(self, step: int, stage: CompleteStage) -> list[Sampled]:
        """A text after each prompt, the same draws every time; written by the rank that reads first."""
        prompts = self._settings.prompts or ()
        if not prompts:
            return []
        seq_len = max(self._spec.max_seq_len, stage.seq_len)
        words = self._tokenizer
        room = min(self._settings.max_new_tokens, seq_len - max(len(each) for each in self._prompts))
        own = self._prompts if self._reader_in(stage)[0] == 0 else []
        sampling = Sampling(temperature=TEMPERATURE, seed=self._config.run.seed)
        writing = Writing(room, text_ends(words), sampling, vocab=words.vocab)
        rows = generate(self._engine, own, writing, ranks=self._ranks)
        return [
            Sampled(step=step, prompt=prompt, text=words.decode(row.tokens))
            for prompt, (row,) in zip(prompts, rows, strict=False)  # none on other ranks
        ]

    def _prompt_tokens(self, row: int) -> list[NDArray[np.uint32]]:
        """The tokens of every prompt; PlanError with each that leaves no room in a row."""
        prompts = self._settings.prompts or ()
        if not prompts:
            return []
        before = begins_with(self._config, self._tokenizer)
        tokens = [prompt_tokens(text, self._tokenizer, before) for text in prompts]
        problems = [
            Problem(f"evaluate.prompts[{number}]", f"has {len(each):,} tokens, and rows have {row:,}. Shorten it.")
            for number, each in enumerate(tokens)
            if len(each) >= row
        ]
        if problems:
            raise PlanError(problems)
        return tokens
