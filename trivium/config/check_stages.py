"""Rules about stages: names, lengths, mixtures, row and batch sizes, fades, learning rates, objectives."""

from collections.abc import Iterator

from trivium.config.check_model import shape_keys, shares_rules
from trivium.config.keys import nearest
from trivium.config.numbers import show_count
from trivium.config.problems import show_value
from trivium.config.schema import Fade, Rope, Stage
from trivium.config.sources import StreamSource, TextSource
from trivium.config.view import Finding, View

BUDGETS = ("steps", "tokens", "epochs")
WAYS = ("mixture", "weights", "sources")


def name_rules(view: View) -> Iterator[Finding]:
    """There are stages, and each has a name of its own that is not a number."""
    if not view.stages and not view.given("stages"):
        what = "there is none. Write [[stages]] with a name, a length (steps, tokens or epochs) and a mixture."
        yield view.problem(("stages",), what)
    first_with: dict[str, int] = {}
    for number, stage in enumerate(view.stages):
        path = ("stages", number, "name")
        if stage.name is None:
            if not view.given(*path):
                yield view.problem(path, 'is missing. Write name = "general".')
        elif not stage.name.strip():
            yield view.problem(path, 'is blank. Write name = "general".')
        elif stage.name.isdecimal():
            what = (
                f'is {show_value(stage.name)}, which overrides take for a position. Write name = "stage-{stage.name}".'
            )
            yield view.problem(path, what)
        elif "." in stage.name or "=" in stage.name:
            what = f"is {show_value(stage.name)}; overrides are split at . and =. Use letters, digits and dashes."
            yield view.problem(path, what)
        elif stage.name in first_with:
            first = f"stages[{first_with[stage.name]}].name"
            what = f"is {show_value(stage.name)}, as is {first}. Give each stage a name of its own."
            yield view.problem(path, what)
        else:
            first_with[stage.name] = number


def budget_rules(view: View) -> Iterator[Finding]:
    """A stage's length is said in exactly one unit, and in one that its sources have."""
    for number, stage in enumerate(view.stages):
        given = [key for key in BUDGETS if view.given("stages", number, key)]
        if len(given) != 1:
            has = f"has {' and '.join(given)}" if given else "has no length"
            what = f'{has}, but needs exactly one of steps, tokens, epochs. Write for example tokens = "2B".'
            yield view.problem(("stages", number), what)
        if stage.epochs is not None:
            yield from _epoch_rules(view, number, stage)


def _epoch_rules(view: View, number: int, stage: Stage) -> Iterator[Finding]:
    assert stage.epochs is not None
    path = ("stages", number, "epochs")
    read = readable(view, stage)
    source = stage.epochs.source
    if source is not None and source not in view.source_names:
        yield view.problem((*path, source), f"there is no source {show_value(source)}. {nearest(source, read)}")
    elif source is not None and source not in read:
        what = f"the stage does not read {show_value(source)}, so that it would never end. {nearest(source, read)}"
        yield view.problem((*path, source), what)
    elif source is None and len(read) > 1 and (stage.mixture is not None or stage.weights is not None):
        what = (
            f"is {stage.epochs.epochs:g}, but {', '.join(read)} are read at different speeds. "
            f"Name the one that counts: epochs = {{ {read[0]} = {stage.epochs.epochs:g} }}."
        )
        yield view.problem(path, what)
    for name in [source] if source is not None else read:
        if isinstance(view.config.sources.get(name), StreamSource):
            what = f"{name} is a stream, which has no epochs. Write steps or tokens instead."
            yield view.problem(path, what)


def readable(view: View, stage: Stage) -> list[str]:
    """The sources that a stage reads: those with a share, or all that may be trained on."""
    shares = stage.mixture if stage.mixture is not None else stage.weights
    if shares is not None:
        return [name for name, share in shares.items() if share > 0]
    if stage.sources is not None:
        return list(stage.sources)
    sources = view.config.sources
    return [name for name in view.source_names if name not in sources or not sources[name].validation_only]


def mixture_rules(view: View) -> Iterator[Finding]:
    """Shares that add up, weights that are not all zero, and one of the two."""
    for number, stage in enumerate(view.stages):
        path = view.stage_path(number)
        ways = [key for key in WAYS if view.given("stages", number, key)]
        if len(ways) > 1:
            what = f"has {' and '.join(ways)}, but needs one of them at most. Keep mixture for shares that add up to 1."
            yield view.problem(path, what)
            continue
        if stage.mixture is not None:
            yield from shares_rules(view, view.stage_path(number, "mixture"), stage.mixture, add_up=True)
            if stage.temperature != 1:
                what = (
                    f"is {stage.temperature:g}, but mixture gives the shares as they are. "
                    f"Write weights = {show_value(stage.mixture)} instead of mixture."
                )
                yield view.problem(view.stage_path(number, "temperature"), what)
        elif stage.weights is not None:
            yield from shares_rules(view, view.stage_path(number, "weights"), stage.weights, add_up=False)
        elif not view.stage_given(number, "mixture") and not view.stage_given(number, "weights"):
            for name in stage.sources or ():
                if name not in view.source_names:
                    what = f"{show_value(name)} is no source. {nearest(name, view.source_names)}"
                    yield view.problem(view.stage_path(number, "sources"), what)
            streams = [
                name for name in readable(view, stage) if isinstance(view.config.sources.get(name), StreamSource)
            ]
            if streams:
                what = f"is missing: {streams[0]} is a stream and has no size to be in proportion to. Write the shares."
                yield view.problem((*path, "mixture"), what)


def shape_rules(view: View) -> Iterator[Finding]:
    """A batch size is said once, and is whole rows."""
    for number, stage in enumerate(view.stages):
        given = [key for key in ("batch_size", "batch_tokens") if view.given("stages", number, key)]
        if len(given) == 2:
            what = "has batch_size and batch_tokens, but needs one of them. Keep batch_size for rows."
            yield view.problem(("stages", number), what)
        if stage.batch_tokens is not None and stage.batch_tokens % stage.seq_len:
            rows = stage.batch_tokens / stage.seq_len
            near = sorted({max(1, int(rows)) * stage.seq_len, (int(rows) + 1) * stage.seq_len})
            what = (
                f"is {stage.batch_tokens:,}, which is {rows:.6g} rows of {stage.seq_len:,}. "
                f"Write {' or '.join(f'batch_tokens = {count}' for count in near)}."
            )
            yield view.problem(view.stage_path(number, "batch_tokens"), what)


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
        step_tokens = stage.tokens_of_step
        if number == 0 or stage.epochs is not None:
            continue
        length = stage.tokens if stage.tokens is not None else (stage.steps or 0) * step_tokens
        fade = stage.fade.tokens if stage.fade.tokens is not None else (stage.fade.steps or 0) * step_tokens
        if length and fade > length:
            lengths = f"is {show_count(fade)} tokens, longer than its stage of {show_count(length)}"
            what = f"{lengths}. Write fade = {length} or less."
            yield view.problem(path, what)


def _fade_unit(view: View, path: tuple[str | int, ...], fade: Fade) -> Iterator[Finding]:
    if fade.tokens is not None and fade.steps is not None:
        yield view.problem(path, 'has tokens and steps, but needs one of them. Write fade = "50M".')
    if fade.tokens is None and fade.steps is None and not (view.given(*path, "tokens") or view.given(*path, "steps")):
        yield view.problem(path, 'has no length. Write fade = "50M".')


def lr_rules(view: View) -> Iterator[Finding]:
    """A stage's own learning rate says only what its shape has."""
    for number, stage in enumerate(view.stages):
        if stage.lr is None:
            continue
        path = view.stage_path(number, "lr")
        yield from view.extent_rules((*path, "warmup"), stage.lr.warmup)
        yield from view.extent_rules((*path, "decay"), stage.lr.decay)
        yield from shape_keys(view, path, stage.lr.shape, stage.lr.warmup)


def rope_rules(view: View) -> Iterator[Finding]:
    """Rows are no longer than the model allows; scaling and its factor come together."""
    model = view.config.model
    if model.rope is not None:
        yield from _scaling_rules(view, ("model", "rope"), model.rope)
    for number, stage in enumerate(view.stages):
        if stage.rope is not None:
            yield from _scaling_rules(view, view.stage_path(number, "rope"), stage.rope)
        rope = stage.rope if stage.rope is not None else model.rope
        if model.max_seq_len is None:
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


def _scaling_rules(view: View, path: tuple[str | int, ...], rope: Rope) -> Iterator[Finding]:
    if rope.scaling is not None and not view.given(*path, "factor"):
        yield view.problem((*path, "factor"), "is missing: scaling needs to know how far. Write factor = 4.")
    if rope.factor is not None and not view.given(*path, "scaling"):
        what = 'is given without scaling. Write scaling = "yarn" or scaling = "linear" too.'
        yield view.problem((*path, "factor"), what)


def objective_rules(view: View) -> Iterator[Finding]:
    """KL has something to be measured to; loss_on has conversations to choose in."""
    names = [stage.name for stage in view.stages]
    for number, stage in enumerate(view.stages):
        if stage.kl is not None:
            yield from _kl_rules(view, number, stage, names)
        if stage.loss_on is not None:
            read = readable(view, stage)
            kinds = [view.config.sources.get(name) for name in read]
            if kinds and all(isinstance(source, TextSource | StreamSource) for source in kinds):
                what = (
                    f"is {show_value(stage.loss_on)}, but {', '.join(read)} "
                    f"{'has' if len(read) == 1 else 'have'} no conversations to choose in. Leave it out."
                )
                yield view.problem(view.stage_path(number, "loss_on"), what)


def _kl_rules(view: View, number: int, stage: Stage, names: list[str | None]) -> Iterator[Finding]:
    assert stage.kl is not None
    path = view.stage_path(number, "kl")
    reference = stage.kl.reference
    if stage.kl.beta is None and not view.given(*path, "beta"):
        yield view.problem((*path, "beta"), "is missing. Write kl = { beta = 0.1 }.")
    if reference is not None and (reference.stage is None) == (reference.path is None):
        what = 'needs exactly one of stage and path. Write reference = { stage = "general" }.'
        yield view.problem((*path, "reference"), what)
    elif reference is not None and reference.stage is not None and reference.stage not in names[: number + 1]:
        known = [name for name in names[: number + 1] if name]
        what = (
            f"{show_value(reference.stage)} is neither this stage nor one before it. {nearest(reference.stage, known)}"
        )
        yield view.problem((*path, "reference", "stage"), what)
    fresh = view.config.model.init is None and not view.given("model", "init")
    starts_at_zero = number == 0 if reference is None else reference.stage is not None and reference.stage == names[0]
    if fresh and starts_at_zero:
        what = (
            "the reference would be the untrained model of step 0. "
            'Give model.init, or reference = { path = "..." }, or leave kl out of this stage.'
        )
        yield view.problem(path, what)


def anneal_rules(view: View) -> Iterator[Finding]:
    """The anneal stage has a start, something that changes, and a name of its own."""
    anneal = view.config.run.anneal
    if anneal is None:
        return
    path = ("run", "anneal")
    if not view.given(*path, "start"):
        yield view.problem((*path, "start"), "is missing. Write start = 0.9.")
    if anneal.name in [stage.name for stage in view.stages]:
        what = f'{show_value(anneal.name)} is the name of a stage already. Write name = "cooldown".'
        yield view.problem((*path, "name"), what)
    if view.given(*path, "mixture") and view.given(*path, "weights"):
        yield view.problem(path, "has mixture and weights, but needs one of them at most. Keep one.")
    elif anneal.mixture is not None:
        yield from shares_rules(view, (*path, "mixture"), anneal.mixture, add_up=True)
    elif anneal.weights is not None:
        yield from shares_rules(view, (*path, "weights"), anneal.weights, add_up=False)
    if not any(view.given(*path, key) for key in ("mixture", "weights", "lr")):
        what = "changes nothing. Give it a mixture, weights or lr."
        yield view.problem(path, what)
    if anneal.fade is not None:
        yield from _fade_unit(view, (*path, "fade"), anneal.fade)
    if anneal.lr is not None:
        yield from shape_keys(view, (*path, "lr"), anneal.lr.shape, anneal.lr.warmup)
        yield from view.extent_rules((*path, "lr", "warmup"), anneal.lr.warmup)
        yield from view.extent_rules((*path, "lr", "decay"), anneal.lr.decay)


def use_rules(view: View) -> Iterator[Finding]:
    """A source that no stage reads may be a mistake."""
    anneal = view.config.run.anneal
    used = {name for stage in view.stages for name in readable(view, stage)}
    if anneal is not None:
        used |= {name for name, share in (anneal.mixture or anneal.weights or {}).items() if share > 0}
    for name, source in view.config.sources.items():
        if name not in used and not source.validation_only:
            named = any(name in (stage.mixture or stage.weights or {}) for stage in view.stages)
            how = "has share 0 in every stage" if named else "is in no stage's mixture"
            what = f"{how}, so that it is never read. Give it a share, or take it out."
            yield view.warning(("sources", name), what)
