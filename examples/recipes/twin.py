"""A recipe -> its small twin: a config of the same form that trains in seconds on a CPU, and the text that it reads.

    python examples/recipes/twin.py examples/recipes/olmo-2-32b.toml --out twins

writes twins/olmo-2-32b/olmo-2-32b.toml, and what it reads beside it. One rule makes every twin:

    model       2 layers of 64 (4 where layers differ in fours), heads, feed-forward layer and all else in proportion
    steps       divided by a power of ten, so that there are at most 60; a stage has 3 or more, with cycles 8 or more
    rows        16 in the first stage and 64 tokens long; the others in proportion, with the recipe's batch ramps
    rates       the recipe's curve over these steps; the peak of AdamW and AdEMAMix is 3e-3, as a small model needs
    places      what is counted in steps or tokens (warm-ups, decays, horizons, points, averages) moves with its stage
    documents   views by length and rotary positions are divided as rows are
    sources     made-up text, another one for each; a token is a byte

What needs several ranks or a GPU is left out, and stages that end on a figure have their longest length.
"""

import argparse
import json
import random
import sys
import tomllib
from collections.abc import Callable, Iterator
from math import ceil
from pathlib import Path
from typing import Any

import tomli_w

import trivium
from trivium.config.numbers import parse_count

sys.path.insert(0, str(Path(__file__).parent.parent))
from make_data import documents, sentence, write_ds

MOST_STEPS, LEAST_STEPS, CYCLE_STEPS = 60, 3, 8
WIDTH, HEADS, VOCAB = 64, 4, 266
FIRST_LENGTH, FIRST_ROWS = 64, 16
PEAK = 3e-3
DOCUMENTS, SHORTEST, LONGEST = 60, 16, 2048
Raw = dict[str, Any]


class Scale:
    """Where a recipe's steps and sizes are in its twin."""

    def __init__(self, plan: trivium.Plan) -> None:
        first = plan.stages[0]
        self.plan = plan
        self.rows = FIRST_ROWS / first.batches.size_at(0)
        self.length = FIRST_LENGTH / first.seq_len
        self.divisor = 1
        while sum(self.steps) > MOST_STEPS and self.divisor < 10**9:
            self.divisor *= 10

    @property
    def steps(self) -> list[int]:
        """Steps of each stage of the twin."""
        least = [
            CYCLE_STEPS if stage.config.lr and stage.config.lr.cycle else LEAST_STEPS for stage in self.plan.stages
        ]
        asked = [round((stage.steps or 0) / self.divisor) for stage in self.plan.stages]
        return [max(pair) for pair in zip(asked, least, strict=True)]

    def place(self, step: int) -> int:
        """The twin's step for a step of the recipe, also after its end."""
        before = 0
        for stage, steps in zip(self.plan.stages, self.steps, strict=True):
            assert stage.steps is not None
            if step <= stage.steps:
                return before + round(step * steps / stage.steps)
            before, step = before + steps, step - stage.steps
        return before + round(step / self.divisor)

    def run_step(self, extent: Raw) -> int:
        """The step of the recipe at an extent in steps or tokens."""
        if "steps" in extent:
            return int(extent["steps"])
        tokens, before = count(extent["tokens"]), 0
        for stage in self.plan.stages:
            if stage.tokens is None or stage.steps is None or tokens <= stage.tokens:
                break
            tokens, before = tokens - stage.tokens, before + stage.steps
        return before + stage.steps_for(tokens)


def twin_of(recipe: Path, folder: Path) -> Raw:
    """The twin of a recipe as tables, with its sources below a folder."""
    raw = tomllib.loads(recipe.read_text(encoding="utf-8"))
    scale = Scale(trivium.make_plan(trivium.load_config(recipe)))
    defaults = raw.pop("defaults", {})
    stages = [
        stage_twin({**defaults_for(stage, defaults), **stage}, number, scale)
        for number, stage in enumerate(raw["stages"])
    ]
    is_text = any(source.get("kind") in ("text", "chat") for source in raw["sources"].values())
    needs_fim = any("fim" in source for source in raw["sources"].values())
    tables: Raw = {
        "run": {"name": f"{raw['run']['name']}-twin", "seed": raw["run"].get("seed", 1234)},
        "model": model_twin(raw["model"], scale),
        "optimizer": optimizer_twin(raw.get("optimizer", {}), scale),
        "schedule": schedule_twin(raw.get("schedule", {}), scale),
        "engine": {"device": "cpu"},
        "sources": {name: source_twin(name, source, folder, scale) for name, source in raw["sources"].items()},
        "stages": stages,
    }
    if is_text:
        tables["tokenizer"] = {"path": str(folder / "tokenizer")} if needs_fim else {"kind": "bytes"}
    if needs_fim:
        tables["model"].pop("vocab")  # the tokenizer's
    return {name: table for name, table in tables.items() if table}


def defaults_for(stage: Raw, defaults: Raw) -> Raw:
    """What a stage takes from `[defaults]`: of several keys that decide one thing, none where it has one."""
    either = [{"mixture", "weights", "sources"}, {"batch_size", "batch_tokens"}]
    taken = {key for keys in either if keys & stage.keys() for key in keys}
    return {key: value for key, value in defaults.items() if key not in taken}


def model_twin(model: Raw, scale: Scale) -> Raw:
    """The model's form, small."""
    small = {key: value for key, value in model.items() if key not in ("head_dim", "max_seq_len")}
    layers = 4 if {"no_rope_every", "layers_pattern"} & model.keys() else 2
    if "window" in model:
        small["window"] = max(1, round(count(model["window"]) * scale.length))
    if "depth" in model:
        return {**small, "depth": layers, "width": WIDTH, "heads": HEADS, "vocab": VOCAB}
    small |= {"layers": layers, "width": WIDTH, "heads": HEADS, "vocab": VOCAB}
    if "kv_heads" in model:
        small["kv_heads"] = max(1, HEADS * model["kv_heads"] // model["heads"])
    if "ffn" in model:
        small["ffn"] = ceil(WIDTH * model["ffn"] / model["width"] / 8) * 8
    if "rope" in model:
        small["rope"] = rope_twin(model["rope"], scale)
    return small


def rope_twin(rope: Raw, scale: Scale) -> Raw:
    """Rotary positions over rows that are shorter."""
    if "original_seq_len" not in rope:
        return rope
    return {**rope, "original_seq_len": round(count(rope["original_seq_len"]) * scale.length)}


def optimizer_twin(optimizer: Raw, scale: Scale) -> Raw:
    """The optimizer; AdamW's peak is one that a small model learns with."""
    small = dict(optimizer)
    for key in ("alpha_warmup", "beta3_warmup"):
        if key in small:
            small[key] = max(1, round(small[key] / scale.divisor))
    if small.get("name") in ("adamw", "ademamix"):
        rates = small["lr"] if isinstance(small["lr"], dict) else {"rest": small["lr"]}
        small["lr"] = {group: rate * PEAK / max(rates.values()) for group, rate in rates.items()}
    return small


def schedule_twin(schedule: Raw, scale: Scale) -> Raw:
    """The run's schedule over the twin's steps."""
    small = dict(schedule)
    end = scale.run_step(schedule["horizon"]) if "horizon" in schedule else scale.plan.total_steps or 0
    if "warmup" in schedule:
        small["warmup"] = {"steps": max(1, scale.place(scale.run_step(schedule["warmup"])))}
    if "decay" in schedule:
        begin = scale.place(end - scale.run_step(schedule["decay"]))
        small["decay"] = {"steps": max(1, scale.place(end) - begin)}
    if "horizon" in schedule:
        small["horizon"] = {"steps": scale.place(end)}
    if "extend" in schedule:
        small["extend"] = {key: {"steps": scale.place(scale.run_step(at))} for key, at in schedule["extend"].items()}
    if "points" in schedule:
        small["points"] = points_twin(schedule["points"], lambda point: scale.place(scale.run_step(point)))
    return small


def points_twin(points: list[Raw], place: Callable[[Raw], int]) -> list[Raw]:
    """Points of a curve; those that were apart stay apart."""
    small: list[Raw] = []
    before: Raw = {}
    for point in points:
        at = place(point)
        if small:
            is_jump = {key: before.get(key) for key in ("steps", "tokens")} == {
                key: point.get(key) for key in ("steps", "tokens")
            }
            at = max(at, small[-1]["steps"] + (not is_jump))
        kept = {key: value for key, value in point.items() if key in ("lr", "shape")}
        small.append({"steps": at, **kept})
        before = point
    return small


def stage_twin(stage: Raw, number: int, scale: Scale) -> Raw:
    """A stage of the twin: the recipe's, with its length, rows, rates and positions scaled."""
    planned, steps = scale.plan.stages[number], scale.steps[number]
    assert planned.steps is not None
    within = steps / planned.steps
    length = max(1, round(planned.seq_len * scale.length))
    left_out = ("tokens", "epochs", "until", "engine", "batch_tokens", "max_epochs", "evaluate")
    small = {key: value for key, value in stage.items() if key not in left_out}
    small |= {"steps": steps, "seq_len": length, "batch_size": max(1, round(planned.batch_size * scale.rows))}
    ramp = stage.get("batch_size")
    if isinstance(ramp, dict):
        first, last, by = (max(1, round(ramp[key] * scale.rows)) for key in ("from", "to", "by"))
        over = max(4 * first * length, round(count(ramp["over"]) / (planned.tokens or 1) * steps * last * length))
        small["batch_size"] = {"from": first, "to": last, "by": by, "over": over}
    if "rope" in stage:
        small["rope"] = rope_twin(stage["rope"], scale)
    if "goldfish" in stage:
        small["goldfish"] = {**stage["goldfish"], "h": max(4, round(stage["goldfish"]["h"] * scale.length))}
    if "optimizer" in stage:
        small["optimizer"] = optimizer_twin(stage["optimizer"], scale)
    if "every" in stage.get("average", {}):
        every = (
            planned.steps_for(count(every)) if isinstance(every := stage["average"]["every"], str) else every["steps"]
        )
        small["average"] = {**stage["average"], "every": {"steps": max(1, round(every * within))}}
    if "lr" in stage:
        small["lr"] = stage_lr_twin(stage["lr"], steps, within)
    return small


def stage_lr_twin(lr: Raw, steps: int, within: float) -> Raw:
    """A stage's own curve over fewer steps."""
    small = dict(lr)
    for key in ("warmup", "decay", "half_life"):
        if "steps" in lr.get(key, {}):
            small[key] = {"steps": min(max(1, round(lr[key]["steps"] * within)), max(1, steps - 1))}
    if "cycle" in lr:
        cycle = CYCLE_STEPS // 2
        small["cycle"] = {"steps": cycle, "decay": max(1, round(cycle * lr["cycle"]["decay"] / lr["cycle"]["steps"]))}
    if "points" in lr:
        small["points"] = points_twin(lr["points"], lambda point: round(point["steps"] * within))
    return small


def source_twin(name: str, source: Raw, folder: Path, scale: Scale) -> Raw:
    """A source of made-up text, which is written; a view of one is a view of shorter documents."""
    draw, path = random.Random(name), folder / "texts" / name
    if "from" in source:
        bounds = {
            key: max(1, round(count(source[key]) * scale.length))
            for key in ("min_tokens", "max_tokens")
            if key in source
        }
        return {"from": source["from"], **bounds}
    if source["kind"] == "chat":
        return {"kind": "chat", "tasks": [{"task": task, "size": 200} for task in ("spelling", "counting")]}
    texts = list(made_up(draw))
    if source["kind"] == "text":
        path.mkdir(parents=True, exist_ok=True)
        lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
        (path / "texts.jsonl").write_text(lines, encoding="utf-8")
        return {"kind": "text", "path": str(path), **{key: source[key] for key in ("fim",) if key in source}}
    write_ds(path / "000.ds", [documents(text) for text in texts])
    return {"kind": "tokens", "path": str(path)}


def made_up(draw: random.Random) -> Iterator[str]:
    """Texts of all lengths, from a few words to long ones."""
    for _ in range(DOCUMENTS):
        length = round(SHORTEST * (LONGEST / SHORTEST) ** draw.random())
        text = ""
        while len(text) < length:
            text += f"{sentence(draw)} "
        yield text[:length]


def count(value: int | str) -> int:
    """A count as a config has it."""
    return value if isinstance(value, int) else parse_count(value)


def write_twin(recipe: Path, folder: Path) -> Path:
    """Write a recipe's twin and what it reads; the path of its config."""
    raw = twin_of(recipe, folder)
    path = folder / recipe.name
    path.write_text(tomli_w.dumps(raw), encoding="utf-8")
    if any("fim" in source for source in raw["sources"].values()):
        from trivium.text.train_tokenizer import train_on_texts

        train_on_texts(
            [source["path"] for source in raw["sources"].values()], folder / "tokenizer", vocab=512, fim=True
        )
    return path


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write the small twins of recipes.")
    parser.add_argument("recipes", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, default=Path("twins"))
    given = parser.parse_args()
    for each in given.recipes:
        print(write_twin(each, given.out / each.stem))
