"""KempnerForge's `[data]` -> sources and stages.

Four paths: mapped token files (`dataset_path`), Hugging Face eager or streaming (`hf_dataset_name`), and a
mixture of them (`[[data.datasets]]`, which overrides the others). Weights change at `[[data.phases]]`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trivium.config.dialects.translation import NamedSources, Theirs, is_number
from trivium.config.keys import Path, nearest
from trivium.config.problems import show_value

SINGLE = ("dataset_path", "hf_dataset_name", "hf_dataset_config", "hf_streaming")
HUB_KEYS = {"hf_dataset_split": ("split", "train"), "hf_dataset_text_field": ("column", "text")}


@dataclass(slots=True)
class ForgeData:
    """Reads their data once; `weights` are the sources' own, by the names their phases use."""

    theirs: Theirs
    steps: int
    sources: NamedSources = field(default_factory=NamedSources)
    weights: dict[str, float] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)

    def stages(self) -> list[dict[str, Any]]:
        if self.theirs.take_tables("data", "datasets"):
            self._mixture()
        else:
            self._single()
        temperature = self.theirs.take_number("data", "mix_temperature", default=1.0, over=0)
        heads = {} if temperature == 1 or not self.weights else {"temperature": temperature}
        first = {"name": "default", **self._shares({}), **heads}
        starts: list[tuple[int, dict[str, Any]]] = [(0, first)]
        for start, later in self._phases():
            starts = [*(starts if start else []), (start, {**later, **heads})]
        ends = [start for start, _ in starts[1:]] + [self.steps]
        return [{**stage, "steps": end - start} for (start, stage), end in zip(starts, ends, strict=True)]

    @property
    def packed(self) -> bool:
        """Whether documents are kept apart within a row."""
        return bool(self.theirs.take("data", "pack_sequences", default=False))

    def _single(self) -> None:
        """One source; where there is none, theirs would train on random tokens."""
        path, dataset = (self.theirs.take_text("data", key) for key in SINGLE[:2])
        streams = self.theirs.take("data", "hf_streaming", default=False)
        if path is not None:
            self._add(("data", "dataset_path"), path, self._tokens(path, ("data", "file_pattern")), 1.0)
            left = "dataset_path comes before it"
            self.theirs.taken.discard(("data", "hf_dataset_name"))
            self.theirs.taken.discard(("data", "hf_streaming"))
            self.theirs.without_effect(dict.fromkeys(SINGLE[1:], left), "data")
        elif dataset is not None:
            subset = self.theirs.take_text("data", "hf_dataset_config")
            table = self.hub("stream" if streams else "huggingface", dataset, subset)
            self._add(("data", "hf_dataset_name"), dataset, table, 1.0)
        else:
            what = 'Write dataset_path = "/data/web", hf_dataset_name = "allenai/c4" or [[data.datasets]].'
            self.theirs.problem(("data",), f"has no source. {what}")

    def _mixture(self) -> None:
        """One source for each of `[[data.datasets]]`, which override the single ones."""
        overridden = "overridden by data.datasets"
        self.theirs.without_effect(dict.fromkeys(SINGLE, overridden), "data")
        for number in range(self.theirs.take_tables("data", "datasets")):
            path: Path = ("data", "datasets", number)
            name, folder, dataset = (self.theirs.take_text(*path, key) for key in ("name", "path", "hf_name"))
            subset = self.theirs.take_text(*path, "hf_config")
            weight = self.theirs.take_number(*path, "weight", default=1.0, over=0)
            place = folder or dataset
            if place is None:
                self.theirs.problem(path, 'has neither path nor hf_name. Write path = "/data/web".')
                continue
            if folder is not None:
                table = self._tokens(folder, ("data", "file_pattern"))
                if dataset is not None:
                    what = f"has no effect here (it is {show_value(dataset)}): path is given."
                    self.theirs.differs((*path, "hf_name"), what)
            else:
                table = self.hub("huggingface", place, subset)
            self._add((*path, "name") if name else path, name or place, table, weight)

    def _add(self, path: Path, their_name: str, table: dict[str, Any], weight: float) -> None:
        if their_name in self.names:
            what = f"{show_value(their_name)} is twice in data.datasets. Give each a name of its own."
            self.theirs.problem(path, what)
            return
        ours = self.sources.name_of(table, their_name)
        if ours in self.weights:
            what = f"is the same place as {show_value(ours)}. Name it once, with the sum of their weights."
            self.theirs.problem(path, what)
        elif path[-1] == "name" and ours != their_name:
            self.theirs.differs(path, f"is {show_value(their_name)}, called {show_value(ours)} here.")
        self.names[their_name] = ours
        self.weights[ours] = weight
        if table["kind"] == "tokens":
            self._need_ends(ours)

    def _need_ends(self, name: str) -> None:
        """With packing, documents end at the tokenizer's EOS, whose number is in no config."""
        if self.packed:
            what = "documents end with the tokenizer's EOS, whose number is not in the config."
            what = f"{what} Give it: sources.{name}.eos=2."
            self.theirs.need(("data", "pack_sequences"), what, ("sources", name, "eos"))

    def _tokens(self, folder: str, pattern: Path) -> dict[str, Any]:
        """Token files of a folder; integer types that files do not record are never guessed."""
        files = self.theirs.take_text(*pattern) or "*.npy"
        if files.endswith(".bin") and not any(
            note.where == self.theirs.where(pattern) for note in self.theirs.different
        ):
            what = f"is {show_value(files)}: a .bin does not record its integer type, which is never guessed here."
            self.theirs.differs(pattern, f"{what} Without metadata, give for example sources.web.dtype=uint16.")
        return {"kind": "tokens", "path": f"{folder.rstrip('/')}/{files}"}

    def hub(self, kind: str, dataset: str, subset: str | None, split: str | None = None) -> dict[str, Any]:
        """A Hugging Face source; all of them share a split and a column, and need a tokenizer."""
        if not self.theirs.look("data", "tokenizer_path"):
            what = 'is missing, with which Hugging Face datasets become tokens. Write tokenizer_path = "gpt2".'
            self.theirs.problem(("data", "tokenizer_path"), what)
        rest = {ours: self.theirs.take_text("data", key) or usual for key, (ours, usual) in HUB_KEYS.items()}
        table = {"kind": kind, "dataset": dataset, **({"subset": subset} if subset else {}), **rest}
        return table if split is None else {**table, "split": split}

    def _shares(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Weights of a stage; what it does not name goes back to its own. One source needs none."""
        if len(self.weights) < 2:
            return {"sources": list(self.weights)} if self.weights else {}
        own = {ours: given.get(theirs, self.weights[ours]) for theirs, ours in self.names.items()}
        return {"weights": own}

    def _phases(self) -> list[tuple[int, dict[str, Any]]]:
        """The later stages and where they start."""
        count = self.theirs.take_tables("data", "phases")
        start, weights = self._anneal(count)
        if start:
            reached = self._is_reached(("data", "anneal_start_step"), start)
            return [(start, {"name": "anneal", **self._shares(weights)})] if reached else []
        if count and not self.theirs.look("data", "datasets"):
            what = "change weights, but there is no [[data.datasets]] to weigh. Write it."
            self.theirs.problem(("data", "phases"), what)
        found: list[tuple[int, dict[str, Any]]] = []
        before = -1
        for number in range(count):
            path: Path = ("data", "phases", number)
            start = self.theirs.take_whole(*path, "start_step", at_least=0, default=0)
            weights = self._weights((*path, "dataset_weights"))
            scale = self.theirs.take_number(*path, "lr_scale", default=1.0, over=0)
            if start <= before:
                what = f"is {start:,}, but the one before starts at {before:,}: they must rise."
                what = f"{what} Write start_step = {before + 1} or more."
                self.theirs.problem((*path, "start_step"), what)
            elif self._is_reached((*path, "start_step"), start):
                lr = {} if scale == 1 else {"lr": {"scale": scale}}
                found.append((start, {"name": f"stage-{number + 1}", **self._shares(weights), **lr}))
            before = max(before, start)
        return found

    def _anneal(self, phases: int) -> tuple[int, dict[str, float]]:
        """The short form of one phase; 0 is off."""
        path = ("data", "anneal_start_step")
        start = self.theirs.take_whole(*path, at_least=0, default=0)
        weights = self._weights(("data", "anneal_weights"))
        if start and phases:
            what = "Keep one: write it as one more of [[data.phases]]."
            self.theirs.problem(path, f"is {start:,} beside data.phases. {what}")
        elif start and not weights:
            what = f"is missing beside anneal_start_step = {start}. Write it, or leave both out."
            self.theirs.problem(("data", "anneal_weights"), what)
        elif weights and not start:
            self.theirs.differs(("data", "anneal_weights"), "has no effect here: anneal_start_step is 0, which is off.")
        return (start, weights) if weights and not phases else (0, {})

    def _is_reached(self, path: Path, start: int) -> bool:
        if start < self.steps:
            return True
        self.theirs.differs(path, f"is {start:,}, which is never reached: the run ends at step {self.steps:,}.")
        return False

    def _weights(self, path: Path) -> dict[str, float]:
        """Weights by their names of the sources; zero is allowed, all zero is not."""
        given = self.theirs.take(*path, default={})
        if not isinstance(given, Mapping):
            self.theirs.problem(path, f"is {show_value(given)}. Write a table, such as {{ web = 0.5, code = 0.5 }}.")
            return {}
        for name, weight in given.items():
            if name not in self.names:
                what = f"there is no such source in data.datasets. {nearest(name, self.names)}"
                self.theirs.problem((*path, name), what)
            elif not is_number(weight) or weight < 0:
                self.theirs.problem((*path, name), f"is {show_value(weight)}. It must be a number, at least 0.")
        sound = {name: weight for name, weight in given.items() if name in self.names and is_number(weight)}
        if given and set(given) >= set(self.names) and not any(given.values()):
            self.theirs.problem(path, f"is {show_value(given)}: nothing to read. Give a source a positive weight.")
            return {}
        return {name: weight for name, weight in sound.items() if weight >= 0}
