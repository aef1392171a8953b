"""What torchtitan cannot do is refused in words, all of it at once."""

from pathlib import Path

from tests.adapters.torchtitan.conftest import planned
from trivium.adapters.torchtitan.refusals import OURS, not_heeded, refused

LAST = """
[[stages]]
name = "four"
steps = 2
seq_len = 16
batch_size = 16
kl = { beta = 0.1 }
z_loss = 1e-4
loss_weight = { code = 0.5 }
average = { ema = 0.99 }
freeze = ["embedding"]
vocab = 600
rope = { drop_layers = [1] }
engine = { precision = "bfloat16", recompute = "full" }
[guard]
skip_spikes = true
"""


def test_all_that_it_cannot_do_is_said_at_once(stages: Path) -> None:
    path = stages / "run.toml"
    path.write_text(path.read_text() + LAST)
    found = {problem.where: problem.what for problem in refused(planned("optimizer.skip={ deviations = 6 }"))}
    assert found == {
        "guard.skip_spikes": f"is given, but torchtitan's loop skips no update. {OURS}",
        "optimizer.skip": f"is given, but torchtitan's loop skips no update. {OURS}",
        "stages[1].optimizer.skip": f"is given, but torchtitan's loop skips no update. {OURS}",
        "stages[3].kl": f"torchtitan has no frozen reference to compare the model with. {OURS}",
        "stages[3].z_loss": f"torchtitan computes its own loss. {OURS}",
        "stages[3].loss_weight": f"torchtitan weighs all tokens alike (weights of 0 and 1 are possible). {OURS}",
        "stages[3].average": f"torchtitan keeps no average of the weights. {OURS}",
        "stages[3].freeze": f"torchtitan updates all parameters. {OURS}",
        "stages[3].vocab": f"torchtitan cannot add rows to the embedding. {OURS}",
        "stages[3].engine.recompute": (
            "is given, but torchtitan has one for the whole launch. Leave it out, and write --activation-checkpoint."
        ),
        "stages[3].engine.precision": (
            "is given, but torchtitan has one for the whole launch. Leave it out, and write "
            "--training.mixed-precision-param."
        ),
        "stages[3].rope.drop_layers": (f"is given, but torchtitan's layers have one kind of rotary positions. {OURS}"),
    }


def test_the_stages_of_the_run_that_is_trained_in_tests_are_not_refused(stages: Path) -> None:
    assert list(refused(planned())) == []


def test_another_optimizer_than_adamw_is_torchtitans_own(stages: Path) -> None:
    (problem,) = refused(planned('stages.2.optimizer={ name = "muon", lr = 0.02 }'))
    assert str(problem) == (
        'stages[2].optimizer.name: is "muon", and stages drive torchtitan\'s AdamW alone. '
        "Leave [optimizer] out, and torchtitan's own config decides it."
    )


def test_without_an_optimizer_of_ours_a_stage_changes_the_rate_as_a_whole_alone(stages: Path) -> None:
    path = stages / "run.toml"
    start, end = path.read_text().split("[optimizer]")
    path.write_text(start + end[end.index("[schedule]") :])
    found = [str(problem) for problem in refused(planned("stages.2.lr.scale={ embedding = 0.1 }"))]
    said = "Write [optimizer] too: it takes the place of torchtitan's"
    assert found == [
        f"stages[1].optimizer: changes [optimizer], and there is none. {said}.",
        (
            f"stages[2].lr.scale: names groups of parameters, and the optimizer is torchtitan's. {said}, "
            "or give one number."
        ),
    ]


def test_tables_about_our_own_engine_are_named(stages: Path) -> None:
    assert not_heeded(planned()) == []
    assert not_heeded(planned("engine.compile=true", "checkpoint.every=4")) == ["engine", "checkpoint"]
