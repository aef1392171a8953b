"""Rules about everything but the stages: run, model, optimizer, schedule, sources, evaluation."""

from collections.abc import Iterator, Mapping, Sequence

from trivium.config.fields import Extent
from trivium.config.keys import Path, listed, look_up, nearest
from trivium.config.problems import show_value
from trivium.config.redact import is_redacted
from trivium.config.schema import SIZES, Config, Model
from trivium.config.sources import (
    GENERATED,
    SCORED,
    TASKS,
    ChatSource,
    HubSource,
    StreamSource,
    TaskKeys,
    TextSource,
    TokensSource,
)
from trivium.config.stages import Stage
from trivium.config.view import Finding, View

SHARES_TOLERANCE = 1e-6
TOKENIZER_KEYS = {"chat_template": ("huggingface",), "pattern": ("tiktoken",), "special_tokens": ("tiktoken",)}
HELD_OUT = "Take it out, or remove validation_only from the source."
HOLDS_NOTHING = "Take it out, or write sources.{}.validation = 0.01."


def run_rules(view: View) -> Iterator[Finding]:
    """A run has a name that can be a folder's."""
    name = view.config.run.name
    if name is None:
        if view.absent("run", "name"):
            yield view.problem(("run", "name"), 'is missing. Write name = "my-run" in [run].')
    elif not name.strip():
        yield view.problem(("run", "name"), 'is blank. Write name = "my-run".')
    elif name in (".", "..") or set(name) & set("/\\:\0") or name != name.strip():
        what = f"is {show_value(name)}, which cannot be the name of a folder. Use letters, digits and dashes."
        yield view.problem(("run", "name"), what)


def model_rules(view: View) -> Iterator[Finding]:
    """One way of giving the sizes, and sizes that fit each other."""
    model = view.config.model
    shape = [key for key in ("layers", "width", "heads", "kv_heads", "head_dim", "ffn") if view.given("model", key)]
    ways = [key for key in ("init", "size") if view.given("model", key)] + (["layers"] if shape else [])
    if not ways and view.absent("model", "size"):
        what = 'has no size. Write size = "125m", or layers and width, or init = "path/to/checkpoint".'
        yield view.problem(("model",), what)
    elif len(ways) > 1:
        given = [key for key in ("init", "size", *shape) if view.given("model", key)]
        what = f"gives its size in more than one way: {', '.join(given)}. Keep one: init, size, or layers and width."
        yield view.problem(("model",), what)
    elif shape:
        yield from _shape_rules(view, model)
    if model.size is not None and model.size not in SIZES:
        what = f"{show_value(model.size)} is not known. {nearest(model.size, SIZES)}"
        yield view.problem(("model", "size"), what)
    if model.qk_norm and model.no_rope_every is not None:
        what = "is given with qk_norm = true, and no Hugging Face family has both. Leave one of the two out."
        yield view.problem(("model", "no_rope_every"), what)
    for key in ("init_step", "init_optimizer"):
        if view.given("model", key) and view.absent("model", "init"):
            what = 'is given without init. Write init = "runs/base" too, or leave it out.'
            yield view.problem(("model", key), what)
    if model.init_optimizer and view.stages and view.stages[0].reset_optimizer:
        what = "is true, but the first stage resets the optimizer at once. Leave one of the two out."
        yield view.problem(("model", "init_optimizer"), what)


def _shape_rules(view: View, model: Model) -> Iterator[Finding]:
    for key, example in (("layers", 12), ("width", 768)):
        if view.absent("model", key):
            yield view.problem(("model", key), f"is missing. Write {key} = {example}, or a size by name.")
    if model.width is None or (model.heads is None and view.given("model", "heads")):
        return
    heads = model.heads if model.heads is not None else max(1, model.width // 64)
    path: Path = ("model", "heads") if model.heads is not None else ("model", "width")
    if model.head_dim is not None:
        if model.head_dim % 2:
            what = f"is {model.head_dim}: rotary positions take its channels in pairs. Write {model.head_dim + 1}."
            yield view.problem(("model", "head_dim"), what)
    elif model.width % heads or model.width // heads % 2:
        what = (
            f"{model.width} of width over {heads} heads is not an even whole number for each. "
            "Change width or heads, for example width = 768 and heads = 12."
        )
        yield view.problem(path, what)
    if model.kv_heads is not None and heads % model.kv_heads:
        fitting = ", ".join(str(number) for number in range(1, heads + 1) if heads % number == 0)
        what = f"is {model.kv_heads}, which does not divide the {heads} heads. Use one of {fitting}."
        yield view.problem(("model", "kv_heads"), what)


def tokenizer_rules(view: View) -> Iterator[Finding]:
    """A tokenizer that reads a file names it, and has the keys of its kind."""
    tokenizer = view.config.tokenizer
    if tokenizer is None:
        return
    kind = look_up(view.raw, ("tokenizer", "kind"), tokenizer.kind)
    if kind != tokenizer.kind:
        return  # no kind at all, which was reported already
    for key in ("path", "bos", "eos", "markers", "chat_template", "pattern", "special_tokens"):
        if view.given("tokenizer", key) and kind not in TOKENIZER_KEYS.get(key, ("huggingface", "tiktoken")):
            what = f'is given with kind = "{kind}", which reads none. Leave it out.'
            yield view.problem(("tokenizer", key), what)
    if kind != "bytes" and view.absent("tokenizer", "path"):
        what = 'is missing. Write path = "tokenizer.json", or kind = "bytes".'
        yield view.problem(("tokenizer", "path"), what)


def optimizer_rules(view: View) -> Iterator[Finding]:
    """Every group of parameters has a learning rate."""
    lr = view.config.optimizer.lr
    missing = [group for group in ("matrix", "embedding", "unembedding") if getattr(lr, group) is None]
    if lr.rest is None and view.absent("optimizer", "lr", "rest"):
        needed = ", ".join([*missing, "rest"])
        what = f"has no value for {needed}. Write rest = 3e-4, which counts for every group not given."
        yield view.problem(("optimizer", "lr"), what)


def schedule_rules(view: View) -> Iterator[Finding]:
    """Lengths are given once and where the shape has them."""
    schedule = view.config.schedule
    yield from view.extent_rules(("schedule", "warmup"), schedule.warmup)
    yield from view.extent_rules(("schedule", "decay"), schedule.decay)
    yield from view.extent_rules(("schedule", "horizon"), schedule.horizon, fraction=False)
    if schedule.horizon is not None and schedule.horizon.steps == 0:
        what = "is { steps = 0 }: there is nothing to schedule. Write horizon = { steps = 2000 }, or leave it out."
        yield view.problem(("schedule", "horizon"), what)
    yield from shape_keys(view, ("schedule",), schedule.shape, schedule.warmup)


def shape_keys(view: View, path: Path, shape: str | None, warmup: Extent | None) -> Iterator[Finding]:
    """Keys that a shape of the learning rate does not have; used for the run and for a stage."""
    if look_up(view.raw, (*path, "shape"), shape) != shape:
        return  # no shape at all, which was reported already
    if shape != "wsd":
        for key in ("decay", "decay_shape"):
            if view.given(*path, key):
                now = f"the shape is {show_value(shape)}" if shape else "no shape is given"
                what = f'belongs to shape = "wsd", but {now}. Leave it out, or write shape = "wsd".'
                yield view.problem((*path, key), what)
    if shape in (None, "constant", "inverse-sqrt") and view.given(*path, "to"):
        now = f"shape = {show_value(shape)}" if shape else "a stage without a shape"
        what = f'has no meaning with {now}. Leave it out, or write shape = "linear".'
        yield view.problem((*path, "to"), what)
    if view.given(*path, "warmup_from") and view.absent(*path, "warmup"):
        what = "needs a warm-up to be the start of. Write warmup = { steps = 2000 } too, or leave it out."
        yield view.problem((*path, "warmup_from"), what)
    if shape == "inverse-sqrt" and view.absent(*path, "warmup"):
        what = "is missing: inverse-sqrt falls from the end of its warm-up. Write warmup = { steps = 2000 }."
        yield view.problem((*path, "warmup"), what)
    if shape == "inverse-sqrt" and warmup is not None and 0 in (warmup.steps, warmup.fraction):
        what = "is zero: inverse-sqrt falls from the end of its warm-up. Write warmup = { steps = 2000 }."
        yield view.problem((*path, "warmup"), what)


def cadence_rules(view: View) -> Iterator[Finding]:
    """Checkpoints come every n steps or every n minutes, not both."""
    every = view.config.checkpoint.every
    if every is not None and every.steps is not None and every.minutes is not None:
        what = "has steps and minutes, but needs one of them. Write every = 1000 or every = { minutes = 30 }."
        yield view.problem(("checkpoint", "every"), what)
    if every is not None and look_up(view.raw, ("checkpoint", "every")) == {}:
        what = "is empty. Write every = 1000 or every = { minutes = 30 }."
        yield view.problem(("checkpoint", "every"), what)


def guard_rules(view: View) -> Iterator[Finding]:
    """Steps to skip are spans that do not overlap."""
    before = 0
    for number, (first, end) in enumerate(view.config.guard.skip_steps):
        path = ("guard", "skip_steps", number)
        if end <= first:
            yield view.problem(path, f"is [{first}, {end}], which holds no step. Write [{first}, {first + 1}].")
        elif first < before:
            what = f"starts at {first:,}, before the one ahead of it ends, at {before:,}. Write one for both."
            yield view.problem(path, what)
        before = max(before, end)


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
        if isinstance(source, TokensSource) and source.eos is not None and source.bos is not None:
            what = "has eos and bos, but documents are found by one of them. Keep the one your files have."
            yield view.problem(path, what)
        if source.validation is not None and source.validation_only:
            what = "holds out a part, but validation_only keeps all of it out. Keep one of the two."
            yield view.problem((*path, "validation"), what)


def _stream_rules(view: View, path: Path, source: StreamSource) -> Iterator[Finding]:
    """What needs a size, or documents that can be chosen, a stream does not have."""
    if source.validation is not None:
        what = f"{path[1]} is a stream, of which nothing can be held out. Give validation a source of its own."
        yield view.problem((*path, "validation"), what)
    if source.validation_only:
        what = f"{path[1]} is a stream, and evaluations read none. Give validation a source of another kind."
        yield view.problem((*path, "validation_only"), what)
    if source.max_epochs is not None:
        yield view.problem((*path, "max_epochs"), f"{path[1]} is a stream, which has no epochs. Leave it out.")


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


def evaluate_rules(view: View) -> Iterator[Finding]:
    """Validation reads sources that exist, named in one way."""
    evaluate = view.config.evaluate
    if view.given("evaluate", "sources") and view.given("evaluate", "mixture"):
        yield view.problem(("evaluate",), "has sources and mixture, but needs one of them at most. Keep one.")
    if evaluate.sources is not None:
        yield from names_rules(view, ("evaluate", "sources"), evaluate.sources)
    if evaluate.mixture is not None:
        yield from shares_rules(view, ("evaluate", "mixture"), evaluate.mixture)
    allowed = view.config.model.max_seq_len
    if allowed is not None and evaluate.seq_len is not None:
        allowed = max([allowed, *(stage.seq_len for stage in view.stages)])  # positions may be stretched beyond it
        if evaluate.seq_len > allowed:
            what = f"is {evaluate.seq_len:,}, over the {allowed:,} that the model allows. Lower it, or raise"
            yield view.problem(("evaluate", "seq_len"), f"{what} model.max_seq_len.")
    for path, what in impossible_evaluations(view.config, view.stages):
        refused = f"{what} trivium train refuses this, unless your own Trainer has an evaluator."
        yield view.warning(view.stage_path(int(path[1]), "evaluate") if path[0] == "stages" else path, refused)
    for path, what in unscored_tasks(view.config, view.stages):
        yield view.warning(path, f"{what} trivium train refuses this.")
    yield from _asked_rules(view)


def impossible_evaluations(config: Config, stages: Sequence[Stage]) -> Iterator[tuple[Path, str]]:
    """Evaluations that are asked for where nothing is held out, by key: a Trainer without an evaluator refuses them."""
    evaluate = config.evaluate
    named = evaluate.sources if evaluate.sources is not None else evaluate.mixture
    names = config.sources if named is None else named
    if any(name in config.sources and config.sources[name].holds_out for name in names):
        return
    what = "no source holds documents out to evaluate on. Write validation = 0.01 in a source, or add one with"
    what = f"{what} validation_only = true."
    if evaluate.every is not None:
        yield ("evaluate", "every"), what
    if evaluate.at_start:
        yield ("evaluate", "at_start"), what
    for number, stage in enumerate(stages):
        if stage.evaluate and not evaluate.tasks:
            yield ("stages", number, "evaluate"), what


def unscored_tasks(config: Config, stages: Sequence[Stage]) -> Iterator[tuple[Path, str]]:
    """Tasks that are never scored, by key: every Trainer refuses them."""
    evaluate = config.evaluate
    if evaluate.tasks and evaluate.tasks_every is None and not any(stage.evaluate for stage in stages):
        what = "are never scored. Write evaluate.tasks_every = 1000, or evaluate = true in a stage, or leave them out."
        yield ("evaluate", "tasks"), what


def _asked_rules(view: View) -> Iterator[Finding]:
    """Tasks that are scored have right answers, and scores that can be told apart."""
    names = [asked.name for asked in view.config.evaluate.tasks]
    for number, asked in enumerate(view.config.evaluate.tasks):
        path = ("evaluate", "tasks", number)
        if asked.task is None:
            yield view.problem(path, 'has no task. Write task = "spelling".')
        elif asked.task not in SCORED:
            reason = "has no right answers" if asked.task in TASKS else "is not known"
            yield view.problem(path, f"{show_value(asked.task)} {reason}. {nearest(asked.task, SCORED)}")
        elif asked.name in names[:number]:
            yield view.problem(path, f"{show_value(asked.name)} is there already. Name it once.")
    for key in ("tasks_every", "questions"):
        if view.given("evaluate", key) and view.absent("evaluate", "tasks"):
            what = 'is given without tasks. Write tasks = ["spelling"] too, or leave it out.'
            yield view.problem(("evaluate", key), what)
    has_texts = view.given("evaluate", "tasks") or view.given("evaluate", "prompts")
    if view.given("evaluate", "max_new_tokens") and not has_texts:
        what = "is given without tasks or prompts. Write one of them too, or leave it out."
        yield view.problem(("evaluate", "max_new_tokens"), what)


def names_rules(view: View, path: Path, names: Sequence[str]) -> Iterator[Finding]:
    """A list of known sources, each named once; for training, none that is held out whole."""
    for name in dict.fromkeys(names):
        if view.unknown_source(name):
            yield view.problem(path, f"{show_value(name)} is not a source. {nearest(name, view.source_names)}")
        elif path[0] == "evaluate" and _holds_nothing(view, name):
            yield view.problem(path, f"{show_value(name)} holds no documents out. {HOLDS_NOTHING.format(name)}")
        elif path[0] != "evaluate" and _held_out(view, name):
            yield view.problem(path, f"{show_value(name)} is a source for validation only. {HELD_OUT}")
        if names.count(name) > 1:
            yield view.problem(path, f"names {show_value(name)} {names.count(name)} times. Name it once.")


def shares_rules(view: View, path: Path, shares: Mapping[str, float]) -> Iterator[Finding]:
    """Shares of known sources that add up to 1, or weights that are not all zero."""
    yield from known_rules(view, path, shares)
    if set(view.written(*path)) != set(shares):
        return  # a share that is not a number was reported already; the sum means nothing
    total = sum(shares.values())
    written = show_value(look_up(view.raw, path))
    noun = "weight" if path[-1] == "weights" else "share"
    if total == 0:
        yield view.problem(path, f"is {written}: nothing to read. Give a source a positive {noun}.")
    elif noun == "share" and abs(total - 1) > SHARES_TOLERANCE:
        relative = "so that they do" if path[0] == "evaluate" else f"or write weights = {written}"
        yield view.problem(path, f"adds up to {total:.9g}, not 1. Change the shares, {relative}.")


def known_rules(view: View, path: Path, shares: Mapping[str, float]) -> Iterator[Finding]:
    """Every source that has a share is there, and may be read."""
    for name in shares:
        if view.unknown_source(name):
            what = f"there is no source {show_value(name)}. {nearest(name, view.source_names)}"
            yield view.problem((*path, name), what)
        elif path[0] == "evaluate" and shares[name] and _holds_nothing(view, name):
            yield view.problem((*path, name), f"holds no documents out. {HOLDS_NOTHING.format(name)}")
        elif path[0] != "evaluate" and _held_out(view, name):
            yield view.problem((*path, name), f"is a source for validation only. {HELD_OUT}")


def _held_out(view: View, name: str) -> bool:
    return name in view.config.sources and view.config.sources[name].validation_only


def _holds_nothing(view: View, name: str) -> bool:
    """Whether a source has nothing for validation; not where a value that did not validate asks for some."""
    source = view.config.sources.get(name)
    if source is None or source.holds_out:
        return False
    asked = [key for key in ("validation", "validation_only") if view.given("sources", name, key)]
    return set(asked) <= source.model_fields_set
