"""`arc_easy,quiz.yaml` -> tasks of lm-evaluation-harness, opened; nothing from the working folder is run.

A task by name is one of the installed harness, with the functions that it came with. A YAML file is read as plain
values: `!function`, and every key through which a task names Python code or a script, is refused. Templates, whoever
wrote them, are rendered in Jinja's sandbox.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from jinja2 import BaseLoader, StrictUndefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from lm_eval import utils as harness_utils
from lm_eval.api import metrics as _registers  # noqa: F401  # fills the registry
from lm_eval.api.registry import filter_registry, metric_registry
from lm_eval.tasks import TaskManager

from trivium.config.keys import listed, nearest
from trivium.config.read_yaml import parse_yaml
from trivium.errors import UsageError
from trivium.files import read_bounded

LARGEST_YAML = 1 << 20  # bytes
SPLITS = ("training_split", "validation_split", "test_split", "fewshot_split")
TEXTS = ("doc_to_text", "doc_to_target", "doc_to_choice", "description", "gen_prefix", "doc_to_decontamination_query")
KEYS = frozenset(
    [
        *("task", "task_alias", "tag", "dataset_path", "dataset_name", "dataset_kwargs", *SPLITS, *TEXTS),
        *("target_delimiter", "fewshot_delimiter", "fewshot_config", "num_fewshot", "metric_list", "output_type"),
        *("generation_kwargs", "repeats", "filter_list", "should_decontaminate", "metadata"),
    ]
)
CODE_KEYS = ("class", "custom_dataset", "process_docs", "process_results", "include", "use_prompt", "unsafe_code")
PICKLED = ("pandas", "webdataset")  # forms of dataset in which files may be pickles


def open_tasks(text: str) -> dict[str, Any]:
    """The tasks, by name or by file, as the harness has them; UsageError in one line where one cannot be had."""
    manager = TaskManager()
    opened: dict[str, Any] = {"tasks": {}, "groups": {}, "group_map": {}}
    for each in (part.strip() for part in text.split(",")):
        is_file = each.endswith((".yaml", ".yml"))
        if not is_file and each not in manager.all_tasks:
            known = [name for name in manager.all_tasks if name[:2] == each[:2]] or ["arc_easy"]
            raise UsageError(f'--harness: lm-eval has no task "{each}". {nearest(each, known)} Or give a YAML file.')
        asked = read_task(Path(each)) if is_file else each
        try:
            found = manager.load([asked])
        except Exception as error:  # of the network, of the Hub, of their files: all mean that it cannot be had
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
            how = "Repair the file" if is_file else "Its data come from the Hub: fetch them where that can be reached"
            raise UsageError(f"--harness: {each} cannot be opened: {reason}. {how}.") from None
        for part, inside in found.items():
            opened[part] |= inside
    return opened


def read_task(path: Path) -> dict[str, Any]:
    """A task's file as plain values; UsageError where it names code, or is not a task."""
    try:
        text = read_bounded(path, LARGEST_YAML).decode("utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"--harness: {path} cannot be read: {reason}. Name a YAML file of a task.") from None
    tagged = next(_tags(path, text), None)
    if tagged is not None:
        raise UsageError(f"--harness: {tagged}, and code from files beside a task is not run. Leave it out.")
    try:
        config = parse_yaml(text)
    except ValueError as error:
        raise UsageError(f"--harness: {path} {error}") from None
    problems = list(_problems(config))
    if problems:
        raise UsageError(f"--harness: {path} {'; '.join(problems)}.")
    return config


def _tags(path: Path, text: str) -> Iterator[str]:
    """Places with a tag of their own, such as `!function`."""
    try:
        for event in yaml.parse(text, yaml.SafeLoader):
            tag = getattr(event, "tag", None)
            if tag is not None and not tag.startswith("tag:yaml.org,2002:") and tag != "!":
                yield f"{path} line {event.start_mark.line + 1} has {tag}"
    except yaml.YAMLError:
        return  # told by its reader


def _problems(config: Mapping[str, Any]) -> Iterator[str]:
    code = [key for key in CODE_KEYS if key in config]
    if code:
        yield f"has {listed(code)}, through which a task runs code, which is not run from a file: leave it out"
    unknown = sorted(config.keys() - KEYS - set(CODE_KEYS))
    if unknown:
        yield f'has "{unknown[0]}", which is not known. {nearest(unknown[0], sorted(KEYS))}'.rstrip(".")
    for key in ("task", "dataset_path", "doc_to_text", "doc_to_target"):
        if not isinstance(config.get(key), str | int):
            yield f"has no {key}"
    if config.get("dataset_path") in PICKLED:
        yield f"has dataset_path: {config['dataset_path']}, whose files may be pickles: use json or parquet"
    if "trust_remote_code" in (config.get("dataset_kwargs") or {}):
        yield "has trust_remote_code, and no code of a dataset is run: leave it out"
    yield from _unregistered(config)


def _unregistered(config: Mapping[str, Any]) -> Iterator[str]:
    """A metric or a filter that lm-eval does not have itself would be looked for as a script."""
    for metric in config.get("metric_list") or ():
        name = metric.get("metric") if isinstance(metric, Mapping) else metric
        if name not in metric_registry:
            yield f'has the metric "{name}", which lm-eval does not have itself'
        elif isinstance(metric, Mapping) and metric.get("hf_evaluate"):
            yield f'has hf_evaluate for the metric "{name}", which would fetch a script: leave it out'
    for filters in config.get("filter_list") or ():
        for each in (filters.get("filter") or ()) if isinstance(filters, Mapping) else ():
            name = each.get("function") if isinstance(each, Mapping) else each
            if name not in filter_registry or name == "custom":
                yield f'has the filter "{name}", which lm-eval does not have itself'
    extra = sorted((config.get("fewshot_config") or {}).keys() - {"sampler", "samples", "split"})
    if extra:
        yield f"has fewshot_config.{extra[0]}, which is not known: write sampler, samples or split"


@contextmanager
def sandboxed() -> Iterator[None]:
    """Inside, the harness renders templates without a way to Python's own objects."""
    theirs = harness_utils.env
    safe = ImmutableSandboxedEnvironment(
        loader=BaseLoader(), undefined=StrictUndefined, keep_trailing_newline=theirs.keep_trailing_newline
    )
    safe.filters["regex_replace"] = theirs.filters["regex_replace"]
    harness_utils.env = safe
    try:
        yield
    finally:
        harness_utils.env = theirs
