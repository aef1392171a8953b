"""The planner's problems, warnings and gaps: what it refuses, what it only mentions, what it cannot know yet."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.corpus import make_config, write_source
from tests.support.plans import config_of, plan_of
from trivium.errors import PlanError
from trivium.plan.make import make_plan, stage_configs
from trivium.plan.plan import Plan

ROWS = {"seq_len": 8, "batch_size": 2}  # 16 tokens in a step


def small(tmp_path: Path, *stages: dict[str, Any], **source: Any) -> Plan:
    """A plan over a source `web` of 64 tokens and, where a stage reads it, `code` of 640."""
    write_source(tmp_path / "web", [[8] * 8])
    write_source(tmp_path / "code", [[8] * 80])
    sources = {
        "web": {"kind": "tokens", "path": str(tmp_path / "web"), **source},
        "code": {"kind": "tokens", "path": str(tmp_path / "code")},
    }
    config = make_config(sources, [{**ROWS, **stage} for stage in stages], model={"size": "tiny", "vocab": 1000})
    return make_plan(config)


def refused(tmp_path: Path, *stages: dict[str, Any], **source: Any) -> str:
    with pytest.raises(PlanError) as error:
        small(tmp_path, *stages, **source)
    return str(error.value)


def test_a_share_over_the_sources_cap_is_refused_with_a_share_that_fits(tmp_path: Path) -> None:
    stage = {"steps": 16, "mixture": {"web": 0.5, "code": 0.5}}
    assert refused(tmp_path, stage, max_epochs=1) == (
        "stages[0].mixture.web: needs 128 tokens, the source has 64: 2 epochs, over sources.web.max_epochs = 1. "
        "Lower the share from 0.5 to 0.25, or set sources.web.max_epochs = 2."
    )


def test_a_source_alone_over_its_cap_is_refused_with_a_length_that_fits(tmp_path: Path) -> None:
    assert refused(tmp_path, {"steps": 12, "mixture": {"web": 1.0}}, max_epochs=2) == (
        "stages[0].mixture.web: needs 192 tokens, the source has 64: 3 epochs, over sources.web.max_epochs = 2. "
        "Shorten the stage to 8 steps, or set sources.web.max_epochs = 3."
    )


def test_a_cap_that_earlier_stages_have_used_up_leaves_nothing(tmp_path: Path) -> None:
    stages = {"steps": 4, "mixture": {"web": 1.0}}, {"steps": 8, "mixture": {"web": 0.5, "code": 0.5}}
    assert refused(tmp_path, *stages, max_epochs=1) == (
        "stages[1].mixture.web: needs 64 tokens, the source has 64: 2 epochs, over sources.web.max_epochs = 1. "
        "Take it out, or set sources.web.max_epochs = 2."
    )


def test_a_stages_own_cap_counts_its_own_epochs_alone(tmp_path: Path) -> None:
    first = {"steps": 4, "mixture": {"web": 1.0}, "max_epochs": 1}
    assert small(tmp_path, first, first).total_steps == 8
    assert refused(tmp_path, first, {**first, "steps": 6}) == (
        "stages[1].mixture.web: needs 96 tokens, the source has 64: 1.5 epochs, over max_epochs = 1. "
        "Shorten the stage to 4 steps, or set max_epochs = 1.5."
    )


def test_a_source_without_a_cap_that_is_read_often_is_a_warning(tmp_path: Path) -> None:
    often = {"steps": 18, "mixture": {"web": 1.0}}
    (warning,) = small(tmp_path, often, {"steps": 4, "mixture": {"web": 1.0}}).warnings  # once, not in each stage
    assert str(warning) == (
        "stages[0].mixture.web: is read 4.5 times by the end of this stage. "
        "Set sources.web.max_epochs if that is meant."
    )
    assert small(tmp_path, often, max_epochs=5).warnings == ()


def test_a_fade_longer_than_a_stage_in_epochs_is_refused(tmp_path: Path) -> None:
    stages = {"steps": 2, "mixture": {"code": 1.0}}, {"epochs": {"web": 1}, "mixture": {"web": 1.0}, "fade": 800}
    assert refused(tmp_path, *stages) == (
        "stages[1].fade: is 800 tokens, longer than its stage of 320. Write fade = 320 or less."
    )


def test_a_fade_shorter_than_a_step_is_a_warning(tmp_path: Path) -> None:
    first, second = {"steps": 2, "mixture": {"web": 1.0}}, {"steps": 2, "mixture": {"code": 1.0}}
    (warning,) = small(tmp_path, first, {**second, "fade": 3}).warnings
    assert str(warning) == (
        "stages[1].fade: is 3 tokens, less than a step of 16. For steps write fade = { steps = 100 }."
    )
    assert small(tmp_path, first, {**second, "fade": 16}).warnings == ()


def test_a_centred_fade_is_half_in_the_stage_before(tmp_path: Path) -> None:
    fade = {"steps": 4, "center": True}
    first, second = {"steps": 6, "mixture": {"web": 1.0}}, {"steps": 6, "mixture": {"code": 1.0}, "fade": fade}
    plan = small(tmp_path, first, second, max_epochs=9)
    rows = [{name: use.rows for name, use in stage.uses.items()} for stage in plan.stages]
    assert [sum(each.values()) for each in rows] == [stage.rows for stage in plan.stages]
    batch = plan.stages[0].batch_size
    assert rows[0]["code"] == pytest.approx(batch / 2, abs=1)  # an eighth of four steps
    assert rows[1]["web"] == pytest.approx(batch / 2, abs=1)
    mixtures = [stage.mixture for stage in plan.stages]
    assert mixtures[0] is not None
    assert mixtures[1] is not None
    assert (mixtures[1].new_given, mixtures[1].old_rows) == (rows[0]["code"], rows[0]["web"])  # both go on


def test_an_anneal_may_begin_with_a_centred_fade() -> None:
    anneal = {"start": 0.5, "mixture": {"code": 1.0}, "fade": {"steps": 4, "center": True}}
    plan = plan_of({"steps": 20, "mixture": {"web": 1.0}}, run={"name": "test", "anneal": anneal})
    first, last = (stage.mixture for stage in plan.stages)
    assert first is not None
    assert last is not None
    assert first.out is not None
    assert (first.out.first, last.fade.before) == (8 * 4, 2 * 4)


@pytest.mark.parametrize(
    ("stages", "what"),
    [
        (
            ({"steps": 1}, {"steps": 9, "fade": {"steps": 4, "center": True}}),
            (
                "stages[0]: the next stage's fade begins 32 tokens before its boundary, and this stage has 16. "
                "Shorten the fade."
            ),
        ),
        (
            ({"steps": 4}, {"steps": 4, "fade": {"steps": 3}}, {"steps": 4, "fade": {"steps": 4, "center": True}}),
            (
                "stages[1].fade: ends after 48 tokens of its stage, and the next stage's begins after 32. "
                "Shorten one of them."
            ),
        ),
    ],
    ids=["too long", "two at once"],
)
def test_a_centred_fade_needs_room_in_the_stage_before(
    tmp_path: Path, stages: tuple[dict[str, Any], ...], what: str
) -> None:
    assert refused(tmp_path, *({"mixture": {"web": 1.0}, **stage} for stage in stages)) == what


def test_a_stage_without_a_token_in_the_loss_is_a_warning(tmp_path: Path) -> None:
    folder = write_source(tmp_path / "web", [[8] * 8], loss=True)
    np.zeros(64, np.uint8).tofile(folder / "000.ds.loss")
    config = make_config({"web": folder}, [{"steps": 2, **ROWS}, {"steps": 2, **ROWS, "loss_on": "all"}])
    (warning,) = make_plan(config).warnings
    assert str(warning) == "stages[0]: no token of it counts in the loss. Look at its documents and loss masks."


def test_every_problem_is_given_at_once(tmp_path: Path) -> None:
    shares = {"mixture": {"web": 1.0}}
    stages = [{**ROWS, **shares, "steps": 12}, {**ROWS, **shares, "steps": 4, "lr": {"warmup": {"steps": 9}}}]
    source = {"kind": "tokens", "path": str(write_source(tmp_path / "web", [[8] * 8])), "max_epochs": 2}
    with pytest.raises(PlanError) as error:
        make_plan(make_config({"web": source}, stages))
    assert [problem.where for problem in error.value.problems] == [
        "stages[0].mixture.web",
        "stages[1].lr",
    ]


def gaps(*stages: dict[str, Any], **tables: Any) -> list[str]:
    """What the plan of sources that are not on disk does not know, apart from these sources and the vocabulary."""
    plan = plan_of(*stages, **{"model": {"size": "tiny", "vocab": 256}, **tables})
    return [str(gap) for gap in plan.gaps if not gap.where.startswith("sources.")]


def test_sources_that_are_not_on_disk_are_gaps() -> None:
    plan = plan_of({"steps": 5}, model={"size": "tiny", "vocab": 256})
    assert [str(gap) for gap in plan.gaps] == [
        f"sources.{name}: nowhere/{name} does not exist: its size and epochs are not known."
        for name in ("web", "code", "math")
    ]


def test_shares_by_size_are_a_gap_while_sizes_are_not_known() -> None:
    assert gaps({"steps": 5, "sources": ["web", "code"]}) == [
        "stages[0]: shares are in proportion to sizes that are not known."
    ]


def test_a_length_that_is_not_known_leaves_schedule_and_anneal_open() -> None:
    stages = {"steps": 5}, {"epochs": {"web": 1}}
    epochs = "stages[1].epochs: counts epochs of a source of unknown size: where this stage ends is not known."
    schedule = "schedule: the learning rate is not known before the run's length is."
    anneal = "run.anneal: starts at a fraction of a run whose length is not known yet."
    assert gaps(*stages) == [epochs]  # a constant rate needs no end
    assert gaps(*stages, schedule={"shape": "cosine"}) == [epochs, schedule]
    assert gaps(*stages, schedule={"shape": "cosine", "horizon": {"steps": 100}}) == [epochs]
    assert gaps(*stages, run={"name": "test", "anneal": {"start": 0.9, "mixture": {"code": 1.0}}}) == [anneal, epochs]


def test_the_stages_as_they_will_run_need_neither_sources_nor_a_base(tmp_path: Path) -> None:
    run = {"name": "test", "anneal": {"start": 0.9, "mixture": {"code": 1.0}}}
    config = config_of([{"steps": 10}, {"steps": 10, "seq_len": 64}], run=run, model={"init": str(tmp_path / "gone")})
    assert [(stage.name, stage.seq_len) for stage in stage_configs(config)] == [
        ("stage-0", 16),
        ("stage-1", 64),
        ("anneal", 64),
    ]
