"""A run's checkpoint -> README.md beside its weights: what the model is, what it read, in which stages, how it scored.

The tables are those of the run's page. Paths of this machine and credentials in addresses stay out: of a local source
the card has the last part of its path.
"""

import json
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path, PurePath
from typing import Any

import tomli_w

from trivium.config.numbers import show_count
from trivium.config.redact import redacted
from trivium.config.schema import Config
from trivium.errors import UsageError
from trivium.model.folder import read_spec
from trivium.model.words import layer_line
from trivium.report.charts import PageTable
from trivium.report.parts.plan import plan_tables
from trivium.report.read import EventLog, RunFiles
from trivium.report.run import ShownRun
from trivium.report.summary import tokens_before
from trivium.run.events import Evaluated, Scored
from trivium.run.folder import Checkpoint, find_checkpoint

SHOWN_TABLES = ("stages", "reads", "sources")
PATH_KEYS = ("path", "init", "folder", "config", "copy_to")  # whose values may be places on this machine
USE = """```python
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(".")
model = AutoModelForCausalLM.from_pretrained(".")
prompt = tokenizer("Once upon a time", return_tensors="pt", return_token_type_ids=False)
print(tokenizer.decode(model.generate(**prompt, max_new_tokens=50)[0]))
```"""


def model_card(run: Path, step: int | None = None, *, averaged: bool = False) -> str:
    """The text of a model's README.md; of a checkpoint without its run's files only what it knows itself."""
    checkpoint = find_checkpoint(run, step)
    config = Config.model_validate(checkpoint.state()["config"])
    files = _files_of(checkpoint)
    parts = [_front(config), f"# {config.run.name}", _what(checkpoint, files, averaged=averaged), USE]
    if files is not None:
        shown = ShownRun(files.name, files.plan)
        tables = [each for each in plan_tables(shown, several=False) if isinstance(each, PageTable)]
        for table in tables:
            if table.id in SHOWN_TABLES:
                parts += [f"## {table.title}", _table(table.columns, table.rows), *([table.note] if table.note else [])]
        parts += _figures(files.log, checkpoint.step)
    parts += ["## Config", f"```toml\n{_config(config)}```"]
    return "\n\n".join(parts) + "\n"


def _files_of(checkpoint: Checkpoint) -> RunFiles | None:
    """The files of the run that a checkpoint is in; None where it was copied elsewhere by itself."""
    try:
        return RunFiles(checkpoint.path.parents[1])
    except UsageError:
        return None


def _front(config: Config) -> str:
    """The keys that the Hub reads."""
    datasets = sorted({name for source in config.sources.values() if (name := getattr(source, "dataset", None))})
    keys = {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["trivium"],
        **({"datasets": [name for name in datasets if _is_hub_name(name)]} if datasets else {}),
    }
    return "\n".join(["---", *(f"{key}: {json.dumps(value)}" for key, value in keys.items()), "---"])


def _is_hub_name(name: str) -> bool:
    return name.count("/") == 1 and not name.startswith((".", "/", "~")) and not Path(name).exists()


def _what(checkpoint: Checkpoint, files: RunFiles | None, *, averaged: bool) -> str:
    spec = read_spec(checkpoint.engine)
    layers = layer_line(spec)
    shape = (
        f"A decoder of {spec.layers} layers of {spec.width}, {spec.parameters:,} parameters, vocabulary {spec.vocab:,}"
    )
    shape = f"{shape}{'' if layers is None else f'; {layers}'}."
    weights = "its averaged weights at step" if averaged else "its weights at step"
    made = f"It was trained with trivium {version('trivium')}; these are {weights} {checkpoint.step:,}"
    if files is None:
        return f"{shape} {made}."
    total = files.plan.get("total_steps")
    of = "" if total is None else f" of {total:,}"
    seed = files.plan.get("seed")
    return (
        f"{shape} {made}{of}, after {show_count(tokens_before(files.plan, checkpoint.step))} tokens, with seed {seed}."
    )


def _figures(log: EventLog, step: int) -> Iterator[str]:
    """The last losses and scores at or before a step."""
    losses = [event for event in log.measured(Evaluated) if event.step <= step and event.loss is not None]
    if losses:
        last = losses[-1]
        rows = [["all", last.loss, last.bits_per_byte]] if len(last.loss_by_source) > 1 else []
        rows += [[name, loss, last.bits_per_byte_by_source.get(name)] for name, loss in last.loss_by_source.items()]
        shown = [[str(name), *("" if each is None else f"{each:.4f}" for each in rest)] for name, *rest in rows]
        yield f"## Validation at step {last.step:,}"
        yield _table(["source", "loss", "bits per byte"], shown)
    scored = [event for event in log.measured(Scored) if event.step <= step]
    if scored:
        tasks = {task: (each, event.step) for event in scored for task, each in event.scores.items()}
        yield "## Scores"
        rows = [
            [
                task,
                f"{at:,}",
                f"{each['right']:,} of {each['questions']:,}",
                f"{each['score']:.3f}",
                f"{each['chance']:.3f}",
            ]
            for task, (each, at) in tasks.items()
        ]
        yield _table(["task", "step", "right", "score", "by chance"], shown)


def _three(value: float) -> str:
    return f"{value:.3f}"


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headers, ["---"] * len(headers), *rows]
    return "\n".join(f"| {' | '.join(_cell(each) for each in line)} |" for line in lines)


def _cell(text: object) -> str:
    return " ".join(str(text).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").split())


def _config(config: Config) -> str:
    """The run's config as TOML, without places on this machine."""
    plain = config.model_dump(mode="json", exclude_unset=True, exclude_none=True)
    plain.get("run", {}).pop("folder", None)
    return tomli_w.dumps(redacted(_without_places(plain)))


def _without_places(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: _without_places(inner, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [_without_places(inner, key) for inner in value]
    is_place = isinstance(value, str) and key in PATH_KEYS and PurePath(value).is_absolute()
    return PurePath(value).name if is_place else value
