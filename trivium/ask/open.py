"""A run's folder, a checkpoint or a Hugging Face folder -> a model to ask, on one process."""

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trivium.ask.convert import checkpoint_engine, checkpoint_stage
from trivium.ask.generate.generate import generate
from trivium.ask.generate.row import Writing, text_ends
from trivium.ask.generate.sampling import Sampling
from trivium.config.schema import Config
from trivium.config.schema import Tokenizer as TokenizerConfig
from trivium.config.sources import HuggingFaceSource, StreamSource, TextSource
from trivium.engine.base import Engine, EngineSettings, MakeModel
from trivium.engine.make import counted_spec, make_engine
from trivium.errors import UsageError
from trivium.model.folder import read_spec
from trivium.model.huggingface import CONFIG_FILE, read_table
from trivium.model.spec import ModelSpec
from trivium.paths import suggestion
from trivium.run.folder import find_checkpoint
from trivium.text.file_tokenizer import FileTokenizer
from trivium.text.tokenizer import Tokenizer, added_roles, open_tokenizer

GENERATION_FILE = "generation_config.json"
DEVICE = re.compile(r"(cuda|mps|tpu|cpu)(:\d+)?")


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A frozen model in its engine, and the tokenizer that it was trained with."""

    engine: Engine
    tokenizer: Tokenizer
    spec: ModelSpec
    seq_len: int  # tokens of the longest row that it reads
    title: str  # such as "step 4,000 of runs/small"
    before: tuple[int, ...] = ()  # the tokens before each text
    ends: frozenset[int] = frozenset()  # tokens that end a text

    def prompt(self, text: str) -> NDArray[np.uint32]:
        return prompt_tokens(text, self.tokenizer, self.before)

    def write(self, prompt: str = "", max_new_tokens: int = 128, temperature: float = 0.8, seed: int = 0) -> str:
        """A text after a prompt, of as many tokens as the model's rows leave room for."""
        tokens = self.prompt(prompt)
        room = max(1, min(max_new_tokens, self.seq_len - len(tokens)))
        writing = Writing(room, self.ends, Sampling(temperature, seed=seed), vocab=self.tokenizer.vocab)
        ((row,),) = generate(self.engine, [tokens], writing)
        return self.tokenizer.decode(row.tokens)


def prompt_tokens(text: str, tokenizer: Tokenizer, before: tuple[int, ...]) -> NDArray[np.uint32]:
    """A text's tokens, after those before each text; an empty text is the beginning of one."""
    (tokens,) = tokenizer.encode([text])
    if not before and not len(tokens):
        known = (tokenizer.special("bos"), tokenizer.special("eos"))
        before = tuple(token for token in known if token is not None)[:1]
        if not before:
            what = "an empty prompt has no token, and the tokenizer has none that begins a text"
            raise UsageError(f"{what}. Give --prompt.")
    return np.concatenate([np.array(before, np.uint32), tokens])


def open_model(
    path: Path,
    step: int | None = None,
    tokenizer: str | None = None,
    device: str | None = None,
    make_model: MakeModel | None = None,
    *,
    averaged: bool = False,
) -> LoadedModel:
    """The model in a folder; a tokenizer that is given (a path, or bytes) is used instead of its own.

    `make_model` is the function of the Trainer that made the model, where one did. With `averaged` the weights are the
    average that the run keeps beside them.
    """
    if device is not None and DEVICE.fullmatch(device) is None:
        raise UsageError(f'--device: "{device}" is not known. Write cuda, mps, tpu or cpu, or omit --device.')
    if not path.is_dir():
        known = "a run's folder, one of its checkpoints, or a Hugging Face folder"
        raise UsageError(f"{path}: is not a folder.{suggestion(path)} Give {known}.")
    if (path / CONFIG_FILE).exists():
        if step is not None:
            raise UsageError(f"{path}: is a Hugging Face folder, which has no steps. Omit --step.")
        if averaged:
            raise UsageError(f"{path}: is a Hugging Face folder, which has no average. Omit --weights.")
        return _open_huggingface(path, tokenizer, device)
    checkpoint = find_checkpoint(path, step)
    checkpoint.refuse_damaged()
    title = f"step {checkpoint.step:,} of {path}" + (", average" if averaged else "")
    spec = read_spec(checkpoint.engine)
    config = Config.model_validate(checkpoint.state()["config"])
    engine = checkpoint_engine(checkpoint, device, make_model, averaged=averaged)
    words = _opened(_given(tokenizer) or config.tokenizer, spec, title)
    seq_len = max(spec.max_seq_len, checkpoint_stage(checkpoint).seq_len)
    return LoadedModel(engine, words, spec, seq_len, title, begins_with(config, words), text_ends(words))


def run_at_step(name: str) -> tuple[Path, int | None]:
    """`runs/a@4000` -> the run's folder and the step; of any other name the path alone."""
    path = Path(name)
    if path.exists() or "@" not in name:
        return path, None
    run, _, number = name.rpartition("@")
    if not number.isdecimal():
        raise UsageError(f'{name}: "{number}" is not a step. Write {run}@4000, or {run} for its last checkpoint.')
    return Path(run), int(number)


def begins_with(config: Config, tokenizer: Tokenizer) -> tuple[int, ...]:
    """The tokens before each text of a run: bos, unless its own texts have none."""
    bos = tokenizer.special("bos")
    sources = config.sources.values()
    texts = [each for each in sources if isinstance(each, TextSource | HuggingFaceSource | StreamSource)]
    has_none = texts and all("bos" not in added_roles(tokenizer, each.add) for each in texts)
    return () if bos is None or has_none else (bos,)


def folder_tokenizer(folder: Path) -> TokenizerConfig | None:
    """The tokenizer beside a model's weights; None where the folder has none that can be read."""
    if (folder / "tokenizer.json").is_file():
        return TokenizerConfig(path=str(folder))
    if len(list(folder.glob("*.tiktoken"))) == 1:
        return TokenizerConfig(kind="tiktoken", path=str(folder))
    return None


def _open_huggingface(folder: Path, tokenizer: str | None, device: str | None) -> LoadedModel:
    spec = read_spec(folder)
    spec = spec if spec.foreign is None else counted_spec(spec)
    words = _opened(_given(tokenizer) or folder_tokenizer(folder), spec, str(folder))
    engine = make_engine(EngineSettings(spec, device=device, draw=False))
    engine.start_from(folder)
    before, ends = put_before(words), text_ends(words) | _configured_ends(folder)
    return LoadedModel(engine, words, spec, spec.max_seq_len, str(folder), before, ends)


def _opened(config: TokenizerConfig | None, spec: ModelSpec, title: str) -> Tokenizer:
    opened = open_tokenizer(config)
    if opened is None:
        raise UsageError(f"{title}: has no tokenizer. Give --tokenizer tokenizer.json, or --tokenizer bytes.")
    if opened.vocab > spec.vocab:
        what = f"the tokenizer has {opened.vocab:,} tokens, but the model has {spec.vocab:,}"
        raise UsageError(f"{title}: {what}. Give --tokenizer with the model's own.")
    return opened


def _given(tokenizer: str | None) -> TokenizerConfig | None:
    if tokenizer is None:
        return None
    if tokenizer.endswith(".tiktoken"):
        return TokenizerConfig(kind="tiktoken", path=tokenizer)
    return TokenizerConfig(kind="bytes") if tokenizer == "bytes" else TokenizerConfig(path=tokenizer)


def put_before(tokenizer: Tokenizer) -> tuple[int, ...]:
    """The tokens that a tokenizer.json puts before each text; bos of other kinds."""
    if not isinstance(tokenizer, FileTokenizer):
        bos = tokenizer.special("bos")
        return () if bos is None else (bos,)
    plain, added = (tokenizer.inner.encode("a", add_special_tokens=adds).ids for adds in (False, True))
    places = range(len(added) - len(plain) + 1)
    return tuple(added[: next(place for place in places if added[place : place + len(plain)] == plain)])


def _configured_ends(folder: Path) -> frozenset[int]:
    """The tokens that end what a model writes, by its generation_config.json."""
    path = folder / GENERATION_FILE
    value = read_table(path).get("eos_token_id") if path.is_file() else None
    return frozenset(number for number in (value if isinstance(value, list) else [value]) if isinstance(number, int))
