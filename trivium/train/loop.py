"""The loop: reads as a sentence, knows no framework."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trivium.train.trainer import Trainer


def train(trainer: "Trainer") -> None:
    """Take every step from where the run stands to its end, or to where it is told to stop."""
    while not trainer.done:
        step = trainer.step
        if trainer.stage_begins(step):
            trainer.begin_stage(step)
        if trainer.skips(step):
            trainer.skip_step(step)
        else:
            trainer.meter.start()
            batch = trainer.batch(step)
            trainer.meter.got_batch()
            now = trainer.settings_at(step)
            stats = trainer.train_step(batch, now)
            trainer.step_taken(step, now, stats)
        if trainer.evaluates_at(step + 1):
            trainer.evaluate()
        if trainer.scores_at(step + 1):
            trainer.score()
        if trainer.saves_at(step + 1):
            trainer.save("cadence")
    trainer.finish()
