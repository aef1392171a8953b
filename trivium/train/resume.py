"""May a run go on with this config? The past is fixed, the future is open."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from trivium.config.problems import show_value
from trivium.errors import ResumeError
from trivium.plan.plan import Plan
from trivium.plan.record import first_difference
from trivium.sources.open import OpenSource


def refuse_other_past(state: Mapping[str, Any], plan: Plan, run: str) -> None:
    """ResumeError that names what changed before the checkpoint's step: key, old and new."""
    step = int(state["step"])
    total = plan.total_steps or 0
    if step > total:
        raise ResumeError(
            f"cannot resume at step {step:,}: the config ends at step {total:,}. "
            "Lengthen its last stage, or give run.name another name."
        )
    if plan.fingerprint(step) == state["loader"]["fingerprint"] or skipped_alike(state, plan):
        return
    changed = changed_sources(state["sources"], plan.sources)
    if changed:
        raise ResumeError(
            f"cannot resume at step {step:,}: sources changed since the checkpoint: {', '.join(changed)}. "
            "Put the files back, or give run.name another name."
        )
    difference = first_difference(state["loader"]["record"], plan.record(step))
    advice = f"Put it back, or fork an earlier checkpoint: trivium fork {run} --at STEP new.toml"
    if difference is not None and difference.key.startswith("learning rate"):
        advice = (
            "Put the schedule back: lengthening a run under this shape changes its past. "
            'Set schedule.horizon, or use shape = "wsd", whose past does not depend on its end.'
        )
    raise ResumeError(
        f"cannot resume at step {step:,}: {difference}, and steps 0 to {step - 1:,} have been taken. {advice}"
    )


def skipped_alike(state: Mapping[str, Any], plan: Plan) -> bool:
    """Whether only `guard.skip_steps` differs, and only in steps that the guard had left out by itself."""
    was, now = dict(state["loader"]["record"]), dict(plan.record(int(state["step"])))
    differing = _steps(was.pop("guard.skip_steps", ())) ^ _steps(now.pop("guard.skip_steps", ()))
    return first_difference(was, now) is None and differing <= _steps(state["guard"]["skipped"])


def _steps(spans: Iterable[Sequence[int]]) -> set[int]:
    return {step for first, end in spans for step in range(first, end)}


def changed_sources(was: Mapping[str, Mapping[str, Any]], now: Mapping[str, OpenSource]) -> list[str]:
    """Sources whose content is another than it was, in words."""
    changed = []
    for name, old in was.items():
        source = now.get(name)
        if source is None:
            changed.append(f"{name} (is not on disk)")
        elif source.fingerprint != old["fingerprint"]:
            same = old["documents"] == source.documents
            counts = f"was {old['documents']:,} documents, is {source.documents:,}"
            changed.append(f"{name} ({'other content in as many documents' if same else counts})")
    return changed


def changed_keys(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, str]:
    """Keys of the config that differ, with both values: what a resume records."""
    before, after = flat(old), flat(new)
    return {
        key: f"{show_value(before.get(key, 'absent'))} -> {show_value(after.get(key, 'absent'))}"
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
    }


def flat(value: Any, path: str = "") -> dict[str, Any]:
    """`{"run": {"seed": 1}}` -> `{"run.seed": 1}`."""
    if isinstance(value, Mapping):
        pairs = [(f"{path}.{key}" if path else str(key), inner) for key, inner in value.items()]
    elif isinstance(value, list) and value and all(isinstance(inner, Mapping) for inner in value):
        pairs = [(f"{path}[{number}]", inner) for number, inner in enumerate(value)]
    else:
        return {path: value}
    return {key: leaf for inner_path, inner in pairs for key, leaf in flat(inner, inner_path).items()}
