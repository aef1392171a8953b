"""Which frozen models the KL of a run's stages is measured to: where they are, and whether they are as they were.

A stage's reference is the run's own checkpoint of the step at which a stage began, or a given folder. The first is
written at that step and stays; nothing ever takes it again. The second is found once, when the run starts, and kept
in every checkpoint with a fingerprint: the run that it points to may continue, and the reference stays what it was.
Of many ranks each hashes some of the files, and all know the hashes of all.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trivium.ask.convert import is_foreign
from trivium.engine.ranks import Ranks
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
    ranks: Ranks = field(default_factory=Ranks)
    found: dict[str, dict[str, Any]] = field(default_factory=dict)
    _hashes: dict[Path, str] = field(default_factory=dict)  # of the files that a check has looked at

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
        stages = [stage for stage in self.plan.stages if stage.config.kl is not None and stage.end > step]
        self._hash_files([file for stage in stages for file in self._files(stage, step)] if self.ranks.is_main else [])
        problems = [problem for stage in stages for problem in self._problems(stage, step)]
        if problems:
            raise PlanError(problems)

    def _hash_files(self, files: list[Path]) -> None:
        """Hash what rank 0 names, each rank its share; a file that cannot be read is the problem of who needs it."""
        names = self.ranks.share(list(dict.fromkeys(map(str, files))))
        own = {}
        for name in names[self.ranks.rank :: self.ranks.size]:
            with suppress(OSError):
                own[name] = hash_file(Path(name))
        self._hashes = {Path(name): found for part in self.ranks.gather(own) for name, found in part.items()}

    def _hash(self, path: Path) -> str:
        return self._hashes.get(path) or hash_file(path)

    def _files(self, stage: CompleteStage, step: int) -> list[Path]:
        """The files of a stage's reference that are hashed to check it; none where it is not there."""
        origin = self._origin(stage)
        try:
            if origin is None:
                return model_files(Path(self._asked(stage)["folder"]))
            checkpoint = self._checkpoint(origin.start) if origin.start < step else None
            return [] if checkpoint is None else listed_files(checkpoint)
        except (TriviumError, OSError):
            return []

    def _problems(self, stage: CompleteStage, step: int) -> Iterator[Problem]:
        origin = self._origin(stage)
        if origin is None:
            try:
                yield from self._misfits(stage)
            except TriviumError as error:
                yield Problem(_key(stage), str(error))
        elif origin.start < step:
            checkpoint = self._checkpoint(origin.start)
            fault = None if checkpoint is None else checkpoint.verify(hash_of=self._hash)
            if checkpoint is None:
                yield _missing(stage, self.folder, origin.start)
            elif fault is not None:
                advice = "Put it back, or take away that checkpoint and all that came after it."
                yield Problem(_key(stage), f"its reference is damaged ({fault}). {advice}")

    def _misfits(self, stage: CompleteStage) -> Iterator[Problem]:
        before = self.found.get(stage.name)
        given = self._given(stage)
        folder = Path(given["folder"])
        if given is before and (not folder.is_dir() or fingerprint(folder, self._hash) != given["fingerprint"]):
            how = "has changed" if folder.is_dir() else "is gone"
            what = f"{folder} {how} since the run began. Put it back, or give another reference."
            yield Problem(_key(stage), what)
            return
        if is_foreign(folder, self.plan.config.engine.name):
            whose = f"{folder} was saved by the {saved_by(folder)} engine, and this run's is another"
            how = f"Export it first (trivium export {folder.parent} OUT), and give that folder."
            yield Problem(_key(stage), f"{whose}. {how}")
            return
        theirs = read_spec(folder, foreign=self.plan.model.foreign is not None)
        maker = self.plan.own.get("Trainer.model")
        if theirs.own != maker:
            what = f"{folder} holds {_made_by(theirs.own)}, and this run trains {_made_by(maker)}."
            yield Problem(_key(stage), f"{what} Give a reference of the same kind.")
            return
        other = [
            f"{key} is {value} and not {own}" for key, (value, own) in other_shape(theirs, self.plan.model).items()
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
        given = self._asked(stage)
        if "fingerprint" not in given:
            self.found[stage.name] = {**given, "fingerprint": fingerprint(Path(given["folder"]), self._hash)}
        return self.found[stage.name]

    def _asked(self, stage: CompleteStage) -> dict[str, Any]:
        """What the run has found of a given reference; where it is new or another, its folder alone."""
        assert stage.config.kl is not None
        assert stage.config.kl.reference is not None
        asked = stage.config.kl.reference.model_dump(exclude_none=True)
        known = self.found.get(stage.name, {})
        if known.get("asked") == asked:
            return known
        return {"asked": asked, "folder": str(weights_folder(Path(asked["path"]), asked.get("step")))}

    def _checkpoint(self, step: int) -> Checkpoint | None:
        return next((each for each in self.folder.checkpoints() if each.step == step), None)


def _made_by(own: str | None) -> str:
    return "a decoder" if own is None else f"a model that {own} made"


def fingerprint(folder: Path, hash_of: Callable[[Path], str]) -> str:
    """Of the files of a model: those of a checkpoint as COMPLETE lists them, once they are seen to be so."""
    if is_saved(folder):
        checkpoint = _checkpoint_of(folder)
        fault = checkpoint.verify(hash_of=hash_of)
        if fault is not None:
            raise PlanError([Problem(str(checkpoint.path), f"is damaged ({fault}). Put it back, or give another.")])
        hashes = [(name, file["hash"]) for name, file in sorted(checkpoint.files().items())]
    else:
        hashes = [(path.name, hash_of(path)) for path in model_files(folder)]
    return f"{derive_key(0, 'reference', json.dumps(hashes)):016x}"


def model_files(folder: Path) -> list[Path]:
    """The files that make a model what it is."""
    if is_saved(folder):
        return listed_files(_checkpoint_of(folder))
    return sorted(path for path in (folder / CONFIG_FILE, *folder.glob("model*.safetensors*")) if path.is_file())


def listed_files(checkpoint: Checkpoint) -> list[Path]:
    return [checkpoint.path / name for name in checkpoint.files()]


def _checkpoint_of(folder: Path) -> Checkpoint:
    """The checkpoint whose engine wrote a folder."""
    return Checkpoint(int(folder.parent.name.removeprefix("step-")), folder.parent)


def _missing(stage: CompleteStage, folder: RunFolder, step: int) -> Problem:
    what = f"its reference is the checkpoint of step {step:,}, which is not in {folder.path}."
    return Problem(_key(stage), f"{what} Put it back, or give reference another path.")


def _key(stage: CompleteStage) -> str:
    return f"stages[{stage.index}].kl.reference"
