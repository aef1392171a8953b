"""A run's folder, a checkpoint or a Hugging Face folder -> a model to ask, on one process."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trivium.config.schema import Config
from trivium.config.schema import Tokenizer as TokenizerConfig
from trivium.config.sources import HuggingFaceSource, StreamSource, TextSource
from trivium.data.around import added_roles
from trivium.data.tokenizer import Tokenizer, open_tokenizer
from trivium.engine.base import Engine, EngineSettings
from trivium.engine.folder import read_spec
from trivium.engine.huggingface import CONFIG_FILE
from trivium.engine.make import make_engine
from trivium.engine.spec import ModelSpec
from trivium.errors import UsageError
from trivium.generate.stops import text_ends
from trivium.train.convert import standing_engine, standing_stage
from trivium.train.run_folder import find_checkpoint

GENERATION_FILE = "generation_config.json"


@dataclass(frozen=True, slots=True)
class Model:
    """Weights that stand still, and the tokenizer they were trained with."""

    engine: Engine
    spec: ModelSpec
    seq_len: int  # tokens of the longest row that it reads
    title: str  # such as "step 4,000 of runs/small"
    said: TokenizerConfig | None  # the tokenizer's config
    config: Config | None = None  # of a run
    ends: frozenset[int] = frozenset()  # further tokens that end what it writes, by a Hugging Face folder's own word

    def tokenizer(self) -> Tokenizer:
        """Its tokenizer, or a refusal where it has none or one of another model."""
        opened = open_tokenizer(self.said)
        if opened is None:
            raise UsageError(f"{self.title}: says no tokenizer. Give --tokenizer tokenizer.json, or --tokenizer bytes.")
        if opened.vocab > self.spec.vocab:
            what = f"the tokenizer has {opened.vocab:,} tokens, but the model {self.spec.vocab:,}"
            raise UsageError(f"{self.title}: {what}. Give --tokenizer with the model's own.")
        return opened

    def prompt(self, text: str, tokenizer: Tokenizer) -> NDArray[np.uint32]:
        """A text's tokens after what documents began with in training; an empty text begins at a document's start."""
        (tokens,) = tokenizer.encode([text])
        before = self._before(tokenizer)
        if not before and not len(tokens):
            before = [token for token in [tokenizer.special("bos"), tokenizer.special("eos")] if token is not None][:1]
            if not before:
                raise UsageError(
                    "an empty prompt has no token, and the tokenizer none that begins a text. Give --prompt."
                )
        return np.concatenate([np.array(before, np.uint32), tokens])

    def text_ends(self, tokenizer: Tokenizer) -> frozenset[int]:
        """The tokens that end a text."""
        return text_ends(tokenizer) | self.ends

    def _before(self, tokenizer: Tokenizer) -> list[int]:
        """bos, unless the run's own documents have none."""
        bos = tokenizer.special("bos")
        sources = () if self.config is None else self.config.sources.values()
        texts = [each for each in sources if isinstance(each, TextSource | HuggingFaceSource | StreamSource)]
        if bos is None or (texts and all("bos" not in added_roles(tokenizer, each.add) for each in texts)):
            return []
        return [bos]


def open_model(path: Path, step: int | None = None, tokenizer: str | None = None, device: str | None = None) -> Model:
    """The model in a folder; a tokenizer that is given (a path, or bytes) is used instead of its own."""
    if not path.is_dir():
        raise UsageError(f"{path}: is no folder. Give a run's, one of its checkpoints', or a Hugging Face one.")
    if (path / CONFIG_FILE).is_file():
        if step is not None:
            raise UsageError(f"{path}: is a Hugging Face folder, which has no steps. Leave --step out.")
        return _open_huggingface(path, _said(tokenizer) or folder_tokenizer(path), device)
    checkpoint = find_checkpoint(path, step)
    config = Config.model_validate(checkpoint.state()["config"])
    spec = read_spec(checkpoint.engine)
    seq_len = max(spec.max_seq_len, standing_stage(checkpoint).seq_len)
    engine = standing_engine(checkpoint, device)
    title = f"step {checkpoint.step:,} of {path}"
    return Model(engine, spec, seq_len, title, _said(tokenizer) or config.tokenizer, config)


def folder_tokenizer(folder: Path) -> TokenizerConfig | None:
    """The tokenizer beside a model's weights; None where there is none that is known here."""
    if (folder / "tokenizer.json").is_file():
        return TokenizerConfig(path=str(folder))
    if len(list(folder.glob("*.tiktoken"))) == 1:
        return TokenizerConfig(kind="tiktoken", path=str(folder))
    return None


def _open_huggingface(folder: Path, said: TokenizerConfig | None, device: str | None) -> Model:
    spec = read_spec(folder)
    engine = make_engine(EngineSettings(spec, device=device))
    engine.start_from(folder)
    path = folder / GENERATION_FILE
    ends = json.loads(path.read_text()).get("eos_token_id") if path.is_file() else None
    listed = ends if isinstance(ends, list) else [ends]
    return Model(engine, spec, spec.max_seq_len, str(folder), said, None, frozenset(n for n in listed if n is not None))


def _said(tokenizer: str | None) -> TokenizerConfig | None:
    if tokenizer is None:
        return None
    if tokenizer.endswith(".tiktoken"):
        return TokenizerConfig(kind="tiktoken", path=tokenizer)
    return TokenizerConfig(kind="bytes") if tokenizer == "bytes" else TokenizerConfig(path=tokenizer)
