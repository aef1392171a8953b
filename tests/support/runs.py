"""Runs on disk without training: events of three sources in three stages, with resumes, evaluations and spikes."""

import json
import math
import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

from trivium.run.event_file import EventFile
from trivium.run.events import (
    Ended,
    Evaluated,
    Event,
    Notice,
    Sampled,
    Saved,
    Scored,
    ScoreFigures,
    Skipped,
    Spiked,
    StageBegan,
    Started,
    StepTaken,
)
from trivium.run.folder import RunFolder

SOURCES = {"web": 4_000_000, "code": 900_000, "talk": 300_000}
SCORED = ("spelling", "counting")
BREAKS_OUT = "</script><script>document.title = 'broken out'</script><img src=x onerror=alert(1)>"


class WrittenRun:
    """Writes a run's folder, event by event."""

    def __init__(self, folder: Path, steps: int = 300, name: str = "made", lr: float = 1e-3, seed: int = 1) -> None:
        self.folder = folder
        self.steps = steps
        self.name = name
        self.lr = lr
        self.random = random.Random(seed)
        self.epochs: dict[str, float] = {}
        self.measured_on = "rows"  # the fingerprint of its evaluations
        folder.mkdir(parents=True)
        self.plan = plan_of(name, steps, lr)
        (folder / "plan.json").write_text(json.dumps(self.plan))
        config = {"run": {"name": name}, "optimizer": {"lr": lr}, "stages": [{"name": "general"}, {"name": "long"}]}
        (folder / "config.toml").write_text(tomli_w.dumps(config))

    def tell(self, *events: Event) -> None:
        """Append events."""
        file = EventFile(self.folder / "events.jsonl")
        for event in events:
            file.write(event)
        file.close()

    def tell_raw(self, kind: str, step: int, **fields: Any) -> None:
        """Append an event that lacks fields."""
        with open(self.folder / "events.jsonl", "a") as file:
            file.write(json.dumps({"event": kind, "time": time.time(), "step": step, **fields}) + "\n")

    def start(self, step: int = 0, changes: Mapping[str, str] | None = None) -> None:
        """A launch."""
        self.tell(
            Started(
                step=step,
                run=self.name,
                resumed=step > 0,
                total_steps=self.steps,
                world_size=2,
                versions={"python": "3.11.7", "torch": "2.13.0"},
                settings={"engine": "torch", "device": None, "compile": False},
                changes=changes or {},
                machine={"host": "node-1", "devices": "2 x H100", "commit": "0123456789" * 4},
            )
        )

    def take(self, first: int, last: int) -> None:
        """Steps `first + 1` to `last`, with stages as they begin."""
        events: list[Event] = []
        for step in range(first, last):
            for index, stage in enumerate(self.plan["stages"]):
                if stage["start"] == step:
                    changes = {"seq_len": (256, stage["seq_len"])} if index else {}
                    events.append(StageBegan(step=step, stage=index, name=stage["name"], changes=changes))
            events.append(self.step_taken(step))
        self.tell(*events)

    def step_taken(self, step: int) -> StepTaken:
        """One step with made-up but plausible figures."""
        stage = stage_of(self.plan, step)
        base = 2.0 + 3.5 * math.exp(-6 * step / self.steps)
        loss = base + self.random.gauss(0, 0.05)
        tokens = stage["batch_size"] * stage["seq_len"]
        learnt = {
            name: round(share * tokens * 0.97 * self.random.uniform(0.95, 1.03))
            for name, share in stage["shares"].items()
        }
        for name, share in stage["shares"].items():
            self.epochs[name] = self.epochs.get(name, 0.0) + share * tokens / SOURCES[name]
        seconds = 0.5 + 0.05 * self.random.random()
        return StepTaken(
            step=step + 1,
            stage=stage["name"],
            loss=loss,
            mean_loss=base,
            lr={"matrix": self.lr, "rest": self.lr},
            lr_multiplier=1.0,
            grad_norm=1.0 + self.random.expovariate(2.0),
            tokens=tokens,
            loss_tokens=sum(learnt.values()),
            loss_by_source={name: loss + 0.2 * number for number, name in enumerate(learnt)},
            loss_tokens_by_source=learnt,
            epochs=dict(self.epochs),
            seconds=seconds,
            waited=0.004 * self.random.random(),
            tokens_per_second=tokens / seconds,
            flops_per_second=1e12,
            mfu=0.41,
            flops=1e12 * step,
            training_seconds=0.5 * step,
            percent=100 * (step + 1) / self.steps,
            memory=1_200_000_000,
        )

    def score(self, step: int, questions: str) -> None:
        """Scores of two tasks; `questions` is the fingerprint of what was asked."""
        right: ScoreFigures = {"right": 5, "questions": 10, "chance": 0.0, "score": 0.5, "centred": 0.5}
        asked: Any = {"fingerprint": questions, "fingerprint_by_task": dict.fromkeys(SCORED, questions)}
        self.tell(Scored(step=step, scores=dict.fromkeys(SCORED, right), overall=0.5, seconds=0.1, **asked))

    def evaluate(self, step: int, *, begins: bool = False) -> None:
        """An evaluation, of the stage that ends at this step, or on other rows of the one that begins there."""
        stage = stage_of(self.plan, step if begins or step == 0 else step - 1)["name"]
        if begins:
            self.measured_on = f"rows of {stage}"
        loss = 2.1 + 3.5 * math.exp(-6 * step / self.steps) + (0.4 if begins else 0.0)
        self.tell(
            Evaluated(
                step=step,
                stage=stage,
                loss=loss,
                bits_per_byte=loss / 3.1,
                loss_by_source={"web": loss - 0.1, "code": loss + 0.3},
                bits_per_byte_by_source={"web": loss / 3.2, "code": None},
                tokens=65_536,
                seconds=1.5,
                scores={"accuracy": 1 / loss},
                fingerprint=self.measured_on,
                fingerprint_by_source={"web": self.measured_on, "code": self.measured_on},
                loss_by_position={"0": loss + 0.5, "64": loss, "128": loss - 0.2},
            )
        )

    def save(self, step: int, reason: str = "cadence") -> None:
        """A checkpoint's event."""
        self.tell(Saved(step=step, path=f"step-{step:08d}", bytes=12_300_000, seconds=0.4, reason=reason))

    def end(self, step: int) -> None:
        """The last event of a launch."""
        best = {"validation loss": 2.1}
        self.tell(
            Ended(
                step=step,
                finished=step == self.steps,
                steps=step,
                peak_memory=1_300_000_000,
                training_seconds=0.5 * step,
                best=best,
                world_size=2,
            )
        )


def plan_of(name: str, steps: int, lr: float) -> dict[str, Any]:
    """A plan in the form that `plan_json` gives it."""
    ends = [0, steps // 2, steps * 4 // 5, steps]
    mixtures = [{"web": 0.8, "code": 0.2}, {"web": 0.5, "code": 0.5}, {"talk": 0.75, "web": 0.25}]
    shapes = [("general", 256, 16), ("long", 1024, 4), ("talk", 256, 16)]
    stages = []
    for number, ((stage, seq_len, batch), shares) in enumerate(zip(shapes, mixtures, strict=True)):
        start, end = ends[number], ends[number + 1]
        rows = (end - start) * batch
        stages.append(
            {
                "name": stage,
                "start": start,
                "end": end,
                "steps": end - start,
                "asked": {"steps": end - start},
                "tokens": rows * seq_len,
                "seq_len": seq_len,
                "batch_size": batch,
                "packing": "bestfit",
                "document_mask": True,
                "seed": 1,
                "shares": shares,
                "fade_rows": rows // 4 if number == 1 else 0,
                "lr_multiplier": {"first": 1.0, "last": 1.0},
                "uses": {
                    name: {
                        "rows": round(rows * share),
                        "tokens": round(rows * share) * seq_len,
                        "loss_tokens": round(rows * share * seq_len * 0.97),
                        "figures": {
                            "rows": round(rows * share),
                            "tokens": round(rows * share * seq_len * 0.98),
                            "consumed": round(rows * share * seq_len * 0.98),
                            "pieces": round(rows * share * 3),
                            "cut": round(rows * share),
                            "loss_tokens": round(rows * share * seq_len * 0.97),
                            "unmasked": round(rows * share * seq_len * 0.97),
                        },
                        "epochs": rows * share * seq_len / SOURCES[name],
                        "epochs_so_far": rows * share * seq_len / SOURCES[name],
                    }
                    for name, share in shares.items()
                },
            }
        )
    return {
        "run": name,
        "seed": 1,
        "total_steps": steps,
        "total_tokens": sum(stage["tokens"] for stage in stages),
        "fingerprint": "0" * 32,
        "peak_lr": {"matrix": lr, "rest": lr},
        "lr_curve": [[0, 0.1], [steps // 20, 1.0], [steps * 4 // 5, 1.0], [steps - 1, 0.01]],
        "stages": stages,
        "model": {"layers": 2, "width": 64, "heads": 2, "vocab": 266, "parameters": 140_864},
        "sources": {
            source: {"kind": "tokens", "documents": tokens // 250, "tokens": tokens, "fingerprint": "0"}
            for source, tokens in SOURCES.items()
        },
        "warnings": [],
        "unknown": [],
    }


def stage_of(plan: dict[str, Any], step: int) -> dict[str, Any]:
    """The stage of a step."""
    found: dict[str, Any] = next(stage for stage in plan["stages"] if stage["start"] <= step < stage["end"])
    return found


def row_of(source: str, *documents: int) -> dict[str, Any]:
    """A row as the guard keeps it."""
    return {"row": 0, "source": source, "pieces": [{"document": document} for document in documents]}


def eventful_run(folder: Path, name: str = "made", lr: float = 1e-3, seed: int = 1) -> WrittenRun:
    """300 steps: killed at 130, resumes at 100; stopped at 200; a spike, a skipped step, texts that bite."""
    run = WrittenRun(folder, 300, name, lr, seed)
    run.start()
    run.evaluate(0)
    run.take(0, 100)
    run.evaluate(100)
    run.save(100)
    run.take(100, 130)
    run.evaluate(120)
    with open(folder / "events.jsonl", "a") as file:
        file.write('{"event": "step", "time": 17')
    run.start(100)
    run.take(100, 160)
    run.evaluate(150)
    run.save(150, "boundary")
    run.evaluate(150, begins=True)
    rows = RunFolder(folder).write_rows(154, [row_of("web", 812, 97), row_of("code", 7), row_of("web", 97, 5)])
    run.tell(Spiked(step=155, stage="long", loss=9.5, limit=3.2, rows=rows))
    run.tell(Skipped(step=156, stage="long", why="the loss is nan"))
    run.tell(Notice(step=160, text=f"told to stop {BREAKS_OUT}"))
    run.take(160, 200)
    run.end(200)
    run.start(200, {"stages[2].mixture.talk": "0.7 -> 0.75"})
    run.take(200, 300)
    run.tell(Sampled(step=240, prompt="The cat", text=f" sat on {BREAKS_OUT}"))
    run.evaluate(240)
    run.evaluate(240, begins=True)
    run.evaluate(300)
    run.save(300, "final")
    run.end(300)
    return run
