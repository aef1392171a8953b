"""Rules about `[optimizer]`, and about what stages change of it."""

from collections.abc import Iterator

from trivium.config.keys import Path, listed, nearest
from trivium.config.optimizer import BUILT_IN, KEYS_OF, Optimizer, stage_optimizers
from trivium.config.problems import show_value
from trivium.config.rules.view import Finding, View

PACKAGED = "PACKAGE:NAME"


def optimizer_rules(view: View) -> Iterator[Finding]:
    """Every optimizer is known, has a learning rate for each group, and only keys that it uses."""
    run = view.config.optimizer
    if view.given("model", "depth") and view.absent("optimizer", "name"):
        run = run.model_copy(update={"name": "muon"})  # as the dial chooses
    each = [stage.settings for stage in stage_optimizers(run, view.stages)]
    yield from _table_rules(view, ("optimizer",), run, [run, *each])
    for number, settings in enumerate(each):
        path = ("stages", number, "optimizer")
        if not view.given(*path):
            continue
        if not view.written(*path):
            yield view.problem(
                path, "is empty. Write what this stage changes, as { grad_clip = 0.2 }, or leave it out."
            )
        yield from _table_rules(view, path, settings, [settings])
        if view.given(*path, "name") and settings.name != run.name and view.absent(*path, "lr"):
            what = f"is missing: the rates of {run.name} mean something else with {settings.name}. Write lr too"
            example = "{ matrix = 0.02, rest = 3e-4 }" if settings.name == "muon" else "3e-4"
            yield view.problem((*path, "lr"), f"{what}, for example lr = {example}.")


def _table_rules(view: View, path: Path, settings: Optimizer, users: list[Optimizer]) -> Iterator[Finding]:
    """Of one table; `users` are the optimizers that take keys from it."""
    package, _, name = settings.name.partition(":")
    if view.given(*path, "name") and settings.name not in BUILT_IN and not (package.strip() and name.strip()):
        what = f"{show_value(settings.name)} is not known. {nearest(settings.name, [*BUILT_IN, PACKAGED])}"
        yield view.problem((*path, "name"), what)
        return
    lr = settings.lr
    missing = [group for group in ("matrix", "embedding", "unembedding") if getattr(lr, group) is None]
    if lr.rest is None and view.given(*path, "lr") and view.absent(*path, "lr", "rest"):
        needed = ", ".join([*missing, "rest"])
        what = f"has no value for {needed}. Write rest = 3e-4, which counts for every group not given."
        yield view.problem((*path, "lr"), what)
    for key in (*KEYS_OF, "options"):
        is_momentum = key == "momentum" and path == ("optimizer",)  # for a stage that names muon later
        if view.given(*path, key) and not is_momentum and not any(user.has(key) for user in users):
            names = KEYS_OF.get(key, (PACKAGED,))
            what = f"belongs to {listed(names)}, but the optimizer is {settings.name}. Leave it out"
            instead = f", or write options = {{ {key} = ... }}" if ":" in settings.name else ""
            yield view.problem((*path, key), f"{what}{instead}.")
    if settings.name == "ademamix" and settings.beta3 <= settings.betas[0]:
        what = (
            f"is {settings.beta3:g}, not above the first of betas, {settings.betas[0]:g}: the slow average is not slow"
        )
        yield view.problem((*path, "beta3"), f"{what}. Write beta3 = 0.9999.")
