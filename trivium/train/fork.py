"""Another run from a checkpoint, with another future: the ablation in mid-training.

The new run's folder gets a copy of the checkpoint (and of those that its KL stages refer to), a `lineage.json` that
names the run and step it came from, and what was decided before that step. What differs in the past is refused by
key, as a resume would. Where the new run has another engine, the copies hold the weights alone, and the optimizer
starts fresh. All of it is written to a draft beside the new folder and renamed: a fork is whole or absent.
"""

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from trivium.ask.convert import is_foreign, take_weights
from trivium.config.load import load
from trivium.errors import ResumeError
from trivium.model.folder import is_saved, saved_by
from trivium.plan.make import make_plan
from trivium.run.decisions import checkpoint_decisions, keep_decisions
from trivium.run.folder import LINEAGE, Checkpoint, RunFolder, find_checkpoint, written_to
from trivium.train.references import References
from trivium.train.resume import refuse_other_past
from trivium.train.until import refuse_other_ends


def fork_run(
    run: Path,
    step: int | None,
    config: Path,
    overrides: Sequence[str] = (),
    *,
    dialect: str | None = None,
    world_size: int | None = None,
) -> str:
    """Start another run from a run's checkpoint; returns a sentence that says where it is.

    Where another tool's config gives a batch size per rank, the ranks are by default those that wrote the checkpoint.
    """
    checkpoint = find_checkpoint(run, step)
    state = checkpoint.state()
    loaded = load(config, overrides, dialect=dialect, world_size=world_size or state["world_size"])
    asked = loaded.config
    # What a Trainer overrides is compared when it resumes the fork: here nobody knows it.
    kept = {key: value for key, value in state["loader"]["record"].items() if key.startswith("Trainer.")}
    made = checkpoint_decisions(checkpoint)
    decisions = [each for each in made if each.is_before(checkpoint.step)]
    with loaded.places.named():
        plan = make_plan(asked, prepare=True, own=kept, decisions=decisions).complete()
    new = RunFolder(Path(asked.run.folder) / (asked.run.name or "run"))
    own = _run_of(run, checkpoint)
    if new.path.resolve() == own.resolve() or new.is_begun:
        raise ResumeError(f"{new.path}: is a run already. Give run.name another name in {config.name}.")
    fault = checkpoint.verify()
    if fault is not None:
        raise ResumeError(f"{fault}. Fork from another checkpoint.")
    # A stage that ended at this very step goes on where the config has another rule for it now: that is the future.
    ends = {stage.end for stage in plan.stages}
    decisions = [each for each in decisions if each.step < checkpoint.step or each.step in ends]
    refuse_other_ends(plan, tuple(decisions), checkpoint.step, RunFolder(own))
    refuse_other_past(state, plan, str(own))
    needed = References(plan, new).boundaries
    references = [each for each in RunFolder(own).checkpoints() if each.step in needed and each.step < checkpoint.step]
    lineage = {"run": str(own), "step": checkpoint.step, "fingerprint": state["loader"]["fingerprint"]}
    how = ""
    if is_foreign(checkpoint.engine, asked.engine.name):
        lineage |= {"engine": saved_by(checkpoint.engine), "optimizer": "fresh"}
        how = f", its weights alone, from {lineage['engine']} to {asked.engine.name} with a fresh optimizer"
    elif not is_saved(checkpoint.engine):
        lineage |= {"optimizer": "fresh"}
        how = ", its weights alone, with a fresh optimizer"
    with written_to(new.path), new.whole() as unfinished:
        (unfinished.path / LINEAGE).write_text(json.dumps(lineage, indent=1))
        if made:
            unfinished.decisions.touch()  # which goes before the checkpoint's own, also where none is left
        keep_decisions(unfinished, decisions)
        for each in (*references, checkpoint):
            take = take_weights if is_foreign(each.engine, asked.engine.name) else RunFolder.take
            take(unfinished, each)
    options = {"--dialect": dialect, "--world-size": world_size}
    continues = f"the Trainer of {own}, on {config.name}" if kept else _train_command(config, overrides, options)
    return f"{new.path}: forked from {own} at step {checkpoint.step:,}{how}. Continue with: {continues}"


def _train_command(config: Path, overrides: Sequence[str], options: Mapping[str, str | int | None]) -> str:
    given = [part for option, value in options.items() if value is not None for part in (option, str(value))]
    return shlex.join(["trivium", "train", str(config), *overrides, *given])


def _run_of(given: Path, checkpoint: Checkpoint) -> Path:
    """The run's own folder, also where one of its checkpoints was given."""
    if checkpoint.path != given:
        return given
    in_run = given.parent.name == "checkpoints" and len(given.parts) > 2
    return (given if in_run else given.resolve()).parent.parent
