"""A folder of weights and the model that is to start from them -> what is read, what is left out, what is added.

Headers of files are read, never their tensors. What does not fit is refused, all at once (`huggingface_files`).
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trivium.model.huggingface import their_name
from trivium.model.huggingface_files import IS_STORED_TWICE, Shape, fitting_files, tensors_of
from trivium.model.spec import ModelSpec

OPTIMIZER = "optimizer state"


@dataclass(frozen=True, slots=True)
class StartingWeights:
    """What a run takes from the folder that `model.init` names."""

    folder: str
    parameters: int
    tensors: int | None = None  # None of a checkpoint, whose engine reads all of its own
    kinds: Mapping[str, int] = field(default_factory=dict)  # parameters by the type that they are stored in
    left_out: Mapping[str, str] = field(default_factory=dict)  # what the files hold and nobody reads, with the reason
    added: Mapping[str, str] = field(default_factory=dict)  # what is not there, with what it is instead

    def words(self) -> str:
        """`21 tensors, 1,234,567 parameters (BF16); left out: ...; added: ...`."""
        kinds = f" ({', '.join(self.kinds)})" if self.kinds else ""
        tensors = "" if self.tensors is None else f"{self.tensors:,} tensors, "
        read = f"{tensors}{self.parameters:,} parameters{kinds}"
        parts = {"left out": self.left_out, "added": self.added}
        listed = [f"{title}: {_listed(each)}" for title, each in parts.items() if each]
        return "; ".join([read, *listed])


def _listed(parts: Mapping[str, str], shown: int = 4) -> str:
    named = [f"{name} ({why})" for name, why in list(parts.items())[:shown]]
    more = [f"{len(parts) - shown:,} more"] if len(parts) > shown else []
    return ", ".join([*named, *more])


def from_huggingface(folder: Path, spec: ModelSpec, shapes: Mapping[str, Shape]) -> StartingWeights:
    """Of a Hugging Face folder, whose tensors must have the names and shapes of the model's; ConfigError if not."""
    files = fitting_files(folder, shapes, tied=spec.tied_embeddings)
    by_name = {their_name(name): path for name, path in files.items()}
    kinds: Counter[str] = Counter()
    left_out: dict[str, str] = {}
    for tensor in tensors_of(folder):
        if by_name.get(tensor.name) == tensor.path:
            kinds[tensor.kind] += math.prod(tensor.shape)
        elif tensor.name in by_name:
            left_out[f"{tensor.name} of {tensor.path.name}"] = IS_STORED_TWICE
        elif tensor.name == their_name("unembedding.weight"):
            left_out[tensor.name] = "the embedding is used, to which it is tied"
        else:
            left_out[tensor.name] = "config.json has it"
    padded = spec.padded_vocab - spec.vocab
    rows = "row" if padded == 1 else "rows"
    added = {f"{padded:,} {rows} of the vocabulary": "zeros, up to a multiple of 128; never read"} if padded else {}
    return StartingWeights(str(folder), sum(kinds.values()), len(by_name), dict(kinds), left_out, added | _fresh())


def from_checkpoint(folder: Path, spec: ModelSpec, *, optimizer: bool) -> StartingWeights:
    """Of what an engine saved; `optimizer` says whether its state is read too."""
    left_out = {} if optimizer else {OPTIMIZER: "model.init_optimizer is false"}
    return StartingWeights(str(folder), spec.parameters, left_out=left_out, added={} if optimizer else _fresh())


def _fresh() -> dict[str, str]:
    return {OPTIMIZER: "fresh"}
