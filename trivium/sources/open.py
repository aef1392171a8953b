"""A source that is open: its documents as blocks, those to train on and those held out."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from trivium.config.schema import Config
from trivium.config.sources import BaseSource, ChatSource, Source
from trivium.errors import PlanError, Problem, SourceError
from trivium.rows.blocks import Blocks, FileBlocks, HoldOut
from trivium.sources import chat, huggingface, text, tokens
from trivium.sources.located import Located, Means
from trivium.text.tokenizer import open_tokenizer
from trivium.tokenfiles.manifest import Manifest, check_vocab, manifest_of
from trivium.tokenfiles.open import TokenFile


@dataclass(frozen=True, slots=True)
class OpenSource:
    """What a plan and a loader need of a source."""

    blocks: Blocks
    documents: int  # to train on
    tokens: int
    held_out: Blocks | None = None
    held_out_tokens: int = 0
    validation_only: bool = False
    largest_id: int = 0
    content: str = ""  # a hash of the content alone
    loss_on: Literal["all", "assistant"] = "assistant"  # "all": loss bytes count only where a stage says so

    @property
    def fingerprint(self) -> str:
        """Of its content and of all that decides the order in which it is read."""
        return self.blocks.fingerprint


Locate = Callable[[str, Any, Means], Located | None]
# How each kind of source comes to token files; a stream has none.
KINDS: Mapping[str, Locate] = {
    "tokens": tokens.locate,
    "text": text.locate,
    "huggingface": huggingface.locate,
    "chat": chat.locate,
}


def open_sources(config: Config, *, fetch: bool = False, workers: int | None = None) -> dict[str, OpenSource]:
    """Every source that is on disk; one that is not there is left out, one that is broken is a problem."""
    vocab = vocab_of(config)
    opened: dict[str, OpenSource] = {}
    problems: list[Problem] = []
    for name, source, located in locate_sources(config, problems, fetch=fetch, workers=workers):
        try:
            manifest = manifest_of(located.files, located.folder)
            if vocab is not None:
                check_vocab(manifest, located.files, vocab)
            opened[name] = as_blocks(name, source, located.files, manifest)
        except SourceError as error:
            problems.append(Problem(f"sources.{name}", str(error)))
    if problems:
        raise PlanError(problems)
    return opened


def locate_sources(
    config: Config, problems: list[Problem], *, fetch: bool = False, workers: int | None = None
) -> Iterator[tuple[str, Source, Located]]:
    """The token files of every source that is on disk, prepared on first use; adds to `problems`."""
    means = Means(config.tokenizer, fetch=fetch, workers=workers)
    for name, source in config.sources.items():
        try:
            located = KINDS[source.kind](name, source, means) if source.kind in KINDS else None
        except SourceError as error:
            problems.append(Problem(f"sources.{name}", str(error)))
            continue
        if located is not None:
            yield name, source, located


def vocab_of(config: Config) -> int | None:
    """The model's vocabulary: as written, else the tokenizer's; None where neither is there."""
    if config.model.vocab is not None or config.tokenizer is None or config.model.init is not None:
        return config.model.vocab
    try:
        tokenizer = open_tokenizer(config.tokenizer)
    except SourceError:
        return None  # a tokenizer that is not there yet is asked for when the run starts
    return None if tokenizer is None else tokenizer.vocab


def as_blocks(name: str, source: BaseSource, files: tuple[TokenFile, ...], manifest: Manifest) -> OpenSource:
    """Token files as blocks, with what the source holds out set apart."""
    sizes = source.block_tokens, source.window_blocks
    if source.validation is None:
        blocks = FileBlocks(name, files, manifest.fingerprint, *sizes)
        only = source.validation_only
        return OpenSource(blocks, *_readable(blocks), validation_only=only, **_known(source, manifest))
    share = source.validation if isinstance(source.validation, float) else source.validation / max(1, manifest.tokens)
    train = FileBlocks(name, files, manifest.fingerprint, *sizes, HoldOut(share, wanted=False))
    held = FileBlocks(name, files, manifest.fingerprint, *sizes, HoldOut(share, wanted=True))
    _, tokens = held.count()
    if not tokens:
        raise SourceError(
            f"validation = {source.validation} holds out none of the {manifest.documents:,} documents. "
            "Hold out more, or give a source of its own with validation_only = true."
        )
    return OpenSource(train, *_readable(train), held, tokens, **_known(source, manifest))


def _known(source: BaseSource, manifest: Manifest) -> dict[str, Any]:
    loss_on = source.loss_on if isinstance(source, ChatSource) else "assistant"
    return {"largest_id": manifest.largest_id, "content": manifest.fingerprint, "loss_on": loss_on}


def _readable(blocks: FileBlocks) -> tuple[int, int]:
    documents, tokens = blocks.count()
    if not tokens:
        raise SourceError("no token of it can be read: all documents are empty or held out. Lower validation.")
    return documents, tokens
