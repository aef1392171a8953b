"""A loader's state: what it goes on from, which past it refuses, and the state at any step."""

import json

import numpy as np
import pytest

from tests.support.loading import copied
from trivium.config.schema import Config
from trivium.errors import PlanError, ResumeError
from trivium.loader.loader import Loader
from trivium.plan.make import make_plan


def test_a_resume_from_a_saved_state_goes_on_with_the_next_step(config: Config) -> None:
    plan = make_plan(config)
    in_order = [copied(batch) for _, batch in Loader(plan, prefetch=0).batches(start=0)]
    for stop in range(1, plan.known_steps):
        first = Loader(plan, prefetch=3, workers=2)
        batches = first.batches()
        for _ in range(stop):
            next(batches)
        state = json.loads(json.dumps(first.state_dict()))
        batches.close()  # type: ignore[attr-defined]
        second = Loader(make_plan(config), rank=1, world_size=2)
        second.load_state_dict(state)
        assert state["step"] == stop
        assert state["stage_name"] == plan.stage_at(stop).name
        assert next(second.batches())[0] == stop
        whole = Loader(make_plan(config))
        whole.load_state_dict(state)
        assert [copied(batch) for _, batch in whole.batches()] == in_order[stop:]


def test_another_past_is_refused_and_another_future_is_not(config: Config) -> None:
    first = Loader(make_plan(config))
    next(first.batches())
    state = first.state_dict()
    stages = [stage.model_copy() for stage in config.stages]
    future = config.model_copy(update={"stages": (*stages[:2], stages[2].model_copy(update={"seq_len": 8}))})
    Loader(make_plan(future)).load_state_dict(state)
    changed = stages[0].model_copy(update={"mixture": {"web": 0.7, "code": 0.3}})
    past = config.model_copy(update={"stages": (changed, *stages[1:])})
    with pytest.raises(ResumeError) as error:
        Loader(make_plan(past)).load_state_dict(state)
    assert str(error.value) == (
        'cannot resume at step 1: stages[0].mixture.code was "0.25" and is now "0.3", and steps 0 to 0 have been '
        "taken. Put it back, or start a new run."
    )


def test_a_state_of_another_length_or_kind_is_refused(config: Config) -> None:
    loader = Loader(make_plan(config))
    state = {**loader.state_dict(), "step": 19}
    with pytest.raises(ResumeError) as error:
        loader.load_state_dict(state)
    assert str(error.value) == "cannot resume at step 19: the plan has 18. Lengthen its last stage."
    for broken in ({}, {**state, "step": "x"}, {**state, "record": None}):
        with pytest.raises(ResumeError) as error:
            loader.load_state_dict(broken)
        assert str(error.value) == "this is not the state of a loader. Give what its state_dict returned."
    with pytest.raises(PlanError) as problem:
        next(loader.batches(start=19))
    assert str(problem.value) == "there is no step 19: the run has 18 steps, from 0 to 17."


def test_the_state_at_a_step_is_the_one_that_was_there_and_moves_nothing(config: Config) -> None:
    loader = Loader(make_plan(config), prefetch=0)
    states = [loader.state_dict()]
    for _ in loader:
        states.append(loader.state_dict())
    loader = Loader(make_plan(config))
    assert [loader.state_at(step) for step in range(len(loader) + 1)] == states
    assert loader.step == 0


def test_seek_asks_nothing_of_the_past(config: Config) -> None:
    loader = Loader(make_plan(config), prefetch=0)
    loader.seek(2, {})
    step, batch = next(loader.batches())
    assert step == 2
    assert np.array_equal(batch.tokens, Loader(make_plan(config)).batch(2).tokens)
    with pytest.raises(ResumeError) as error:
        loader.seek(len(loader) + 1, {})
    assert str(error.value).startswith(f"cannot resume at step {len(loader) + 1:,}: the plan has {len(loader):,}.")
