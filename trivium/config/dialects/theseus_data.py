"""theseus's samplings -> sources and stages.

A stage is an entry of `training/tokens` and one of `training/dataset`, a list of samplings whose rates add
up to 1. PMD is a flat `.bin` of uint32; PADDED has one document a row. Rows of a stage that has both are
packed with `pad`: a flat file is cut into full rows by it too.
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trivium.config.dialects.theseus_jobs import FADE, KL, Job
from trivium.config.dialects.translation import NamedSources, Theirs, is_number
from trivium.config.keys import Path, nearest

FOLDER = "data"
STYLES = ("PMD", "PADDED")
TOLERANCE = 1e-6
WITH_BETAS = "continual/train/abcd_kl"
BETAS = [0.0, 0.1, 0.1, 0.1, 0.1]
DEFAULT_TOKENS = 1_000_000_000
DEFAULT_DATASET = [{"name": "fineweb", "rate": 1, "style": "PMD"}]
FIVE_TOKENS = [DEFAULT_TOKENS, *[100_000_000] * 4]
FIVE_DATASETS = [DEFAULT_DATASET, *([{"name": name, "rate": 1}] for name in ("mnli", "qqp", "sst2", "siqa"))]
SPLITS = {"train": {}, "val": {"validation_only": True}}


@dataclass(slots=True)
class Samplings:
    """Reads their tokens and datasets once; `sources` fills up as stages name them."""

    theirs: Theirs
    job: Job
    step_tokens: int
    sources: NamedSources = field(default_factory=NamedSources)
    budgets: list[int] = field(default_factory=list)
    folders: dict[str, tuple[str, str]] = field(default_factory=dict)  # a source's folder and its style

    @property
    def their_steps(self) -> int:
        """The run's length as theirs counts it."""
        return sum(self.budgets) // self.step_tokens

    @property
    def our_steps(self) -> int:
        """The run's length as ours does: a stage has one step at least."""
        return sum(self.steps)

    @property
    def steps(self) -> list[int]:
        """Each stage's steps: those whose first token is among the stage's, up to the run's end."""
        ends = [-(-end // self.step_tokens) for end in itertools.accumulate(self.budgets)]
        ends[-1] = self.their_steps
        return [max(1, end - start) for start, end in itertools.pairwise([0, *ends])]

    def stages(self) -> list[dict[str, Any]]:
        self.budgets = self._budgets()
        mixtures = [self._mixture(path, given) for path, given in self._datasets()]
        if not self.theirs.look("training", "tokens", default=True):
            return []  # that has been said
        if len(mixtures) != len(self.budgets):
            what = f"has {len(mixtures)} {'entry' if len(mixtures) == 1 else 'entries'}, but training/tokens has"
            self.theirs.problem(("training", "dataset"), f"{what} {len(self.budgets)}. Give one for each stage.")
            return []
        stages = [
            {"name": f"stage-{number}", "steps": steps, **mixture}
            for number, (steps, mixture) in enumerate(zip(self.steps, mixtures, strict=True))
        ]
        if FADE in self.job.reads:
            self._fade(stages)
        if KL in self.job.reads:
            self._kl(stages)
        if self.folders and not self.theirs.problems:
            what = f'their data folder is not in the config: taken as "{FOLDER}". Elsewhere: sources.'
            first = next(iter(self.sources.tables))
            where = f"{what}{first}.path=/path/{next(iter(self.folders.values()))[0]}/train.bin."
            self.theirs.differs(("training", "dataset"), where)
        return stages

    def _budgets(self) -> list[int]:
        given = self.theirs.take(
            "training", "tokens", default=FIVE_TOKENS if self.job.has_five_stages else DEFAULT_TOKENS
        )
        budgets = []
        for number, tokens in enumerate(given if isinstance(given, list) else [given]):
            path: Path = ("training", "tokens", number) if isinstance(given, list) else ("training", "tokens")
            whole = int(tokens) if isinstance(tokens, float) and tokens.is_integer() else tokens
            budgets.append(whole if self.theirs.is_whole(path, whole, at_least=1) else self.step_tokens)
        if sum(budgets) >= self.step_tokens:
            return budgets
        if not self.theirs.problems:  # else a step may be another one
            rule = f"A step has {self.step_tokens:,} (batch_size x block_size). Write that, or more, for each stage."
            self.theirs.refuse(("training", "tokens"), given, rule)
        return [self.step_tokens] * max(1, len(budgets))

    def _datasets(self) -> list[tuple[Path, list[Any]]]:
        """Each stage's samplings and their paths; a list of samplings alone is one stage."""
        path = ("training", "dataset")
        usual = FIVE_DATASETS if self.job.has_five_stages else [DEFAULT_DATASET] * len(self.budgets)
        given = self.theirs.take(*path, default=usual)
        if isinstance(given, list) and given and all(isinstance(one, Mapping) for one in given):
            return [(path, given)]
        if not isinstance(given, list) or not given or not all(isinstance(one, list) and one for one in given):
            what = "It must be a list of samplings for each stage."
            self.theirs.refuse(path, given, f"{what} Write - - {{ name: fineweb, rate: 1.0, style: PMD }}.")
            return [(path, []) for _ in self.budgets]
        return [((*path, number), one) for number, one in enumerate(given)]

    def _mixture(self, path: Path, samplings: list[Any]) -> dict[str, Any]:
        """A stage's shares and packing; no shares where they are refused, so that nothing else is said of them."""
        shares: dict[str, float] = {}
        styles, told = set(), len(self.theirs.problems)
        for number, sampling in enumerate(samplings):
            here = (*path, number)
            if not isinstance(sampling, Mapping):
                self.theirs.refuse(here, sampling, "Write { name: fineweb, rate: 1.0, style: PMD }.")
                continue
            self._refuse_others(here, sampling)
            style, rate = self._style(here, sampling), sampling.get("rate")
            name = self._name(here, sampling, style)
            if not is_number(rate) or not 0 <= float(rate or 0) <= 1:
                self.theirs.refuse((*here, "rate"), rate, "It must be a number between 0 and 1.")
            elif name in shares:
                self.theirs.problem((*here, "name"), "is twice in its stage. Name it once, with the sum of rates.")
            elif name is not None:
                shares[name] = float(rate or 0)
                styles.add(style)
        total = sum(shares.values())
        if len(shares) == len(samplings) > 0 and abs(total - 1) > TOLERANCE:
            self.theirs.problem(path, f"has rates that add up to {total:.9g}, not 1. Change them, so that they do.")
        packing = {"packing": "concat" if styles == {"PMD"} else "pad"}
        return packing if len(self.theirs.problems) > told or not shares else {"mixture": shares, **packing}

    def _refuse_others(self, path: Path, sampling: Mapping[str, Any]) -> None:
        for key in sampling:
            if key not in ("name", "rate", "style", "suffix"):
                what = "trivium does not know this key. Remove it to train without what it does."
                self.theirs.refuse((*path, key), sampling[key], what)

    def _name(self, path: Path, sampling: Mapping[str, Any], style: str) -> str | None:
        """The source of a sampling: the train split of its folder, whose variant the suffix selects."""
        name, suffix = sampling.get("name"), sampling.get("suffix", "")
        if not isinstance(name, str) or not name or not isinstance(suffix, str):
            key, value = ("suffix", suffix) if isinstance(name, str) and name else ("name", name)
            self.theirs.refuse((*path, key), value, f"It must be text. Write {key}: fineweb.")
            return None
        folder = f"{name}_{suffix}" if suffix else name
        source = self.sources.name_of(_table(folder, "train", style), folder)
        self.folders[source] = folder, style
        return source

    def _style(self, path: Path, sampling: Mapping[str, Any]) -> str:
        style = sampling.get("style", "PADDED")
        if isinstance(style, str) and style.upper() in STYLES:
            return style.upper()
        self.theirs.refuse((*path, "style"), style, nearest(str(style), STYLES))
        return "PADDED"

    def validation(self, seq_len: int) -> dict[str, Any]:
        """Their `val.bin` beside every `train.bin`, with their interval and their number of rows."""
        every = self.theirs.take_whole("logging", "validation_interval", at_least=1, default=512)
        rows = self.theirs.take_whole("training", "validation_steps", at_least=0, default=2048)
        if not self.theirs.take("training", "validation", default=True) or not rows:
            return {}
        names = [
            self.sources.name_of(_table(folder, "val", style), f"{folder}-val")
            for folder, style in self.folders.values()
        ]
        return {"every": every, "tokens": rows * seq_len, "sources": names} if names else {}

    def _fade(self, stages: list[dict[str, Any]]) -> None:
        """Overlaps at the boundaries, centred on them."""
        fade = ("training", "fade")
        overlap = self.theirs.take_number(*fade, "overlap", default=0.0)
        each = self.theirs.take(*fade, "per_boundary_overlap") or [overlap] * (len(stages) - 1)
        curves = {"linear": "linear", "cosine": "cosine", "sigmoid": "sigmoid"}
        shape = self.theirs.take_choice(*fade, "curve", choices=curves, default="linear")
        curve: dict[str, Any] = {"shape": shape, "center": True}
        if shape == "sigmoid":
            curve["steepness"] = self.theirs.take_number(*fade, "steepness", default=10.0, over=0)
        sound = isinstance(each, list) and all(is_number(one) and one >= 0 for one in each)
        if not sound or len(each) != len(stages) - 1:
            rule = f"Give a number, at least 0, for each of the {len(stages) - 1} boundaries."
            self.theirs.refuse((*fade, "per_boundary_overlap"), each, rule)
            return
        self.theirs.without_effect({"steepness": f"the curve is {shape}"}, *fade)
        for number, part in enumerate(each, start=1):
            tokens = int(part * min(self.budgets[number - 1], self.budgets[number]))
            if tokens:
                stages[number]["fade"] = {"tokens": tokens, **curve}
                sides = stages[number - 1 : number + 1]
                if any(stage["packing"] == "pad" for stage in sides):  # each reads the other's sources for a while
                    for stage in sides:
                        stage["packing"] = "pad"

    def _kl(self, stages: list[dict[str, Any]]) -> None:
        """KL from the second stage on, to the model as it was when the stage began, or a list of betas."""
        kl = ("optimization", "kl")
        betas = self.theirs.take(*kl, "betas", default=BETAS if self.theirs.look("job") == WITH_BETAS else None)
        if betas is None and not self.theirs.has(*kl, "beta"):
            return
        usual = list(range(len(stages))) if betas is None else [1]
        updates = self.theirs.take(*kl, "reference_update_stages", default=usual)
        if betas is None:
            betas = [0.0, *[self.theirs.take_number(*kl, "beta", default=0.1)] * (len(stages) - 1)]
        self.theirs.without_effect({"beta": "betas gives a number for each stage"}, *kl)
        if not isinstance(betas, list) or len(betas) != len(stages) or not all(is_number(one) for one in betas):
            self.theirs.refuse((*kl, "betas"), betas, f"Give a number for each of the {len(stages)} stages.")
            return
        if not isinstance(updates, list) or not all(isinstance(at, int) and 0 <= at < len(stages) for at in updates):
            rule = f"Give numbers of stages, from 0 to {len(stages) - 1}."
            self.theirs.refuse((*kl, "reference_update_stages"), updates, rule)
            return
        for number, weight in enumerate(betas):
            taken = [at for at in updates if 0 < at <= number]
            if weight and not taken:
                rule = (
                    f"Stage {number} has a beta of {weight:g} and no reference. Add the stage it begins with, after 0."
                )
                self.theirs.refuse((*kl, "reference_update_stages"), updates, rule)
            elif weight:
                stages[number]["kl"] = {"beta": weight, "direction": "nll_gap", "precision": "bfloat16"}
                if max(taken) != number:
                    stages[number]["kl"]["reference"] = {"stage": stages[max(taken)]["name"]}
        if any("kl" in stage for stage in stages):
            what = 'is the difference of two token losses there (direction = "nll_gap"), which holds nothing back.'
            self.theirs.differs(kl, f"{what} KL itself: stages.1.kl.direction=forward.")


def _table(folder: str, split: str, style: str) -> dict[str, Any]:
    table = {"kind": "tokens", "path": f"{FOLDER}/{folder}/{split}.bin", "dtype": "uint32", **SPLITS[split]}
    return table if style == "PMD" else {**table, "padding": "left"}
