"""Rules about sources: where their documents are, which tasks they are made of, what a view may have."""

from collections.abc import Iterator, Mapping

from trivium.config.keys import Path, listed, nearest
from trivium.config.problems import show_value
from trivium.config.redact import is_redacted
from trivium.config.rules.view import Finding, View
from trivium.config.schema import AskedTask
from trivium.config.sources import (
    GENERATED,
    QUIZZES,
    TASKS,
    BaseSource,
    ChatSource,
    HubSource,
    HuggingFaceSource,
    StreamSource,
    TaskKeys,
    TextSource,
    TokensSource,
    ViewSource,
    score_of,
)


def source_rules(view: View) -> Iterator[Finding]:
    """Every source has a place for its documents, and a name that can be told from a number."""
    if not view.source_names and isinstance(view.raw.get("sources", {}), Mapping):
        what = 'there is none. Write [sources.web] with kind = "tokens" and path = "data/web".'
        yield view.problem(("sources",), what)
    for name in view.source_names:
        if not name.strip():
            yield view.problem(("sources", name), "has a blank name. Give it one: [sources.web].")
        elif set(name) & set(":/\\"):
            what = "has a name with one of : / \\ in it. Use letters, digits and dashes."
            yield view.problem(("sources", name), what)
        elif name.isdecimal():
            what = f"has a number for a name. Say what it is: [sources.web-{name}]."
            yield view.problem(("sources", name), what)
    for name, source in view.config.sources.items():
        path = ("sources", name)
        if isinstance(source, TokensSource | TextSource) and view.absent(*path, "path"):
            yield view.problem((*path, "path"), f'is missing. Write path = "data/{name}".')
        if isinstance(source, HubSource) and view.absent(*path, "dataset"):
            what = 'is missing. Write dataset = "name/on-the-hub", or a folder.'
            yield view.problem((*path, "dataset"), what)
        if isinstance(source, HubSource) and is_redacted(source.dataset or ""):
            what = f"is {source.dataset}, of which the credentials were not kept. Write it again, with them."
            yield view.problem((*path, "dataset"), what)
        if isinstance(source, StreamSource):
            yield from _stream_rules(view, path, source)
        if isinstance(source, ChatSource):
            yield from _chat_rules(view, path, source)
        if isinstance(source, ViewSource):
            yield from _view_rules(view, path, source)
        if isinstance(source, TokensSource) and source.eos is not None and source.bos is not None:
            what = "has eos and bos, but documents are found by one of them. Keep the one your files have."
            yield view.problem(path, what)
        for key in ("fim", "score"):
            if isinstance(source, HuggingFaceSource) and source.tokenised and getattr(source, key) is not None:
                what = "is for text, and this dataset is tokenised already. Leave it out, or name a dataset of text."
                yield view.problem((*path, key), what)
        yield from _score_rules(view, path, source)
        if source.validation is not None and source.validation_only:
            what = "holds out a part, but validation_only keeps all of it out. Keep one of the two."
            yield view.problem((*path, "validation"), what)
        if source.without is not None and source.validation_only:
            what = "names documents that do not count in the loss, but validation_only keeps all of them out of it."
            yield view.problem((*path, "without"), f"{what} Keep one of the two.")


def _score_rules(view: View, path: Path, source: BaseSource) -> Iterator[Finding]:
    """A range of scores has an end, and something between its ends."""
    score = score_of(source)
    if score is None:
        return
    if score.at_least is None and score.below is None:
        yield view.problem((*path, "score"), "has no limit. Write at_least = 3, below = 4, or both.")
    elif score.at_least is not None and score.below is not None and score.at_least >= score.below:
        what = f"at_least = {score.at_least:g} leaves nothing below {score.below:g}. Write a lower one."
        yield view.problem((*path, "score"), what)


def _stream_rules(view: View, path: Path, source: StreamSource) -> Iterator[Finding]:
    """What needs a size, or documents that can be chosen, a stream does not have."""
    if source.validation is not None:
        what = f"{path[1]} is a stream, of which nothing can be held out. Give validation a source of its own."
        yield view.problem((*path, "validation"), what)
    if source.validation_only:
        what = f"{path[1]} is a stream, and evaluations read none. Give validation a source of another kind."
        yield view.problem((*path, "validation_only"), what)
    for key in ("max_epochs", "expected_tokens"):
        if getattr(source, key) is not None:
            yield view.problem((*path, key), f"{path[1]} is a stream, which has no epochs. Leave it out.")
    if source.without is not None:
        what = f"{path[1]} is a stream, whose documents have no numbers before they are read. Leave it out."
        yield view.problem((*path, "without"), what)


def _view_rules(view: View, path: Path, source: ViewSource) -> Iterator[Finding]:
    """A view has some documents of a source that has documents of its own, and nothing else of its own."""
    others = [name for name, other in view.config.sources.items() if not isinstance(other, ViewSource | StreamSource)]
    if source.of is None:
        if view.absent(*path, "from"):
            yield view.problem((*path, "from"), f'is missing. Write from = "{next(iter(others), "web")}".')
    elif source.of in view.source_names and source.of not in others:
        if isinstance(of := view.config.sources.get(source.of), ViewSource | StreamSource):
            what = f"{show_value(source.of)} is a {of.kind}. Name a source whose documents are in files."
            yield view.problem((*path, "from"), what)
    elif source.of not in others:
        yield view.problem((*path, "from"), f"{show_value(source.of)} is not a source. {nearest(source.of, others)}")
    if source.min_tokens is None and source.max_tokens is None:
        if view.absent(*path, "min_tokens") and view.absent(*path, "max_tokens"):
            what = 'has neither min_tokens nor max_tokens. Write min_tokens = "16Ki", or name the source itself.'
            yield view.problem(path, what)
    elif source.min_tokens is not None and source.max_tokens is not None and source.max_tokens <= source.min_tokens:
        what = f"is {source.max_tokens:,}, and min_tokens {source.min_tokens:,}: no document is within them."
        yield view.problem((*path, "max_tokens"), f"{what} Write a larger one.")
    for key in ("validation", "validation_only", "block_tokens", "window_blocks", "without"):
        if view.given(*path, key):
            what = f"is a key of the source that has the documents. Write it in [sources.{source.of or 'NAME'}]."
            yield view.problem((*path, key), what)


def _chat_rules(view: View, path: Path, source: ChatSource) -> Iterator[Finding]:
    """A source of conversations has files, or a task, or several tasks that it mixes."""
    if source.tasks is None:
        if not any(view.given(*path, key) for key in ("path", "task", "tasks")):
            what = 'has neither path nor task. Write path = "data/chat.jsonl", or a task such as task = "gsm8k".'
            yield view.problem(path, what)
        yield from _task_rules(view, path, source)
        return
    if not source.tasks:
        yield view.problem((*path, "tasks"), 'is empty. Write tasks = ["smoltalk", { task = "gsm8k", repeat = 2 }].')
    own = [key for key in TaskKeys.model_fields if view.given(*path, key)]
    if own:
        what = f"has tasks, and {listed(own)} beside them. Write {listed(own)} in the tables of the tasks instead."
        yield view.problem(path, what)
    once = [task.model_copy(update={"repeat": 1}) for task in source.tasks]
    for number, task in enumerate(source.tasks):
        place = (*path, "tasks", number)
        if task.task is None and not view.given(*place, "task"):
            yield view.problem(place, 'has no task. Write task = "gsm8k", or task = "jsonl" with a path.')
        elif once[number] in once[:number]:
            yield view.problem(place, f"{show_value(task.name)} is there already. Name it once, with repeat = 2.")
        else:
            yield from _task_rules(view, place, task)
        if task.repeat > 1 and source.validation is not None:
            what = f"is {task.repeat}, and validation holds out documents: copies of one conversation would be on both"
            what = f"{what} sides. Give validation a source of its own, with validation_only = true."
            yield view.problem((*place, "repeat"), what)


def _task_rules(view: View, path: Path, keys: TaskKeys) -> Iterator[Finding]:
    """A task is known, and has the keys that belong to it."""
    if keys.task is not None and keys.task not in TASKS:
        yield view.problem((*path, "task"), f"{show_value(keys.task)} is not known. {nearest(keys.task, TASKS)}")
    if keys.task == "jsonl" and not view.given(*path, "path"):
        yield view.problem((*path, "path"), 'is missing: task = "jsonl" reads it. Write path = "data/chat.jsonl".')
    yield from quiz_rules(view, path, keys)
    for key in ("subset", "split"):
        if view.given(*path, key) and not view.given(*path, "task"):
            yield view.problem((*path, key), "belongs to a task, but none is given. Leave it out, or name the task.")
    if keys.size is not None and keys.task not in GENERATED:
        what = 'is for tasks made up from words. Write task = "spelling" or "counting", or stop instead of size.'
        yield view.problem((*path, "size"), what)
    if view.given(*path, "split_by") and keys.task not in GENERATED:
        what = 'is for tasks made up from words. Write task = "spelling" or "counting", or leave it out.'
        yield view.problem((*path, "split_by"), what)
    if keys.stop is not None and keys.start is not None and keys.stop <= keys.start:
        what = f"is {keys.stop:,}, but start is {keys.start:,}. Write a stop above it, or leave one of them out."
        yield view.problem((*path, "stop"), what)


def quiz_rules(view: View, path: Path, keys: TaskKeys | AskedTask) -> Iterator[Finding]:
    """Questions of one's own are in files; their columns may have other names."""
    if keys.task in QUIZZES and not view.given(*path, "path"):
        what = f'is missing: task = "{keys.task}" reads it. Write path = "data/quiz.jsonl".'
        yield view.problem((*path, "path"), what)
    if keys.columns is None:
        return
    if keys.task not in QUIZZES:
        what = 'is for questions of your own. Write task = "choices" or "answers", or leave it out.'
        yield view.problem((*path, "columns"), what)
    elif keys.task == "answers" and "choices" in keys.columns:
        what = 'is given, but task = "answers" has no choices. Leave it out, or write task = "choices".'
        yield view.problem((*path, "columns", "choices"), what)
