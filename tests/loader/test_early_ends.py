"""A stage that ends on a figure while it is read: the next one reads on where it stopped."""

from collections import Counter

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.support.corpus import document_ends
from tests.support.loading import FILES, STAGES, copied, read_tokens, write_config
from trivium.config.stages import CROPPING
from trivium.errors import PlanError
from trivium.loader.loader import Loader
from trivium.plan.make import make_plan
from trivium.run.decisions import StageEnded


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_across_the_early_end_of_a_stage_nothing_is_read_twice_and_nothing_is_lost(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    sources = {name: data.draw(FILES) for name in ("web", "code")}
    stages = data.draw(STAGES)
    for stage in stages:
        stage["packing"] = "bestfit" if stage["packing"] in CROPPING else stage["packing"]
        stage["until"] = {"validation": "all", "below": 2.0}
        stage.get("fade", {}).pop("center", None)
    config = write_config(tmp_path_factory.mktemp("run"), sources, stages, evaluate={"every": 1})
    try:
        plan = make_plan(config)
    except PlanError:  # a stage of one step, before which no figure is measured
        assume(False)
    loader, taken = Loader(plan, prefetch=2), []
    decisions: list[StageEnded] = []
    while loader.step < plan.known_steps:
        end = data.draw(st.integers(loader.step + 1, plan.known_steps))
        for _, batch in loader.batches():
            taken.append(batch)
            if loader.step == end:
                break
        made = StageEnded(step=end, until="validation loss below 2.0", figure=1.9)
        try:
            after = make_plan(config, plan.sources, decisions=[*decisions, made])
        except PlanError:  # within a fade or a ramp
            continue
        if after.known_steps < plan.known_steps:
            assert after.fingerprint(end) == plan.fingerprint(end)
            decisions.append(made)
            plan, loader = after, loader.followed(after, end)
    again = [batch for _, batch in Loader(plan, prefetch=0).batches(start=0)]  # with all that was decided
    assert [copied(batch) for batch in again] == [copied(batch) for batch in taken]
    for name, files in sources.items():
        whole = int(document_ends(files)[-1])
        tokens = [token for batch in taken for token in read_tokens(batch, name)]
        for first in range(0, len(tokens), whole):
            assert Counter(tokens[first : first + whole]) <= Counter(range(whole))
