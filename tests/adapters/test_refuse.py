"""What another loop cannot do of a plan is refused before the first batch, all at once."""

from pathlib import Path

import pytest

from tests.support.loops import three_stages
from tests.support.training import FOUR_STAGES
from trivium.adapters.refuse import ASKED, CHANGED, refuse
from trivium.config.load import load_config
from trivium.errors import PlanError, UsageError
from trivium.plan.make import make_plan

INSTEAD = "Take it out, or train with `trivium train`."


def test_a_plan_that_every_loop_can_read_is_not_refused(folder: Path) -> None:
    refuse(three_stages(), "a loop")


def test_all_that_a_loop_cannot_do_is_said_at_once(folder: Path) -> None:
    Path("run.toml").write_text(FOUR_STAGES)
    overrides = ["stages.two.kl.beta=0.1", "stages.one.freeze=['embedding']", "stages.two.average.ema=0.9"]
    plan = make_plan(load_config("run.toml", overrides))
    with pytest.raises(PlanError) as caught:
        refuse(plan, "This loop")
    assert str(caught.value).splitlines() == [
        f"stages[0].freeze: This loop updates all parameters. {INSTEAD}",
        f"stages[1].average: This loop keeps no average of the weights. {INSTEAD}",
        f"stages[1].freeze: This loop updates all parameters. {INSTEAD}",
        f"stages[1].kl: This loop has no frozen reference to compare the model with. {INSTEAD}",
        f"stages[1].loss_weight: This loop weighs all tokens alike (weights of 0 and 1 are possible). {INSTEAD}",
        f"stages[1].rope: This loop cannot change rotary positions. {INSTEAD}",
        f"stages[2].average: This loop keeps no average of the weights. {INSTEAD}",
        f"stages[2].freeze: This loop updates all parameters. {INSTEAD}",
        f"stages[2].reset_optimizer: This loop keeps its optimizer's state. {INSTEAD}",
        f"stages[3].average: This loop keeps no average of the weights. {INSTEAD}",
        f"stages[3].freeze: This loop updates all parameters. {INSTEAD}",
        f"stages[3].z_loss: This loop computes its own loss. {INSTEAD}",
    ]


def test_a_loop_names_what_it_can_do_and_what_it_cannot(folder: Path) -> None:
    plan = three_stages("stages.two.rope.theta=50_000", "stages.one.lr.scale.matrix=0.5")
    with pytest.raises(PlanError) as caught:
        refuse(plan, "This loop", can=("rope",), cannot=("seq_len", "batch_size"))
    assert [problem.where for problem in caught.value.problems] == [
        "stages[0].lr",
        "stages[1].batch_size",
        "stages[1].seq_len",
        "stages[2].batch_size",
        "stages[2].seq_len",
    ]
    refuse(plan, "This loop", can=("rope", "lr"))
    with pytest.raises(UsageError, match=r"can: a plan has no part \['zloss'\]\. Write some of average, batch_size"):
        refuse(plan, "This loop", can=("zloss",))


@pytest.mark.parametrize(
    "override",
    [
        "stages.two.distill={ path = 'teacher', beta = 0.5 }",
        "stages.two.loss='numpy:mean'",
        "stages.two.optimizer={ grad_clip = 0.5 }",
        "stages.two.engine={ recompute = 'full' }",
        "stages.two.vocab=600",
    ],
)
def test_each_part_has_its_words(folder: Path, override: str) -> None:
    part = override.split(".")[2].split("=")[0]
    plan = three_stages(override)
    with pytest.raises(PlanError) as caught:
        refuse(plan, "This loop")
    assert {problem.where.split(".")[1] for problem in caught.value.problems} == {part}
    assert part in {**ASKED, **CHANGED}
