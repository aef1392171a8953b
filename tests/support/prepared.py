"""Plans of one source that is prepared, or not yet; and what is read of it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.corpus import make_config
from trivium.errors import PlanError
from trivium.loader.loader import Loader
from trivium.plan.make import make_plan
from trivium.plan.plan import Plan
from trivium.tokenfiles.open import open_source

TEXTS = [f"text {number} " * 5 for number in range(20)]
BYTES = {"kind": "bytes"}
STAGE: dict[str, Any] = {"epochs": 1, "seq_len": 64, "batch_size": 1}
THREE_STEPS: dict[str, Any] = {"steps": 3, "seq_len": 64, "batch_size": 1}


def plan_of(
    source: dict[str, Any], stages: Sequence[dict[str, Any]] = (STAGE,), tokenizer: dict[str, str] | None = None
) -> Plan:
    tables = {"tokenizer": BYTES if tokenizer is None else tokenizer}
    return make_plan(make_config({"web": source}, stages, **tables), prepare=True)


def unprepared_plan(source: dict[str, Any]) -> Plan:
    return make_plan(make_config({"web": source}, [THREE_STEPS], tokenizer=BYTES))


def targets_of(plan: Plan) -> list[int]:
    """All targets that are learnt, in the order of the run."""
    found = []
    for _, batch in Loader(plan, prefetch=0).batches():
        found += batch.targets[batch.targets != -100].tolist()
    return found


def tokens_in(folder: Path) -> list[int]:
    return [token for file in open_source(folder) for token in file.tokens.tolist()]


def prepared(cache: Path) -> list[Path]:
    return sorted((cache / "prepared").iterdir())


def refused(plan: Plan) -> str:
    with pytest.raises(PlanError) as error:
        Loader(plan)
    return str(error.value)


def gap_of(where: object, size: str = "") -> str:
    return (
        f"sources.web: {where} is not prepared yet{size}: its size and epochs are not known. "
        "Run trivium prepare CONFIG, or trivium plan --prepare CONFIG."
    )
