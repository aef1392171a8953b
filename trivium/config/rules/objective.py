"""Rules about what a stage minimises: KL to a reference or a teacher, which tokens count, and with which weight."""

from collections.abc import Iterator, Mapping

from trivium.config.fields import is_path
from trivium.config.keys import Path, listed, nearest
from trivium.config.problems import show_value
from trivium.config.rules.stages import readable
from trivium.config.rules.view import Finding, View
from trivium.config.sources import HuggingFaceSource, Source, StreamSource, TextSource, base_of
from trivium.config.stages import Distill, Stage


def objective_rules(view: View) -> Iterator[Finding]:
    """KL has something to be measured to, loss_on conversations to choose in, loss_weight sources that are read."""
    names = [stage.name for stage in view.stages]
    for number, stage in enumerate(view.stages):
        if stage.kl is not None:
            yield from _kl_rules(view, number, stage, names)
        if stage.distill is not None:
            yield from _distill_rules(view, view.stage_path(number, "distill"), stage.distill)
        if stage.loss_on is not None:
            read = readable(view, stage)
            if read and all(_is_text(view.config.sources.get(name)) for name in read):
                what = (
                    f"is {show_value(stage.loss_on)}, but {listed(read)} "
                    f"{'has' if len(read) == 1 else 'have'} no conversations to choose in. Leave it out."
                )
                yield view.problem(view.stage_path(number, "loss_on"), what)
        if stage.loss is not None:
            yield from _loss_rules(view, number, stage)
        if stage.loss_weight is not None:
            yield from _weight_rules(view, number, stage.loss_weight)


def _loss_rules(view: View, number: int, stage: Stage) -> Iterator[Finding]:
    """A loss of a package is the path of a function, and the whole objective."""
    path = view.stage_path(number, "loss")
    if not is_path(stage.loss or ""):
        what = f'is {show_value(stage.loss)}. It must be the path of a function, such as "my_package.losses:smoothed".'
        yield view.problem(path, what)
    for key in ("z_loss", "loss_weight"):
        if getattr(stage, key) is not None:
            what = "is given with loss, which is the whole objective. Leave one of the two out."
            yield view.problem(view.stage_path(number, key), what)
    if stage.kl is not None and stage.kl.direction != "forward":
        what = "is given with loss, to which kl gives its reference and beta. Leave direction out."
        yield view.problem((*view.stage_path(number, "kl"), "direction"), what)


def _weight_rules(view: View, number: int, weights: Mapping[str, float]) -> Iterator[Finding]:
    """Every source with a weight is there; a stage's own weights are of sources that it reads or that are evaluated."""
    path = view.stage_path(number, "loss_weight")
    near = [number - 1, number, number + 1]  # a fade reads sources of the stage before, or of the one behind
    read = {name for each in near if 0 <= each < len(view.stages) for name in readable(view, view.stages[each])}
    for name in weights:
        source = base_of(view.config.sources, name)
        if view.unknown_source(name):
            what = f"there is no source {show_value(name)}. {nearest(name, view.source_names)}"
            yield view.problem((*path, name), what)
        elif path[0] == "stages" and name not in read and source is not None and not source.holds_out:
            what = "is not read in this stage, so that its weight changes nothing. Leave it out, or give it a share."
            yield view.problem((*path, name), what)
    own = readable(view, view.stages[number])
    if not view.written(*path):
        yield view.problem(path, "names no source. Write loss_weight = { code = 0.5 }, or leave it out.")
    elif own and all(weights.get(name, 1.0) == 0 for name in own):
        what = f"is 0 for {listed(own)}, all that the stage reads: it would train on nothing. Write a weight above 0."
        yield view.problem(path, what)


def _is_text(source: Source | None) -> bool:
    """Whether a source is plain text for certain; token files may have their own loss spans."""
    tokenised = isinstance(source, HuggingFaceSource) and source.tokenised
    return isinstance(source, TextSource | StreamSource | HuggingFaceSource) and not tokenised


def _distill_rules(view: View, path: Path, distill: Distill) -> Iterator[Finding]:
    """A teacher is named, and so is its part of the objective."""
    for key, example in (("path", '"runs/teacher"'), ("beta", "0.5")):
        if getattr(distill, key) is None and view.absent(*path, key):
            what = f'is missing. Write {key} = {example} in distill = {{ path = "runs/teacher", beta = 0.5 }}.'
            yield view.problem((*path, key), what)


def _kl_rules(view: View, number: int, stage: Stage, names: list[str | None]) -> Iterator[Finding]:
    assert stage.kl is not None
    path = view.stage_path(number, "kl")
    reference = stage.kl.reference
    if stage.kl.beta is None and view.absent(*path, "beta"):
        yield view.problem((*path, "beta"), "is missing. Write kl = { beta = 0.1 }.")
    if reference is not None and (reference.stage is None) == (reference.path is None):
        if set(view.written(*path, "reference")) <= {*reference.model_fields_set}:
            what = 'needs exactly one of stage and path. Write reference = { path = "runs/base" }.'
            yield view.problem((*path, "reference"), what)
        return
    if reference is not None and reference.step is not None and reference.path is None:
        what = 'is given without path. Write path = "runs/base" too, or leave it out.'
        yield view.problem((*path, "reference", "step"), what)
    if reference is not None and reference.stage is not None and reference.stage not in names[: number + 1]:
        known = [name for name in names[: number + 1] if name]
        what = f"{show_value(reference.stage)} is neither this stage nor one before it."
        yield view.problem((*path, "reference", "stage"), f"{what} {nearest(reference.stage, known)}")
    fresh = view.absent("model", "init")
    starts_at_zero = number == 0 if reference is None else reference.stage is not None and reference.stage == names[0]
    if fresh and starts_at_zero:
        here = "Leave kl out of this stage" if path[0] == "stages" else "Write kl in the stages that need it"
        what = (
            "the reference would be the untrained model of step 0. "
            f'{here}, or give model.init, or reference = {{ path = "runs/base" }}.'
        )
        yield view.problem(path, what)
