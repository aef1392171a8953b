"""What a step's event says of its cost, beside a plain count."""

from pathlib import Path

import pytest

from tests.support.events import steps_taken
from tests.support.training import train


@pytest.mark.usefixtures("folder")
def test_a_steps_event_has_the_running_mean_and_what_the_step_cost() -> None:
    trainer = train("evaluate.every=100")
    events = steps_taken(Path("runs/run/events.jsonl"))
    biased, seconds = 0.0, 0.0
    for step in range(1, 20):
        event = events[step]
        biased = 0.9 * biased + 0.1 * event["loss"]
        seconds += event["seconds"] if step > 10 else 0.0  # the first ten warm up
        assert event["mean_loss"] == pytest.approx(biased / (1 - 0.9**step), rel=1e-9)
        assert event["training_seconds"] == pytest.approx(seconds, rel=1e-9)
        assert event["percent"] == pytest.approx(100 * step / 19)
        assert event["tokens_per_second"] == pytest.approx(event["tokens"] / event["seconds"])
        assert event["lr_multiplier"] == trainer.plan.lr_multiplier(step - 1)
        assert event["epochs"] == pytest.approx(trainer.plan.epochs_before(step))
        assert event["mfu"] is None or event["mfu"] > 0
    work = [trainer.plan.model.flops(stage.seq_len) * stage.step_tokens * stage.steps for stage in trainer.plan.stages]
    assert events[19]["flops"] == pytest.approx(sum(work))
