"""Which frozen models the KL of a run's stages is measured to: where they are, and whether they are as they were.

A stage's reference is the run's own checkpoint of the step at which a stage began, or a given folder. The first is
written at that step and stays; nothing ever takes it again. The second is found once, when the run starts, and kept
in every checkpoint with a fingerprint: the run that it points to may continue, and the reference stays what it was.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trivium.ask.convert import is_foreign
from trivium.errors import PlanError, Problem, TriviumError
from trivium.files import hash_file
from trivium.model.folder import is_saved, other_shape, read_spec, saved_by
from trivium.model.huggingface import CONFIG_FILE
from trivium.plan.plan import CompletePlan
from trivium.plan.stage import CompleteStage
from trivium.run.folder import Checkpoint, RunFolder
from trivium.seeds import derive_key
from trivium.train.setup import weights_folder


@dataclass(slots=True)
class References:
    """The references of one run; `found` are the given ones by the stage that asks, as plain values."""

    plan: CompletePlan
    folder: RunFolder
    found: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def boundaries(self) -> frozenset[int]:
        """Steps whose checkpoints are references: they must be written, and stay."""
        origins = [self._origin(stage) for stage in self.plan.stages]
        return frozenset(origin.start for origin in origins if origin is not None)

    def lacks(self, step: int) -> bool:
        """Whether a step's checkpoint is a reference and is not there yet."""
        return step in self.boundaries and self._checkpoint(step) is None

    def of(self, stage: CompleteStage) -> Path | None:
        """The folder of a stage's frozen model; None where it asks for none."""
        if stage.config.kl is None:
            return None
        origin = self._origin(stage)
        if origin is None:
            return Path(self._given(stage)["folder"])
        checkpoint = self._checkpoint(origin.start)
        if checkpoint is None:
            raise PlanError([_missing(stage, self.folder, origin.start)])
        return checkpoint.engine

    def check(self, step: int) -> None:
        """Refuse what the steps from this one on will miss: a reference that is not there, not whole, or another."""
        problems = [
            problem
            for stage in self.plan.stages
            if stage.config.kl is not None and stage.end > step
            for problem in self._problems(stage, step)
        ]
        if problems:
            raise PlanError(problems)

    def _problems(self, stage: CompleteStage, step: int) -> Iterator[Problem]:
        origin = self._origin(stage)
        if origin is None:
            try:
                yield from self._misfits(stage)
            except TriviumError as error:
                yield Problem(_key(stage), str(error))
        elif origin.start < step:
            checkpoint = self._checkpoint(origin.start)
            fault = None if checkpoint is None else checkpoint.verify()
            if checkpoint is None:
                yield _missing(stage, self.folder, origin.start)
            elif fault is not None:
                advice = "Put it back, or take away that checkpoint and all that came after it."
                yield Problem(_key(stage), f"its reference is damaged ({fault}). {advice}")

    def _misfits(self, stage: CompleteStage) -> Iterator[Problem]:
        before = self.found.get(stage.name)
        given = self._given(stage)
        folder = Path(given["folder"])
        if given is before and (not folder.is_dir() or fingerprint(folder) != given["fingerprint"]):
            how = "has changed" if folder.is_dir() else "is gone"
            what = f"{folder} {how} since the run began. Put it back, or give another reference."
            yield Problem(_key(stage), what)
            return
        if is_foreign(folder, self.plan.config.engine.name):
            whose = f"{folder} was saved by the {saved_by(folder)} engine, and this run's is another"
            how = f"Export it first (trivium export {folder.parent} OUT), and give that folder."
            yield Problem(_key(stage), f"{whose}. {how}")
            return
        theirs = read_spec(folder)
        maker = self.plan.own.get("Trainer.model")
        if theirs.own != maker:
            what = f"{folder} holds {_made_by(theirs.own)}, and this run trains {_made_by(maker)}."
            yield Problem(_key(stage), f"{what} Give a reference of the same kind.")
            return
        other = [
            f"{key} is {getattr(theirs, key)} and not {getattr(self.plan.model, key)}"
            for key in other_shape(theirs, self.plan.model)
        ]
        if other:
            what = f"{folder} is a model of another shape: {', '.join(other)}. Give one of the same shape."
            yield Problem(_key(stage), what)

    def _origin(self, stage: CompleteStage) -> CompleteStage | None:
        """The stage at whose beginning the reference is taken; None where it is given, or none is asked for."""
        if stage.config.kl is None:
            return None
        reference = stage.config.kl.reference
        if reference is None:
            return stage
        return next((each for each in self.plan.stages if each.name == reference.stage), None)

    def _given(self, stage: CompleteStage) -> dict[str, Any]:
        """A given reference, found once a run, as long as the config names the same one."""
        assert stage.config.kl is not None
        assert stage.config.kl.reference is not None
        asked = stage.config.kl.reference.model_dump(exclude_none=True)
        if self.found.get(stage.name, {}).get("asked") != asked:
            folder = weights_folder(Path(asked["path"]), asked.get("step"))
            self.found[stage.name] = {"asked": asked, "folder": str(folder), "fingerprint": fingerprint(folder)}
        return self.found[stage.name]

    def _checkpoint(self, step: int) -> Checkpoint | None:
        return next((each for each in self.folder.checkpoints() if each.step == step), None)


def _made_by(own: str | None) -> str:
    return "a decoder" if own is None else f"a model that {own} made"


def fingerprint(folder: Path) -> str:
    """Of the files of a model: those of a checkpoint as COMPLETE lists them, once they are seen to be so."""
    if is_saved(folder):
        checkpoint = Checkpoint(int(folder.parent.name.removeprefix("step-")), folder.parent)
        fault = checkpoint.verify()
        if fault is not None:
            raise PlanError([Problem(str(checkpoint.path), f"is damaged ({fault}). Put it back, or give another.")])
        hashes = [(name, file["hash"]) for name, file in sorted(checkpoint.files().items())]
    else:
        files = sorted((folder / CONFIG_FILE, *folder.glob("model*.safetensors*")))
        hashes = [(path.name, hash_file(path)) for path in files]
    return f"{derive_key(0, 'reference', json.dumps(hashes)):016x}"


def _missing(stage: CompleteStage, folder: RunFolder, step: int) -> Problem:
    what = f"its reference is the checkpoint of step {step:,}, which is not in {folder.path}."
    return Problem(_key(stage), f"{what} Put it back, or give reference another path.")


def _key(stage: CompleteStage) -> str:
    return f"stages[{stage.index}].kl.reference"
