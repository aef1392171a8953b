"""A loader and a plan that are sent to another process: the same batches there, from the step that they were at."""

import multiprocessing
import pickle
from pathlib import Path
from typing import Any

import pytest

from tests.support.corpus import make_config, write_source
from trivium.loader.loader import Loader
from trivium.plan.make import make_plan
from trivium.plan.plan import Plan

STEP = 4


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    write_source(tmp_path / "web", [[5, 9, 3, 11], [7, 30], [4] * 9], "uint16")
    write_source(tmp_path / "talk", [[12, 6], [3, 3, 20]], loss=True)
    stages = [
        {"steps": 3, "seq_len": 8, "batch_size": 4, "mixture": {"web": 0.5, "talk": 0.5}},
        {"steps": 3, "seq_len": 16, "batch_size": 2, "mixture": {"web": 1.0}},
    ]
    sources = {"web": tmp_path / "web", "talk": tmp_path / "talk"}
    return make_plan(make_config(sources, stages, model={"size": "tiny", "vocab": 512}))


def contents(loader: Loader, step: int) -> list[bytes]:
    """A batch, byte by byte."""
    batch = loader[step]
    return [array.tobytes() for array in (batch.tokens, batch.targets, batch.positions, batch.segments, batch.source)]


def in_other_process(pickled: bytes, answers: Any) -> None:
    """Unpickle what came, and answer with where it is and with batches."""
    came = pickle.loads(pickled)
    with came if isinstance(came, Loader) else Loader(came) as loader:
        first, batch = next(loader.batches())
        answers.put((loader.rank, first, batch.tokens.tobytes(), contents(loader, STEP), came.__class__.__name__))


def asked(what: object) -> Any:
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    process = context.Process(target=in_other_process, args=(pickle.dumps(what), answers))
    process.start()
    found = answers.get(timeout=120)
    process.join()
    assert process.exitcode == 0
    return found


def test_a_loader_reads_the_same_batches_in_a_spawned_process(plan: Plan) -> None:
    with Loader(plan, rank=1, world_size=2, prefetch=0) as loader:
        list(zip(range(2), loader, strict=False))  # two steps are taken
        loader.seek(2, {})
        rank, first, tokens, batch, _ = asked(loader)
        assert (rank, first) == (1, 2)
        assert tokens == loader[2].tokens.tobytes()
        assert batch == contents(loader, STEP)


def test_a_plan_is_the_same_in_a_spawned_process(plan: Plan) -> None:
    _, first, _, batch, kind = asked(plan.complete())
    with Loader(plan, prefetch=0) as loader:
        assert (first, kind) == (0, "CompletePlan")
        assert batch == contents(loader, STEP)


def test_a_copy_by_pickle_has_the_same_record(plan: Plan) -> None:
    copied = pickle.loads(pickle.dumps(plan))
    assert copied.fingerprint(6) == plan.fingerprint(6)
    assert copied.record(6) == plan.record(6)


def test_a_step_is_an_index(plan: Plan) -> None:
    with Loader(plan, prefetch=0) as loader:
        assert contents(loader, -1) == contents(loader, len(loader) - 1)
        for step in (len(loader), -len(loader) - 1):
            with pytest.raises(IndexError, match=f"there is no step {step}: the run has 6."):
                loader[step]
