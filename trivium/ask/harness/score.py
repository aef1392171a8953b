"""A model's folder and the harness's tasks -> its scores, in the run's events where the folder is a run's."""

import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from lm_eval.evaluator import evaluate

from trivium.ask.harness.bars import no_bars
from trivium.ask.harness.model import EngineLM
from trivium.ask.harness.tasks import open_tasks, sandboxed
from trivium.ask.open import open_model
from trivium.errors import UsageError
from trivium.files import hash_json
from trivium.model.huggingface import CONFIG_FILE
from trivium.run.event_file import EventFile
from trivium.run.events import Scored, ScoreFigures
from trivium.run.folder import find_checkpoint
from trivium.screen import under_way

EVENTS = "events.jsonl"
BY_CHOICE = ("acc", "acc_norm", "acc_bytes")  # metrics that guessing gets right by chance


def score_by_harness(
    folder: Path, tasks: str, questions: int, step: int | None, tokenizer: str | None, *, averaged: bool = False
) -> dict[str, Any]:
    """Ask at most this number of questions of each task; a run's scores are written to its events too."""
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    with sandboxed(), no_bars(), under_way(f"asking the tasks of the harness: {tasks}"):
        opened = open_tasks(tasks)
        model = open_model(folder, step, tokenizer, averaged=averaged)
        started = time.perf_counter()
        try:
            results = evaluate(
                lm=EngineLM(model),
                task_dict=opened,
                limit=questions,
                bootstrap_iters=0,
                log_samples=True,
            )
        except TemplateError as error:
            raise UsageError(f"--harness: a template of {tasks} cannot be rendered: {error}.") from None
    assert results is not None, "one process has the results"
    measured = list(_measured(results))
    scores = {each.name: each.as_score() for each in measured if each.is_score}
    figures = {each.name: each.value for each in measured if not each.is_score}
    fingerprints = {each.name: each.asked for each in measured}
    overall = sum(score["centred"] for score in scores.values()) / max(1, len(scores))
    harness = f"lm-eval {version('lm-eval')}"
    if not (folder / CONFIG_FILE).exists():
        checkpoint = find_checkpoint(folder, step)
        event = Scored(
            step=checkpoint.step,
            scores=scores,
            overall=overall,
            seconds=time.perf_counter() - started,
            fingerprint=hash_json(fingerprints),
            fingerprint_by_task=fingerprints,
            stage=str(checkpoint.state()["stage_name"]),
            averaged=averaged,
            harness=harness,
            figures=figures,
        )
        _write(checkpoint.path.parent.parent / EVENTS, event)
    return {"model": model.title, "harness": harness, "tasks": scores, "figures": figures, "centred": overall}


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric of one task, over its questions."""

    name: str
    value: float
    questions: int
    chance: float  # of being right by guessing
    is_score: bool  # whether it is a fraction, the higher the better
    asked: str  # a hash of the questions

    def as_score(self) -> ScoreFigures:
        """As a score of our own tasks is."""
        centred = (self.value - self.chance) / (1 - self.chance)
        right = round(self.value * self.questions)
        return ScoreFigures(
            right=right, questions=self.questions, chance=self.chance, score=self.value, centred=centred
        )


def _measured(results: Mapping[str, Any]) -> Iterator[Metric]:
    """Each metric of each task; standard errors are left out."""
    for task, found in results["results"].items():
        count = int(results["n-samples"].get(task, {}).get("effective", 0))
        better, config = results["higher_is_better"].get(task, {}), results["configs"].get(task, {})
        plain = {key: str(value) for key, value in config.items()}
        asked = hash_json([plain, count, results["versions"].get(task), _hashes(results, task)])
        chance = _chance(results, task) if config.get("output_type") == "multiple_choice" else 0.0
        for key, value in found.items():
            metric, comma, chosen = key.partition(",")
            if not comma or metric.endswith("_stderr") or not isinstance(value, int | float):
                continue
            name = f"{task} {metric}" + ("" if chosen == "none" else f" ({chosen})")
            is_score = bool(better.get(metric)) and 0 <= value <= 1
            yield Metric(name, float(value), count, chance if metric in BY_CHOICE else 0.0, is_score, asked)


def _chance(results: Mapping[str, Any], task: str) -> float:
    """The part of the questions that guessing gets right: a question has an argument for each of its choices."""
    choices = [len(each["arguments"]) for each in results.get("samples", {}).get(task, ())]
    return sum(1 / max(2, count) for count in choices) / len(choices) if choices else 0.0


def _hashes(results: Mapping[str, Any], task: str) -> list[str]:
    """Of every question and its right answer, as the harness made them."""
    samples = results.get("samples", {}).get(task, ())
    return [f"{each.get('doc_hash')} {each.get('prompt_hash')} {each.get('target_hash')}" for each in samples]


def _write(path: Path, event: Scored) -> None:
    if not path.is_file():
        return  # a checkpoint that was copied away from its run
    file = EventFile(path)
    file.write(event)
    file.close()
