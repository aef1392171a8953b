"""Rules about stages: names, lengths, mixtures, row and batch sizes, fades, objectives."""

from collections.abc import Iterator, Mapping

from trivium.config.batches import Batches
from trivium.config.keys import Path, listed, look_up, nearest
from trivium.config.numbers import show_count
from trivium.config.problems import show_value
from trivium.config.rules.batches import known_batches
from trivium.config.rules.rates import stage_lr_rules
from trivium.config.rules.shares import known_rules, names_rules, shares_rules
from trivium.config.rules.view import Finding, View, one_way
from trivium.config.sources import StreamSource, ViewSource
from trivium.config.stages import Fade, Rope, SlidingRope, Stage

BUDGETS = ("steps", "tokens", "epochs")
WAYS = ("mixture", "weights", "sources")
MAX_ROWS = 10**15
BY_PARTS = ("yarn", "ntk-by-parts")
ROPE_KEYS = {  # and the scalings that have them
    "attention_factor": ("yarn",),
    "beta_fast": BY_PARTS,
    "beta_slow": BY_PARTS,
    "low_freq_factor": ("llama3",),
    "high_freq_factor": ("llama3",),
}


def name_rules(view: View) -> Iterator[Finding]:
    """There are stages, and each has a name of its own that is not a number."""
    if look_up(view.raw, ("stages",), []) == []:
        what = "there is none. Write [[stages]] with a name, a length (steps, tokens or epochs) and a mixture."
        yield view.problem(("stages",), what)
    first_with: dict[str, int] = {}
    for number, stage in enumerate(view.stages):
        path = ("stages", number, "name")
        fault = None if stage.name is None else name_fault(stage.name)
        if stage.name is None:
            if view.absent(*path):
                yield view.problem(path, 'is missing. Write name = "general".')
        elif fault is not None:
            yield view.problem(path, fault)
        elif stage.name in first_with:
            first = f"stages[{first_with[stage.name]}].name"
            what = f"is {show_value(stage.name)}, as is {first}. Give each stage a name of its own."
            yield view.problem(path, what)
        else:
            first_with[stage.name] = number


def name_fault(name: str) -> str | None:
    """What is wrong with a stage's name, for overrides such as `stages.long.steps=10` must find it."""
    if not name.strip():
        return 'is blank. Write name = "general".'
    if name.isdecimal():
        return f'is {show_value(name)}, which overrides take for a position. Write name = "stage-{name}".'
    if "." in name or "=" in name:
        return f"is {show_value(name)}; overrides are split at . and =. Use letters, digits and dashes."
    if name != name.strip():
        return f"is {show_value(name)}, with spaces around it. Write name = {show_value(name.strip())}."
    return None


def budget_rules(view: View) -> Iterator[Finding]:
    """A stage's length is given in exactly one unit, and in one that its sources have."""
    for number, stage in enumerate(view.stages):
        given = [key for key in BUDGETS if view.given("stages", number, key)]
        given += ["until.at_most"] if view.given("stages", number, "until", "at_most") else []
        if len(given) > 1:
            yield view.problem(("stages", number), f"has {listed(given)}, but needs exactly one of them. Keep one.")
        elif not given and all(view.absent("stages", number, key) for key in BUDGETS) and view.absent("model", "depth"):
            what = 'has no length. Write steps, tokens or epochs, for example tokens = "2B".'
            yield view.problem(("stages", number), what)
        yield from _token_rules(view, number, stage)
        batches = known_batches(view, number)
        if batches is not None:
            yield from _row_rules(view, number, stage, batches)
        if stage.epochs is not None:
            yield from _epoch_rules(view, number, stage)


def _token_rules(view: View, number: int, stage: Stage) -> Iterator[Finding]:
    """Tokens are a number of them, or of tokens for each parameter."""
    path = ("stages", number, "tokens")
    if stage.tokens is None:
        return
    is_double = None not in (stage.tokens.count, stage.tokens.per_parameter)
    if is_double or not (view.written(*path) or stage.tokens.count):
        what = "has count and per_parameter, but needs exactly one of them" if is_double else "is empty"
        yield view.problem(path, f'{what}. Write tokens = "2B" or tokens = {{ per_parameter = 20 }}.')


def _row_rules(view: View, number: int, stage: Stage, batches: Batches) -> Iterator[Finding]:
    """Rows are counted in 64 bits, with room to spare."""
    tokens = stage.budget_tokens or 0
    rows_by = {"steps": batches.rows_before(stage.steps or 0), "tokens": tokens // stage.seq_len}
    for key, rows in rows_by.items():
        if rows > MAX_ROWS:
            what = f"makes {rows:,} rows, over the {MAX_ROWS:,} that a stage may have. Lower it."
            yield view.problem(("stages", number, key), what)


def _epoch_rules(view: View, number: int, stage: Stage) -> Iterator[Finding]:
    """Epochs are those of sources that the stage reads, that have an end, and that end together or are named."""
    assert stage.epochs is not None
    path, epochs = ("stages", number, "epochs"), stage.epochs.epochs
    read = own_sources(view, stage) if epochs is not None else readable(view, stage)
    finite = [name for name in read if not is_stream(view, name)]
    streams = [name for name in read if is_stream(view, name) and name in stage.epochs.of(read)]
    proportional = stage.mixture is None and stage.weights is None and stage.temperature == 1
    sound = True
    for source, times in stage.epochs.by_source.items():
        if view.unknown_source(source):
            sound = False
            yield view.problem((*path, source), f"there is no source {show_value(source)}. {nearest(source, finite)}")
        elif source not in read:
            sound = False
            what = f"the stage does not read {show_value(source)}, so that it would never end."
            if finite:
                what = f"{what} Write epochs = {show_value({finite[0]: _plain(times)})}."
            yield view.problem((*path, source), what)
    if epochs is not None and len(read) > 1 and finite and not proportional:
        what = (
            f"is {epochs:g}, but {listed(read)} are read at different speeds. "
            f"Name the one that counts: epochs = {show_value({finite[0]: _plain(epochs)})}."
        )
        yield view.problem(path, what)
    elif streams and sound:
        what = f"{streams[0]} is a stream, which has no epochs. Write steps or tokens instead."
        yield view.problem(path, what)


def _plain(number: float) -> float | int:
    """`1` for 1.0, as people write it."""
    return int(number) if number.is_integer() else number


def is_stream(view: View, name: str) -> bool:
    """Whether a source is a stream, which has no size."""
    return isinstance(view.config.sources.get(name), StreamSource)


def readable(view: View, stage: Stage) -> list[str]:
    """The sources that a stage reads: those with a share, or all that may be trained on; and those it replays."""
    own = own_sources(view, stage)
    return [*own, *(name for name, share in (stage.replay or {}).items() if share > 0 and name not in own)]


def own_sources(view: View, stage: Stage) -> list[str]:
    """The sources that a stage reads apart from what it replays."""
    shares = stage.mixture if stage.mixture is not None else stage.weights
    if shares is not None:
        return [name for name, share in shares.items() if share > 0]
    if stage.sources is not None:
        return list(stage.sources)
    sources, replayed = view.config.sources, stage.replay or {}
    trained = [name for name in view.source_names if name not in sources or sources[name].is_read_by_default]
    return [name for name in trained if name not in replayed]


def mixture_rules(view: View) -> Iterator[Finding]:
    """Shares that add up, weights that are not all zero, and one of the two."""
    yield from one_way(view, ("defaults",), WAYS)
    for number, stage in enumerate(view.stages):
        if found := list(one_way(view, ("stages", number), WAYS)):
            yield from found
        elif stage.mixture is not None:
            yield from shares_rules(view, view.stage_path(number, "mixture"), stage.mixture)
            yield from _temperature_rules(view, number, stage)
        elif stage.weights is not None:
            yield from shares_rules(view, view.stage_path(number, "weights"), stage.weights)
        elif not view.unsound(number, *WAYS):
            yield from _proportional_rules(view, number, stage)
        if stage.replay is not None:
            yield from _replay_rules(view, number, stage, stage.replay)


def _replay_rules(view: View, number: int, stage: Stage, replay: Mapping[str, float]) -> Iterator[Finding]:
    """Replay has shares of sources that are not the stage's own, and leaves room for these."""
    path = view.stage_path(number, "replay")
    yield from known_rules(view, path, replay)
    twice = [name for name in replay if name in own_sources(view, stage)]
    total = sum(replay.values())
    if stage.mixture is not None:
        what = (
            "is given with mixture, which has every share already. "
            "Write the share there, or weights or sources instead of mixture."
        )
        yield view.problem(path, what)
    elif twice:
        own = next(way for way in WAYS if way in stage.model_fields_set)
        what = f"{listed(twice)} {'is' if len(twice) == 1 else 'are'} in the stage's {own} too."
        yield view.problem(path, f"{what} Name each in one of them.")
    if not 0 < total < 1 and set(view.written(*path)) == set(replay):
        what = f"adds up to {total:.9g}: it must be over 0, and leave something for the stage's own sources."
        yield view.problem(path, f"{what} Write for example replay = {{ web = 0.2 }}.")


def _temperature_rules(view: View, number: int, stage: Stage) -> Iterator[Finding]:
    if stage.temperature == 1:
        return
    path = view.stage_path(number, "temperature")
    mixture = view.stage_path(number, "mixture")
    instead = f"Write weights = {show_value(look_up(view.raw, mixture))} instead of mixture."
    if path[0] == mixture[0]:
        what = f"is {stage.temperature:g}, but mixture gives the shares as they are. {instead}"
        yield view.problem(path, what)
    else:
        elsewhere = "[defaults]" if path[0] == "defaults" else f"stages[{number}]"
        what = f"gives the shares as they are, but {elsewhere} has temperature = {stage.temperature:g}. {instead}"
        yield view.problem(mixture, what)


def _proportional_rules(view: View, number: int, stage: Stage) -> Iterator[Finding]:
    """Shares in proportion to size need sizes, and something to read."""
    if stage.sources is not None:
        yield from names_rules(view, view.stage_path(number, "sources"), stage.sources)
    read = readable(view, stage)
    streams = [name for name in read if is_stream(view, name)]
    if streams and len(read) > 1:
        what = (
            f"is missing: {streams[0]} is a stream and has no size to be in proportion to. "
            f"Write for example weights = {show_value(dict.fromkeys(read, 1))}."
        )
        yield view.problem(("stages", number, "mixture"), what)
    if not read and view.source_names:
        what = "reads nothing, for every source is for validation only. Remove validation_only from one."
        yield view.problem(("stages", number), what)


def fade_rules(view: View) -> Iterator[Finding]:
    """A fade comes from a stage before, and ends before its stage does."""
    for number, stage in enumerate(view.stages):
        if stage.fade is None:
            continue
        path = view.stage_path(number, "fade")
        yield from _fade_unit(view, path, stage.fade)
        if number == 0 and path[0] == "stages":
            what = "there is no stage before the first to fade from. Leave it out."
            yield view.problem(path, what)
        batches = known_batches(view, number)
        if number == 0 or batches is None:
            continue
        yield from _fade_length(view, path, stage.fade, stage, batches)
        before = view.stages[number - 1]
        if stage.fade.center and before.epochs is not None:
            what = "begins before its stage, at a row that is known only where the stage before has steps or tokens."
            yield view.problem((*path, "center"), f"{what} Give that one steps instead of epochs, or leave center out.")
        elif stage.fade.center and before.until is not None:
            what = (
                "begins before its stage, at a row that is not known where the stage before ends on a figure (until)."
            )
            yield view.problem((*path, "center"), f"{what} Leave center out.")


def _fade_length(view: View, path: Path, fade: Fade, stage: Stage, batches: Batches) -> Iterator[Finding]:
    tokens = stage.budget_tokens
    steps = stage.steps if tokens is None else batches.steps_for(-(-tokens // stage.seq_len))
    if steps is None or (fade.tokens is not None and fade.steps is not None):
        return
    length = batches.rows_before(steps) * stage.seq_len
    sides, center, more = (2, ", center = true", " and as many of the one before") if fade.center else (1, "", "")
    if fade.tokens is not None and fade.tokens > sides * length:
        what = f"is {show_count(fade.tokens)} tokens, longer than its stage of {show_count(length)}{more}"
        fix = f"{{ tokens = {2 * length}{center} }}" if center else f"{length}"
        yield view.problem(path, f"{what}. Write fade = {fix} or less.")
    if fade.steps is not None and fade.steps > sides * steps:
        what = f"is {fade.steps:,} steps, longer than its stage of {steps:,}{more}"
        yield view.problem(path, f"{what}. Write fade = {{ steps = {sides * steps}{center} }} or less.")


def _fade_unit(view: View, path: Path, fade: Fade) -> Iterator[Finding]:
    if fade.tokens is not None and fade.steps is not None:
        yield view.problem(path, 'has tokens and steps, but needs one of them. Write fade = "50M".')
    if fade.tokens is None and fade.steps is None and set(view.written(*path)) <= {"shape", "steepness", "center"}:
        yield view.problem(path, 'has no length. Write fade = "50M".')
    if fade.shape != "sigmoid" and view.given(*path, "steepness"):
        what = f'is {fade.steepness:g}, but the shape is "{fade.shape}". Write shape = "sigmoid", or leave it out.'
        yield view.problem((*path, "steepness"), what)


def rope_rules(view: View) -> Iterator[Finding]:
    """Rows are no longer than the model allows; scaling and its factor come together."""
    model = view.config.model
    if model.rope is not None:
        yield from _rope_rules(view, ("model", "rope"), model.rope)
    rope = model.rope
    for number, stage in enumerate(view.stages):
        if stage.rope is not None:
            yield from _rope_rules(view, view.stage_path(number, "rope"), stage.rope)
        rope = stage.rope or rope
        if model.max_seq_len is None or view.unsound(number, "seq_len", "rope"):
            continue
        trained = rope.original_seq_len if rope is not None and rope.original_seq_len else model.max_seq_len
        factor = rope.factor if rope is not None and rope.factor is not None else 1.0
        allowed = max(model.max_seq_len, int(trained * factor))
        if stage.seq_len > allowed:
            what = (
                f"is {stage.seq_len:,}, over the {allowed:,} that the model allows. Lower it, raise model.max_seq_len, "
                f'or write rope = {{ scaling = "yarn", factor = {-(-stage.seq_len // trained)} }}.'
            )
            yield view.problem(view.stage_path(number, "seq_len"), what)


def _rope_rules(view: View, path: Path, rope: Rope) -> Iterator[Finding]:
    yield from _scaling_rules(view, path, rope)
    if rope.sliding is not None:
        yield from _scaling_rules(view, (*path, "sliding"), rope.sliding)
        is_own = view.absent("model", "init") and not view.config.model.is_foreign
        if is_own and view.absent("model", "window"):
            what = "is given, but no layer slides. Write model.window = 4096 too, or leave it out."
            yield view.problem((*path, "sliding"), what)


def _scaling_rules(view: View, path: Path, rope: SlidingRope) -> Iterator[Finding]:
    if rope.scaling is not None and view.absent(*path, "factor"):
        yield view.problem((*path, "factor"), "is missing: scaling needs it. Write factor = 4.")
    for key in ("factor", "original_seq_len"):
        if view.given(*path, key) and view.absent(*path, "scaling"):
            what = 'is given without scaling. Write scaling = "yarn" or scaling = "linear" too, or leave it out.'
            yield view.problem((*path, key), what)
    for key, scalings in ROPE_KEYS.items():
        if view.given(*path, key) and rope.scaling not in scalings:
            needed = " or ".join(f'"{each}"' for each in scalings)
            yield view.problem((*path, key), f"needs scaling = {needed}. Write that too, or leave it out.")
    for low, high in (("low_freq_factor", "high_freq_factor"), ("beta_slow", "beta_fast")):
        if getattr(rope, low) >= getattr(rope, high):
            what = f"is {getattr(rope, low):g}, not under the {high} of {getattr(rope, high):g}. Lower it."
            yield view.problem((*path, low), what)


def anneal_rules(view: View) -> Iterator[Finding]:
    """The anneal stage has a start, something that changes, and a name of its own."""
    anneal = view.config.run.anneal
    if anneal is None:
        return
    path = ("run", "anneal")
    if view.absent(*path, "start"):
        yield view.problem((*path, "start"), "is missing. Write start = 0.9.")
    if (fault := name_fault(anneal.name)) is not None:
        yield view.problem((*path, "name"), fault)
    elif anneal.name in [stage.name for stage in view.stages]:
        what = f'{show_value(anneal.name)} is the name of a stage already. Write name = "cooldown".'
        yield view.problem((*path, "name"), what)
    if found := list(one_way(view, path, ("mixture", "weights"))):
        yield from found
    elif anneal.mixture is not None:
        yield from shares_rules(view, (*path, "mixture"), anneal.mixture)
    elif anneal.weights is not None:
        yield from shares_rules(view, (*path, "weights"), anneal.weights)
    if anneal.temperature != 1 and view.absent(*path, "weights"):
        weights = f"Write weights = {show_value(anneal.mixture)} instead of mixture"
        instead = weights if anneal.mixture else "Give it some"
        what = f"is {anneal.temperature:g}, but needs weights to change. {instead}, or leave it out."
        yield view.problem((*path, "temperature"), what)
    if not any(view.given(*path, key) for key in ("mixture", "weights", "lr")):
        what = "changes nothing. Give it a mixture, weights or lr."
        yield view.problem(path, what)
    if anneal.fade is not None:
        yield from _fade_unit(view, (*path, "fade"), anneal.fade)
    if anneal.lr is not None:
        yield from stage_lr_rules(view, (*path, "lr"), anneal.lr)


def use_rules(view: View) -> Iterator[Finding]:
    """A source that no stage reads, itself or through a view, may be a mistake."""
    anneal = view.config.run.anneal
    evaluated = {*(view.config.evaluate.sources or ()), *(view.config.evaluate.mixture or ())}
    used = evaluated.union(*(readable(view, stage) for stage in view.stages))
    if anneal is not None:
        used |= {name for name, share in (anneal.mixture or anneal.weights or {}).items() if share > 0}
    sources = view.config.sources
    used |= {of for name in used if isinstance(source := sources.get(name), ViewSource) and (of := source.of)}
    for name, source in sources.items():
        if name not in used and not source.validation_only:
            named = any(name in (stage.mixture or stage.weights or {}) for stage in view.stages)
            how = "has share 0 in every stage" if named else "is in no stage's mixture"
            what = f"{how}, so that it is never read. Give it a share, or take it out."
            yield view.warning(("sources", name), what)
    evaluate = view.config.evaluate
    if evaluate.every is None and not evaluate.at_start and not any(stage.evaluate for stage in view.stages):
        for name in [name for name, source in view.config.sources.items() if source.holds_out]:
            only = view.config.sources[name].validation_only
            how = "is for validation only" if only else "holds documents out of training"
            what = f"{how}, and nothing is evaluated. Write evaluate.every = 500, or evaluate = true in a stage."
            yield view.warning(("sources", name), what)
