"""A run <-> its part of a checkpoint: what is saved, what is loaded, and whether a run may continue with this config.

The past is fixed, the future is open: a config that changes a step that has been taken is refused by key. What the
engine keeps is its own; here are the plain values beside it, in `state.json`.
"""

import json
import os
import platform
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import asdict, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w

from trivium.ask.convert import readable_weights
from trivium.config.fields import Extent
from trivium.config.keys import flat_keys
from trivium.config.problems import show_value
from trivium.config.redact import redacted
from trivium.config.schema import Config
from trivium.errors import PlanError, ResumeError, UsageError
from trivium.model.folder import is_saved
from trivium.plan.export import plan_json
from trivium.plan.make import decided_plan, make_plan
from trivium.plan.plan import CompletePlan
from trivium.plan.record import Difference, first_difference
from trivium.run.decisions import as_plain, keep_decisions, known_at
from trivium.run.events import Evaluated, Started, WeightsRead
from trivium.run.folder import Checkpoint
from trivium.run.machine import machine_facts, this_host
from trivium.run.restore import fetch_references, find_resume_checkpoint
from trivium.train.setup import init_folder
from trivium.train.until import refuse_other_ends

if TYPE_CHECKING:
    from trivium.train.session import Session
    from trivium.train.trainer import Trainer

# Keys of a config that decide the learning rate and the momentum of steps, apart from what is compared by itself.
RATE_KEYS = re.compile(
    r"(schedule|run\.anneal|optimizer\.momentum|defaults\.lr|stages\[\d+\]\.(lr|optimizer\.momentum|steps|tokens|epochs))\b"
)


def checkpoint_state(trainer: "Trainer", session: "Session") -> dict[str, Any]:
    """What a checkpoint keeps of a run beside what the engine keeps, at the trainer's step."""
    loader = trainer.loader.state_at(trainer.step)
    return {
        "step": trainer.step,
        "stage": loader["stage"],
        "stage_name": loader["stage_name"],
        "loader": loader,
        "sources": {
            name: {"fingerprint": source.fingerprint, "documents": source.documents, "tokens": source.tokens}
            for name, source in trainer.plan.sources.items()
        },
        "config": raw_config(trainer.config),
        "decisions": as_plain(trainer.plan.decisions),
        "total_steps": trainer.plan.total_steps,
        "longest_steps": trainer.plan.longest_steps,
        "references": deepcopy(session.references.found),  # a save in the background writes it later
        "meter": session.meter.state(),
        "guard": session.guard.state(),
        "best": dict(session.best),
        "best_step": session.saver.best_step,
        "validation": None
        if session.last_evaluation is None
        else asdict(replace(session.last_evaluation, seconds=0.0)),
        "evaluated_end": session.evaluated_end,
        "measured_at": session.measured_at,
        "own": _plain(trainer.state()),
        "versions": versions(),
        "world_size": trainer.ranks.size,
        "settings": bit_settings(trainer),
    }


def save_checkpoint(trainer: "Trainer", session: "Session", reason: str) -> None:
    """Write a checkpoint of the steps taken so far; a dry run writes only what a stage's KL needs."""
    is_reference = trainer.step in session.references.boundaries
    if trainer.dry_run and not is_reference:
        return
    with session.under_way("saving a checkpoint"):
        session.saver.save(
            session.engine,
            trainer.step,
            checkpoint_state(trainer, session),
            reason,
            background=trainer.config.checkpoint.background and reason == "cadence",
            must_succeed=is_reference or reason in ("final", "stopped"),
        )


def _plain(state: dict[str, Any]) -> dict[str, Any]:
    """A user's own state, which must come back as it was."""
    if not isinstance(state, dict):
        raise UsageError(f"Trainer.state(): returned {state!r}. Return a dict, or {{}} for nothing.")
    try:
        kept: dict[str, Any] = json.loads(json.dumps(state))
    except (TypeError, ValueError) as error:
        raise UsageError(f"Trainer.state(): {error}. Return a dict of numbers, texts, lists and dicts.") from None
    if repr(kept) != repr(state):  # NaN is not equal to itself
        raise UsageError("Trainer.state(): JSON would change it. Use lists for tuples, and texts for keys.")
    return kept


def restore(trainer: "Trainer", session: "Session") -> None:
    """Load the last sound checkpoint, or initial weights where there is none, and report how the launch begins."""
    mirror, ranks = session.saver.mirror, trainer.ranks
    _plain(trainer.state())  # what could not be saved is refused now, not at the first checkpoint
    second = None if mirror is None else mirror.target
    boundaries = session.references.boundaries
    with session.under_way("reading the last checkpoint"):
        checkpoint = find_resume_checkpoint(session.folder, second, boundaries, session.say, ranks)
    if checkpoint is None:
        with session.under_way("making the first weights"):
            load_initial_weights(trainer, session)
    with ranks.as_one():
        step = 0 if checkpoint is None else checkpoint.step
        _refuse_late_decision(trainer, step)
        _plan_from(trainer, step)
        refuse_other_ends(trainer.plan, trainer.decisions, step, session.folder)
        with session.under_way(f"loading the checkpoint of step {step:,}"):
            changes = {} if checkpoint is None else load_checkpoint(trainer, session, checkpoint)
        if second is not None and ranks.is_main:
            fetch_references(session.folder, second, [step for step in boundaries if step < trainer.step], session.say)
    with ranks.as_one():
        session.references.check(trainer.step)
        if ranks.is_main:
            keep_decisions(session.folder, trainer.decisions)
            write_plan(trainer, session)
            session.row_losses.begin(trainer.step)
    devices = ranks.gather([this_host(), trainer.engine.computes_in()["device"]])
    session.tell(
        Started(
            step=trainer.step,
            run=trainer.config.run.name or "run",
            resumed=checkpoint is not None,
            total_steps=trainer.plan.total_steps,
            world_size=ranks.size,
            versions=versions(),
            settings=bit_settings(trainer),
            changes=changes | _decided(trainer),
            lineage=session.folder.lineage,
            machine=machine_facts([(host, device) for host, device in devices], _config_folder(trainer)),
        )
    )
    session.started = True


def _config_folder(trainer: "Trainer") -> Path:
    """The folder of the config's file; without one, the present folder."""
    return Path() if trainer.loaded is None else trainer.loaded.path.parent


def write_plan(trainer: "Trainer", session: "Session") -> None:
    """Write down the config and the plan that a run goes on by."""
    session.folder.write_plan(tomli_w.dumps(raw_config(trainer.config)), plan_json(trainer.plan, trainer.loaded))


def _plan_from(trainer: "Trainer", step: int) -> None:
    """Plan with what is known at the step that a run resumes at, which may be before the last checkpoint's."""
    known = known_at(trainer.decisions, step)
    if known != trainer.plan.decisions:
        trainer.follow(decided_plan(trainer.plan, known))


def _refuse_late_decision(trainer: "Trainer", step: int) -> None:
    """A decision is for the step that a launch resumes at: refused where that is not the one that was planned with."""
    if trainer.decides and trainer.planned_from != step:
        what = f"--batch-size: is planned from step {trainer.planned_from:,} on, and the run resumes at step {step:,}"
        raise ResumeError(
            f"{what}: its last checkpoint is another one by now. Start it again, and it is decided there."
        )


def _decided(trainer: "Trainer") -> dict[str, str]:
    """What this launch has decided, as a change of its stage's batch size."""
    if not trainer.decides:
        return {}
    step = trainer.planned_from
    stage = trainer.plan.stage_at(step)
    before = stage.size_at(step - 1) if step > stage.start else stage.config.batches.size_at(0)
    return {f"stages[{stage.index}].batch_size": f"{before} -> {stage.size_at(step)} (--batch-size)"}


def load_checkpoint(trainer: "Trainer", session: "Session", checkpoint: Checkpoint) -> dict[str, str]:
    """Put a run and its engine at a checkpoint's step; refuses another past. Returns what changed in the config."""
    state = checkpoint.state()
    refuse_other_past(state, trainer.plan, str(session.folder.path))
    step = int(state["step"])
    trainer.loader.seek(step, state["loader"].get("lanes", {}))
    if is_saved(checkpoint.engine):
        session.engine.load(checkpoint.engine, trainer.own.optimizer_of(trainer.plan.optimizer_before(step)))
    else:  # a fork from another engine: the weights alone
        session.engine.start_from(checkpoint.engine)
    trainer.step = step
    session.meter.load_state(state["meter"])
    session.guard.load_state(state["guard"])
    session.best = dict(state["best"])
    session.saver.best_step = state["best_step"]
    session.last_evaluation = None if state["validation"] is None else Evaluated(**state["validation"])
    session.evaluated_end = int(state.get("evaluated_end", 0))
    session.measured_at = int(state.get("measured_at", 0))
    session.references.found = dict(state.get("references", {}))
    trainer.load_state(state["own"])
    changes = changed_keys(state["config"], raw_config(trainer.config))
    now = {"world_size": trainer.ranks.size, "layout": bit_settings(trainer)["layout"]}
    return changes | changed_keys({"world_size": state["world_size"], "layout": state["settings"]["layout"]}, now)


def load_initial_weights(trainer: "Trainer", session: "Session") -> None:
    """Load the weights that `model.init` names, with the optimizer's state where asked; else draw the seed's."""
    config, ranks = trainer.config, trainer.ranks
    with ranks.as_one():
        folder = init_folder(config, ranks)
    if folder is None:
        session.engine.draw()
        return
    with (
        readable_weights(folder, config.engine.name, session.folder.path / ".weights", ranks) as readable,
        ranks.as_one(),
    ):
        if config.model.init_optimizer:
            session.engine.load(readable, trainer.own.optimizer_of(trainer.plan.optimizer_before(0)))
        else:
            session.engine.start_from(readable)
    read = trainer.plan.starting
    assert read is not None, "a plan that starts from weights has looked at them"
    what = f"weights {'and optimizer ' if config.model.init_optimizer else ''}from {folder}: {read.words()}"
    session.tell(WeightsRead(step=trainer.step, text=what, **asdict(replace(read, folder=str(folder)))))
    if trainer.plan.inherited.warning is not None:
        session.say(str(trainer.plan.inherited.warning))


def bit_settings(trainer: "Trainer") -> dict[str, Any]:
    """What may change the bits of a run, but never its batches."""
    keys = ("micro_batch_size", "recompute", "compile", "deterministic", "float8")
    engine = trainer.config.engine
    threads = {"threads": os.environ.get("OMP_NUM_THREADS")} if engine.name == "torch" else {}
    own = {"engine": engine.name, **{key: getattr(engine, key) for key in keys}}
    return {**own, **trainer.engine.computes_in(), **threads, "layout": asdict(trainer.mesh)}


def raw_config(config: Config) -> dict[str, Any]:
    """A config's keys as they were written, without the credentials in its addresses: this is kept and shown."""
    raw: dict[str, Any] = redacted(config.model_dump(mode="json", exclude_none=True, exclude_unset=True))
    return raw


def versions() -> dict[str, str]:
    """The versions that a run's bits depend on: Python's, and those of the packages that compute."""
    found = {"python": platform.python_version(), "machine": platform.machine()}
    for package in ("trivium", "numpy", "numba", "torch", "jax"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def refuse_other_past(state: Mapping[str, Any], plan: CompletePlan, run: str) -> None:
    """ResumeError that names what changed before the checkpoint's step: key, old and new."""
    step = int(state["step"])
    total = plan.total_steps
    if step > total:
        raise ResumeError(
            f"cannot resume at step {step:,}: the config ends at step {total:,}. "
            "Lengthen its last stage, or give run.name another name."
        )
    if plan.fingerprint(step) == state["loader"]["fingerprint"] or skipped_alike(state, plan):
        return
    was, now = state["loader"]["record"], plan.record(step)
    cut = _cut_otherwise(was, now)
    changed = changed_sources(state, plan)
    if changed and cut is None:
        raise ResumeError(
            f"cannot resume at step {step:,}: sources changed since the checkpoint: {', '.join(changed)}. "
            "Put the files back, or give run.name another name."
        )
    # What a source holds out decides shares and lengths too: the source's own key is named before theirs.
    both = [key for key in was if key in now and key.startswith("sources.")]
    difference = first_difference({key: was[key] for key in both}, {key: now[key] for key in both})
    difference = cut or difference or first_difference(was, now)
    found = str(difference)
    advice = f"Put it back, or fork an earlier checkpoint: trivium fork {run} --at STEP new.toml"
    if difference is not None and difference.key.startswith("Trainer."):
        advice = f'Put the method back, or start a new run from the checkpoint: model.init = "{run}".'
    elif difference is not None and difference.key.endswith((".family.source", ".loss.source")):
        advice = f'Put the package back as it was, or start a new run from the checkpoint: model.init = "{run}".'
    elif difference is not None and difference.key.endswith(".validation"):
        advice = "Put it back. To evaluate on more documents, add a source with validation_only = true."
    elif difference is not None and difference.key.endswith(".batch_size"):
        advice = f"Put it back, and give --batch-size to change it from step {step:,} on."
    elif difference is not None and difference.key.startswith(("learning rate", "momentum")):
        keys = ", ".join(_rate_keys(state, plan))
        if not keys and state.get("total_steps", total) != total:  # tokens keep their number, and so steps do not
            keys = f"the run had {state['total_steps']:,} steps and now has {total:,}"
        found = f"{keys}, which changes the {difference.key} on" if keys else f"the {difference.key} on changed"
        kept = dict(_keeping_rates(state, plan))
        if kept:
            advice = f"Put it back, or write {' or '.join(kept)}, which keeps the rates of the steps taken."
            advice += "".join(f" {warning}" for warning in kept.values() if warning)
    taken = f"{found}, and steps 0 to {step - 1:,} have been taken"
    raise ResumeError(f"cannot resume at step {step:,}: {taken}. {advice}")


def _cut_otherwise(was: Mapping[str, Any], now: Mapping[str, Any]) -> Difference | None:
    """What differs in how a source that both have read is cut, or chosen by score: it says more than its content."""
    read = [key.removesuffix("content") for key in was if key.endswith(".content") and key in now]
    keys = tuple(f"{source}{key}" for source in read for key in ("fim.", "score."))
    old, new = ({key: record[key] for key in record if key.startswith(keys)} for record in (was, now))
    return first_difference(old, new)


def _rate_keys(state: Mapping[str, Any], plan: CompletePlan) -> list[str]:
    """`stages[0].steps was 20 and is now 12`: the keys that decide rates and differ."""
    before, after = flat_keys(state["config"]), flat_keys(raw_config(plan.config))
    differing = [key for key in sorted(before | after) if RATE_KEYS.match(key) and before.get(key) != after.get(key)]
    return [str(Difference(key, before.get(key), after.get(key))) for key in differing]


def _keeping_rates(state: Mapping[str, Any], plan: CompletePlan) -> Iterator[tuple[str, str]]:
    """Keys of the schedule with which this plan would have taken the same steps as the checkpoint's.

    Each with a warning where later steps would then learn nothing.
    """
    step, schedule = int(state["step"]), plan.config.schedule
    if schedule.points or schedule.cycle is not None:
        return  # they have neither a horizon nor a decay
    extents = {"horizon": Extent(steps=state.get("longest_steps") or state.get("total_steps", 0))}
    if schedule.shape == "wsd":
        extents["decay"] = Extent(steps=plan.total_steps - step)
    for key, extent in extents.items():
        config = plan.config.model_copy(update={"schedule": schedule.model_copy(update={key: extent})})
        with suppress(PlanError):
            other = make_plan(config, plan.sources, own=plan.own, decisions=plan.decisions).complete()
            if other.fingerprint(step) == state["loader"]["fingerprint"]:
                written = f"schedule.{key} = {{ steps = {extent.steps} }}"
                ends_at_zero = any(other.lr_multiplier(stage.end - 1) == 0 for stage in other.stages)
                extend = f"schedule.extend = {{ at = {{ steps = {step} }}, to = {{ steps = {plan.total_steps} }} }}"
                warning = (
                    f"With {written} the learning rate is 0 from step {extent.steps:,} on: "
                    f"stretch the rest of it, {extend}, "
                    'or put those steps into a stage with its own rate, lr = { shape = "linear" }.'
                )
                yield written, warning if ends_at_zero else ""


def skipped_alike(state: Mapping[str, Any], plan: CompletePlan) -> bool:
    """Whether only `guard.skip_steps` differs, and only in steps that the guard had skipped by itself."""
    was, now = dict(state["loader"]["record"]), dict(plan.record(int(state["step"])))
    differing = _steps(was.pop("guard.skip_steps", ())) ^ _steps(now.pop("guard.skip_steps", ()))
    return first_difference(was, now) is None and differing <= _steps(state["guard"]["skipped"])


def _steps(spans: Iterable[Sequence[int]]) -> set[int]:
    return {step for first, end in spans for step in range(first, end)}


def changed_sources(state: Mapping[str, Any], plan: CompletePlan) -> list[str]:
    """Sources that were read and whose content is another than it was, in words."""
    was, now = state["loader"]["record"], plan.record(int(state["step"]))
    changed = []
    for name, source in plan.sources.items():
        key = f"sources.{name}.content"
        if key in was and key in now and was[key] != now[key]:
            documents = state["sources"][name]["documents"]
            same = documents == source.documents
            counts = f"was {documents:,} documents, is {source.documents:,}"
            changed.append(f"{name} ({'other content in as many documents' if same else counts})")
    return changed


def changed_keys(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, str]:
    """Keys of the config that differ, with both values: what a resume records."""
    before, after = flat_keys(old), flat_keys(new)
    return {
        key: f"{show_value(before.get(key, 'absent'))} -> {show_value(after.get(key, 'absent'))}"
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
    }
