"""Which frozen models a run's stages are measured to: where they are, and whether they are as they were.

A stage's reference for KL is the run's own checkpoint of the step at which a stage began, or a given folder; a teacher
is a given folder. A checkpoint is written at that step and stays; nothing ever takes it again. A given folder is found
once, when the run starts, and kept in every checkpoint with a fingerprint: the run that it points to may continue, and
the reference stays what it was. Of many ranks each hashes some of the files, and all know the hashes of all.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trivium.ask.convert import is_foreign
from trivium.engine.ranks import Ranks
from trivium.errors import PlanError, Problem, TriviumError
from trivium.files import hash_file
from trivium.model.folder import is_saved, other_shape, read_spec, saved_by
from trivium.model.foreign import with_vocab
from trivium.model.huggingface import CONFIG_FILE
from trivium.plan.plan import CompletePlan
from trivium.plan.stage import CompleteStage
from trivium.run.folder import Checkpoint, RunFolder, weights_folder
from trivium.seeds import derive_key


@dataclass(frozen=True, slots=True)
class Wanted:
    """A frozen model that a stage asks for."""

    stage: CompleteStage
    term: str  # kl or distill
    origin: CompleteStage | None  # the stage at whose beginning it is taken; None where it is given
    asked: Mapping[str, Any]  # path and step, where it is given

    @property
    def key(self) -> str:
        """Where the config has it."""
        return f"stages[{self.stage.index}].{'kl.reference' if self.term == 'kl' else 'distill.path'}"

    @property
    def name(self) -> str:
        """What a checkpoint knows it by, where it is given."""
        return self.stage.name if self.term == "kl" else f"{self.term} of {self.stage.name}"


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
        wanted = [each for stage in self.plan.stages for each in self._wanted(stage)]
        return frozenset(each.origin.start for each in wanted if each.origin is not None)

    def lacks(self, step: int) -> bool:
        """Whether a step's checkpoint is a reference and is not there yet."""
        return step in self.boundaries and self._checkpoint(step) is None

    def of(self, stage: CompleteStage) -> dict[str, Path]:
        """The folders of a stage's frozen models, by the term that is measured to each."""
        return {each.term: self._folder(each) for each in self._wanted(stage)}

    def check(self, step: int) -> None:
        """Refuse what the steps from this one on will miss: a reference that is not there, not whole, or another."""
        wanted = [each for stage in self.plan.stages if stage.end > step for each in self._wanted(stage)]
        self._hash_files([file for each in wanted for file in self._files(each, step)] if self.ranks.is_main else [])
        problems = [problem for each in wanted for problem in self._problems(each, step)]
        if problems:
            raise PlanError(problems)

    def _wanted(self, stage: CompleteStage) -> Iterator[Wanted]:
        """What a stage asks for."""
        kl, distill = stage.config.kl, stage.config.distill
        if kl is not None and (kl.reference is None or kl.reference.path is None):
            named = stage.name if kl.reference is None else kl.reference.stage
            yield Wanted(stage, "kl", next(each for each in self.plan.stages if each.name == named), {})
        elif kl is not None and kl.reference is not None:
            yield Wanted(stage, "kl", None, kl.reference.model_dump(exclude_none=True))
        if distill is not None:
            asked = {"path": distill.path, "step": distill.step}
            yield Wanted(stage, "distill", None, {key: value for key, value in asked.items() if value is not None})

    def _folder(self, wanted: Wanted) -> Path:
        if wanted.origin is None:
            return Path(self._given(wanted)["folder"])
        checkpoint = self._checkpoint(wanted.origin.start)
        if checkpoint is None:
            raise PlanError([_missing(wanted, self.folder, wanted.origin.start)])
        return checkpoint.engine

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

    def _files(self, wanted: Wanted, step: int) -> list[Path]:
        """The files of a reference that are hashed to check it; none where it is not there."""
        try:
            if wanted.origin is None:
                return model_files(Path(self._asked(wanted)["folder"]))
            checkpoint = self._checkpoint(wanted.origin.start) if wanted.origin.start < step else None
            return [] if checkpoint is None else listed_files(checkpoint)
        except (TriviumError, OSError):
            return []

    def _problems(self, wanted: Wanted, step: int) -> Iterator[Problem]:
        if wanted.origin is None:
            try:
                yield from self._misfits(wanted)
            except TriviumError as error:
                yield Problem(wanted.key, str(error))
        elif wanted.origin.start < step:
            checkpoint = self._checkpoint(wanted.origin.start)
            fault = None if checkpoint is None else checkpoint.verify(hash_of=self._hash)
            if checkpoint is None:
                yield _missing(wanted, self.folder, wanted.origin.start)
            elif fault is not None:
                advice = "Put it back, or take away that checkpoint and all that came after it."
                yield Problem(wanted.key, f"its reference is damaged ({fault}). {advice}")

    def _misfits(self, wanted: Wanted) -> Iterator[Problem]:
        before = self.found.get(wanted.name)
        given = self._given(wanted)
        folder, key = Path(given["folder"]), wanted.key
        noun = "reference" if wanted.term == "kl" else "teacher"
        if given is before and (not folder.is_dir() or fingerprint(folder, self._hash) != given["fingerprint"]):
            how = "has changed" if folder.is_dir() else "is gone"
            yield Problem(key, f"{folder} {how} since the run began. Put it back, or give another {noun}.")
            return
        if is_foreign(folder, self.plan.config.engine.name):
            whose = f"{folder} was saved by the {saved_by(folder)} engine, and this run's is another"
            how = f"Export it first (trivium export {folder.parent} OUT), and give that folder."
            yield Problem(key, f"{whose}. {how}")
        elif wanted.term == "kl":  # the plan has looked at a teacher's shape
            yield from self._other_models(key, folder, wanted.stage)

    def _other_models(self, key: str, folder: Path, stage: CompleteStage) -> Iterator[Problem]:
        """KL is measured to a model of the same shape; one of a smaller vocabulary is grown as the model was."""
        theirs = read_spec(folder, foreign=self.plan.model.foreign is not None)
        maker = self.plan.makes_model
        if theirs.own != maker:
            what = f"{folder} holds {_made_by(theirs.own)}, and this run trains {_made_by(maker)}."
            yield Problem(key, f"{what} Give a reference of the same kind.")
            return
        ours = with_vocab(self.plan.model, stage.vocab or self.plan.model.vocab)
        other = [
            f"{name} is {value} and not {own}"
            for name, (value, own) in other_shape(theirs, ours).items()
            if name != "vocab" or theirs.own is not None or theirs.vocab > ours.vocab
        ]
        if other:
            what = f"{folder} is a model of another shape: {', '.join(other)}. Give one of the same shape."
            yield Problem(key, what)

    def _given(self, wanted: Wanted) -> dict[str, Any]:
        """A given reference, found once a run, as long as the config names the same one."""
        given = self._asked(wanted)
        if "fingerprint" not in given:
            self.found[wanted.name] = {**given, "fingerprint": fingerprint(Path(given["folder"]), self._hash)}
        return self.found[wanted.name]

    def _asked(self, wanted: Wanted) -> dict[str, Any]:
        """What the run has found of a given reference; where it is new or another, its folder alone."""
        known, asked = self.found.get(wanted.name, {}), dict(wanted.asked)
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


def _missing(wanted: Wanted, folder: RunFolder, step: int) -> Problem:
    what = f"its reference is the checkpoint of step {step:,}, which is not in {folder.path}."
    return Problem(wanted.key, f"{what} Put it back, or give reference another path.")
