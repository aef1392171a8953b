"""Scores and texts of a run: tasks' questions and prompts that the config names, asked at chosen steps.

Nothing of training changes by it: no draw, no weight, no place in the data.
"""

import time
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from trivium.ask.generate.generate import generate
from trivium.ask.generate.row import Writing, text_ends
from trivium.ask.generate.sampling import Sampling
from trivium.ask.open import begins_with, prompt_tokens
from trivium.ask.score.examine import Examinee, examine, overall
from trivium.ask.score.questions import exam_tokenizer, open_exams
from trivium.config.schema import Config
from trivium.errors import PlanError, Problem
from trivium.model.spec import ModelSpec
from trivium.run.events import Sampled, Scored

if TYPE_CHECKING:
    from trivium.train.trainer import Trainer

TEMPERATURE = 0.8  # of texts that are sampled


class Scoring:
    """What a run's model is asked; opened once, when the run starts."""

    def __init__(self, config: Config, spec: ModelSpec, shortest: int) -> None:
        """`shortest` are the tokens of a row in the stage that has the fewest."""
        self._said = config.evaluate
        self._config = config
        self._spec = spec
        if self._said.tasks or self._said.prompts:
            self._tokenizer = exam_tokenizer(config)
        self._prompts = self._prompt_tokens(max(spec.max_seq_len, shortest))
        self._exams = open_exams(self._said.tasks, self._said.questions, self._tokenizer) if self._said.tasks else []

    def score(self, trainer: "Trainer") -> Scored | None:
        """The scores of every task, on all ranks; None where the config names none."""
        if not self._exams:
            return None
        started = time.perf_counter()
        seq_len = max(self._spec.max_seq_len, trainer.stage.seq_len)
        who = Examinee(
            trainer.engine,
            self._tokenizer,
            seq_len,
            min(self._said.answer_tokens, seq_len - 1),
            trainer.ranks,
            trainer.loader.rank,
            trainer.loader.world_size,
        )
        scores = {}
        for exam in self._exams:
            scores[exam.name] = examine(who, exam)
            trainer.beat()
        return Scored(
            step=trainer.step,
            scores={name: score.figures() for name, score in scores.items()},
            overall=overall(scores),
            seconds=time.perf_counter() - started,
        )

    def sample(self, trainer: "Trainer") -> list[Sampled]:
        """A text after each prompt, the same draws every time; written by the rank that reads first."""
        prompts = self._said.prompts or ()
        if not prompts:
            return []
        seq_len = max(self._spec.max_seq_len, trainer.stage.seq_len)
        words = self._tokenizer
        room = min(self._said.answer_tokens, seq_len - max(len(each) for each in self._prompts))
        own = self._prompts if trainer.loader.rank == 0 else []
        sampling = Sampling(temperature=TEMPERATURE, seed=self._config.run.seed)
        writing = Writing(room, text_ends(words), sampling, vocab=words.vocab)
        rows = generate(trainer.engine, own, writing, ranks=trainer.ranks)
        return [
            Sampled(step=trainer.step, prompt=prompt, text=words.decode(row.tokens))
            for prompt, (row,) in zip(prompts, rows, strict=False)  # none on other ranks
        ]

    def _prompt_tokens(self, row: int) -> list[NDArray[np.uint32]]:
        """The tokens of every prompt; PlanError with each that leaves no room in a row."""
        prompts = self._said.prompts or ()
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
