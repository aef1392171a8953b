"""A run's folder -> the checkpoint that a launch resumes from: the last one whose files are as they were written.

One that is damaged is set aside, since it would be in the way of later ones: it counts as the last one, and
retention would keep it and drop a good one. Where no checkpoint is sound, the second place is looked into; where none
is there either the run is refused, and never starts over by itself.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from trivium.engine.ranks import Ranks
from trivium.errors import ResumeError
from trivium.run.folder import Checkpoint, RunFolder, written_to

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Damaged:
    """A checkpoint that is not as it was written, and what is wrong with it."""

    checkpoint: Checkpoint
    fault: str


def find_resume_checkpoint(
    folder: RunFolder, second: RunFolder | None, references: Iterable[int], say: Say, ranks: Ranks
) -> Checkpoint | None:
    """The last sound checkpoint; None for a run that has none. What is damaged after it is set aside by rank 0."""
    sound, damaged = last_sound(folder, ranks)
    with ranks.as_one():
        if ranks.is_main:
            sound = sound or _from_second_place(folder, second, damaged, references, say)
            if sound is None and damaged:
                faults = "; ".join(each.fault for each in damaged)
                raise ResumeError(
                    f"{folder.path}: no checkpoint is sound, and a run never starts over by itself: {faults}. "
                    "Put one back, or give run.name another name."
                )
            _set_aside(folder, damaged, say)
    name = ranks.share(None if sound is None else sound.path.name)
    return None if name is None else folder.checkpoint(name)


def last_sound(folder: RunFolder, ranks: Ranks) -> tuple[Checkpoint | None, list[Damaged]]:
    """The last checkpoint that is as it was written, and those after it that are not.

    Of many ranks each looks at some of the files, and all come to the same end.
    """
    damaged: list[Damaged] = []
    names = ranks.share([each.path.name for each in folder.checkpoints()])
    for checkpoint in map(folder.checkpoint, reversed(names)):
        faults = ranks.gather(checkpoint.verify(ranks.rank, ranks.size))
        fault = next((fault for fault in faults if fault is not None), None)
        if fault is None:
            return checkpoint, damaged
        damaged.append(Damaged(checkpoint, fault))
    return None, damaged


def fetch_references(folder: RunFolder, second: RunFolder, steps: Iterable[int], say: Say) -> None:
    """Copy checkpoints of these steps that are not there, or damaged, from the second place, where that has them."""
    own = {each.step: each for each in folder.checkpoints()}
    copies = {each.step: each for each in second.checkpoints()}
    for step in sorted(set(steps) & set(copies)):
        is_sound = step in own and own[step].verify() is None
        if not is_sound and copies[step].verify() is None:
            _take(folder, copies[step], second, say)


def _from_second_place(
    folder: RunFolder, second: RunFolder | None, damaged: list[Damaged], references: Iterable[int], say: Say
) -> Checkpoint | None:
    """The last sound copy, with the references that its KL stages need."""
    if second is None:
        return None
    last, unsound = last_sound(second, Ranks())
    for each in unsound:
        say(f"{each.checkpoint.path}: is damaged ({each.fault}), and not copied from there.")
    if last is None:
        return None
    _set_aside(folder, damaged, say)
    damaged.clear()
    fetch_references(folder, second, [step for step in references if step < last.step], say)
    return _take(folder, last, second, say)


def _set_aside(folder: RunFolder, damaged: Iterable[Damaged], say: Say) -> None:
    for each in damaged:
        aside = folder.set_aside(each.checkpoint)
        say(f"{each.checkpoint.path}: is damaged ({each.fault}); it is set aside as {aside.name}.")


def _take(folder: RunFolder, checkpoint: Checkpoint, second: RunFolder, say: Say) -> Checkpoint:
    with written_to(folder.path):
        taken = folder.take(checkpoint)
    say(f"checkpoint of step {checkpoint.step:,} copied from {second.path}")
    return taken
