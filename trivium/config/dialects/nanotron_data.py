"""nanotron's data stages -> sources and stages.

Their steps are counted from 1: a stage with `start_training_step: 10` starts at our step 9. A folder
of token files, a list, or a mapping of folders to weights is a nanoset; a Hub dataset is tokenised.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from trivium.config.dialects.translation import NamedSources, Theirs, is_number, stage_name
from trivium.config.keys import Path
from trivium.config.problems import show_value

FOLDERS = ("dataset_folder", "dataset_folders")
READ = "dataset_read_path"  # where the files are, of folders that are elsewhere
HUB = "hf_dataset_or_datasets"
DTYPES = {2: "uint16", 4: "uint32"}
OWN_ORDER = "rows are ordered here by the plan"
NANOSET_ONLY = {
    "tokenizer_name": "token files hold tokens already",
    "vocab_size": "the model's vocabulary is model.vocab",
    "return_positions": "positions are always there",
    **dict.fromkeys(("skip_in_stream", "pad_samples_to_global_batch_size", "shuffle_files"), OWN_ORDER),
    "use_old_brrr_dataloader": OWN_ORDER,
}
NO_SAMPLES = "All conversations are read here. Remove it."
HUB_ONLY = {
    "dataset_processing_num_proc_per_process": "text is tokenised once, and kept",
    "dataset_overwrite_cache": "the cache is keyed by content",
}


@dataclass(slots=True)
class NanotronData:
    """Reads their stages once; `sources` fills up as stages name them."""

    theirs: Theirs
    steps: int
    seq_len: int
    sources: NamedSources = field(default_factory=NamedSources)
    names: dict[str, str] = field(default_factory=dict)
    longest: int = 0

    def stages(self) -> list[dict[str, Any]]:
        """Our stages in order of their start; problems go to `theirs`."""
        count = self.theirs.take_tables("data_stages")
        tables: list[Path] = [("data_stages", number, "data", "dataset") for number in range(count)]
        tables = tables or [("data", "dataset")]
        self.names = different_parts([place for table in tables for place in self._places(table)])
        found = [self._stage(("data_stages", number)) for number in range(count)]
        if not count:
            if not self.theirs.has("data"):
                what = "there is none. Write one with name, start_training_step: 1 and data."
                self.theirs.problem(("data_stages",), what)
                return []
            found = [(0, {"name": "default", **self._data(("data",)), "seq_len": self.seq_len})]
        self._check_names([stage["name"] for _, stage in found])
        found = sorted((one for one in found if one[0] < self.steps), key=lambda one: one[0])
        self.longest = max((stage["seq_len"] for _, stage in found), default=self.seq_len)
        if not found:
            return []
        starts = [start for start, _ in found]
        if starts[0] != 0 and not self.theirs.problems:
            what = f"begin with step {starts[0] + 1:,}. One must begin with the first: write start_training_step: 1."
            self.theirs.problem(("data_stages",), what)
        ends = [*starts[1:], self.steps]
        return [{**stage, "steps": end - start} for (start, stage), end in zip(found, ends, strict=True)]

    def _check_names(self, names: list[str]) -> None:
        for number, name in enumerate(names):
            if name in names[:number]:
                what = f"is {show_value(name)}, as is that of data_stages[{names.index(name)}]."
                self.theirs.problem(("data_stages", number, "name"), f"{what} Give each one of its own.")

    def _stage(self, path: Path) -> tuple[int, dict[str, Any]]:
        """A stage and where it starts, in our counting."""
        name = self.theirs.take_text(*path, "name")
        if name is None:
            self.theirs.problem((*path, "name"), "is missing. Write name: general.")
        ours = stage_name(name or f"stage-{path[-1]}")
        if name is not None and ours != name:
            self.theirs.differs((*path, "name"), f"is {show_value(name)}, called {show_value(ours)} here.")
        start = self._start((*path, "start_training_step"))
        seq_len = self.theirs.take_whole(*path, "sequence_length", at_least=1, default=self.seq_len)
        return start, {"name": ours, **self._data((*path, "data")), "seq_len": seq_len}

    def _start(self, path: Path) -> int:
        start = self.theirs.take_needed(*path, at_least=1)
        if start is None:
            return 0
        if start > self.steps:
            what = (
                f"is {start:,}, and the run ends with step {self.steps:,}: the stage is not reached, and left out here."
            )
            self.theirs.differs(path, what)
        others = [self.theirs.look("data_stages", number, path[-1]) for number in range(int(path[1]))]
        if start in others:
            what = f"is {start:,}, as is that of data_stages[{others.index(start)}]: an overlap. Raise one of the two."
            self.theirs.problem(path, what)
        return start - 1

    def _data(self, path: Path) -> dict[str, Any]:
        """The mixture and the seed of a stage."""
        self.theirs.without_effect({"num_loading_workers": "one thread is enough: loader.workers"}, *path)
        seed = self.theirs.take_whole(*path, "seed", at_least=0, default=42)
        table = (*path, "dataset")
        dataset = self.theirs.look(*table)
        if not isinstance(dataset, Mapping):
            self.theirs.refuse(table, dataset, "Write dataset: { dataset_folder: data/web }.")
            self.theirs.take(*table)
            return {}
        return {"seed": seed, **(self._hub(table) if HUB in dataset else self._nanoset(table))}

    def _nanoset(self, table: Path) -> dict[str, Any]:
        """Folders of token files."""
        key = self._folders(table)
        given = self.theirs.take(*table, key)
        self.theirs.without_effect(NANOSET_ONLY, *table)
        self.theirs.not_here({"dataset_max_tokens": "All of a folder is read here. Write a folder with less."}, *table)
        files = self._files((*table, READ), _listed(given))
        size = self.theirs.take(*table, "token_size_in_bytes")
        if size is not None and size not in DTYPES:
            rule = "Tokens have 2 or 4 bytes. Leave it out where the files record it."
            self.theirs.refuse((*table, "token_size_in_bytes"), size, rule)
        kind = {"kind": "tokens", **({"dtype": DTYPES[size]} if size in DTYPES else {})}
        return self._shares(table, key, given, lambda folder: {**kind, "path": files.get(folder, folder)})

    def _files(self, path: Path, folders: list[Any]) -> dict[Any, str]:
        """Where the files of each folder are, where that is another place."""
        given = self.theirs.take(*path)
        read = [] if isinstance(given, Mapping) else _listed(given)
        if given is None:
            return {}
        if len(read) != len(folders) or not all(isinstance(place, str) and place for place in read):
            self.theirs.refuse(path, given, "Write a list with one path for each folder.")
        elif len(set(read)) != len(read):
            self.theirs.refuse(path, given, "Two folders are read from one path. Write a path for each.")
        else:
            return {folder: place for folder, place in zip(folders, read, strict=True) if isinstance(folder, str)}
        return {}

    def _folders(self, table: Path) -> str:
        """The key under which a dataset's folders are."""
        return next((key for key in FOLDERS if self.theirs.has(*table, key)), FOLDERS[0])

    def _places(self, table: Path) -> list[str]:
        """Where a dataset's files are, without taking the keys."""
        read = _listed(self.theirs.look(*table, READ)) or _listed(self.theirs.look(*table, self._folders(table)))
        return [place for place in read if isinstance(place, str)]

    def _hub(self, table: Path) -> dict[str, Any]:
        given = self.theirs.take(*table, HUB)
        self.theirs.without_effect(HUB_ONLY, *table)
        self.theirs.not_here({"debug_max_samples": NO_SAMPLES}, *table)
        if self.theirs.take(*table, "sft_dataloader", default=False):
            what = "is true: conversations are read by a source of kind chat. Write a config of ours for them."
            self.theirs.problem((*table, "sft_dataloader"), what)
        split = self.theirs.take(*table, "hf_dataset_splits", default="train")
        if isinstance(split, list) and len(split) == 1:
            (split,) = split
        if not isinstance(split, str):
            what = f"is {show_value(split)}, but a source has one split. Write hf_dataset_splits: train."
            self.theirs.problem((*table, "hf_dataset_splits"), what)
        subset = self.theirs.take_text(*table, "hf_dataset_config_name")
        column = self.theirs.take_text(*table, "text_column_name") or "text"
        rest = {**({"subset": subset} if subset else {}), "split": split, "column": column}
        return self._shares(table, HUB, given, lambda name: {"kind": "huggingface", "dataset": name, **rest})

    def _shares(self, table: Path, key: str, given: Any, source: Any) -> dict[str, Any]:
        """Weights in ours, which are normalised; where there are none, shares in proportion to size."""
        weights = self.theirs.take(*table, "dataset_weights")
        places = [given] if isinstance(given, str) else list(given) if isinstance(given, list | Mapping) else []
        if not places or not all(isinstance(place, str) and place for place in places):
            self.theirs.refuse((*table, key), given, f"Write {key}: data/web, a list, or a mapping to weights.")
            return {}
        if len(set(places)) != len(places):
            self.theirs.problem((*table, key), "names a place twice. Name it once, with the sum of their weights.")
            return {}
        tables = [source(place) for place in places]
        paths = [each.get("path", place) for each, place in zip(tables, places, strict=True)]
        names = [
            self.sources.name_of(each, self.names.get(path, path)) for each, path in zip(tables, paths, strict=True)
        ]
        if isinstance(given, str):
            return {"sources": names}  # theirs has weight 1, whatever is written
        where = "dataset_weights"
        if isinstance(given, Mapping):
            weights, where = list(given.values()), key
        if weights is None:
            return {"sources": names}
        if not isinstance(weights, list) or len(weights) != len(names):
            what = f"is {show_value(weights)}, but there are {len(names)} folders."
            what = f"{what} Write a list with one weight for each."
        elif not all(is_number(weight) and weight >= 0 for weight in weights) or not any(weights):
            shown = show_value(given if where == key else weights)
            what = f"is {shown}. Each must be a number, at least 0, and one of them over 0."
        else:
            return {"weights": dict(zip(names, weights, strict=True))}
        self.theirs.problem((*table, where), what)
        return {}


def _listed(given: Any) -> list[Any]:
    """A folder, a list of them, or a mapping of them to weights, as a list."""
    return [given] if isinstance(given, str) else list(given) if isinstance(given, list | Mapping) else []


def different_parts(places: list[Any]) -> dict[str, str]:
    """For each place the last part of its path in which it differs from those that end alike.

    `a/web/tokenized` and `a/code/tokenized` -> web and code.
    """
    parts = {place: PurePath(place).parts or (place,) for place in places if isinstance(place, str)}
    depths = dict.fromkeys(parts, 1)
    while True:
        alike: dict[str, list[str]] = {}
        for place, depth in depths.items():
            alike.setdefault(parts[place][-depth], []).append(place)
        higher = [
            place for group in alike.values() if len(group) > 1 for place in group if depths[place] < len(parts[place])
        ]
        if not higher:
            return {place: parts[place][-depth] for place, depth in depths.items()}
        for place in higher:
            depths[place] += 1
