"""A source that is open: its documents as blocks, those to train on and those held out."""

from collections.abc import Mapping
from dataclasses import dataclass
from glob import glob
from pathlib import Path
from typing import Any

from trivium.config.sources import BaseSource, Source, TokensSource
from trivium.data.blocks import Blocks, FileBlocks, HoldOut
from trivium.data.manifest import Manifest, check_vocab, manifest_of
from trivium.data.tokens import Layout, TokenFile, open_source
from trivium.errors import PlanError, Problem, SourceError


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

    @property
    def fingerprint(self) -> str:
        """Of its content and of all that decides the order in which it is read."""
        return self.blocks.fingerprint


def open_sources(sources: Mapping[str, Source], vocab: int | None = None) -> dict[str, OpenSource]:
    """Every source that is on disk; one that is not there is left out, one that is broken is a problem."""
    opened: dict[str, OpenSource] = {}
    problems: list[Problem] = []
    for name, source in sources.items():
        try:
            if isinstance(source, TokensSource) and is_there(source):
                opened[name] = open_tokens(name, source, vocab)
        except SourceError as error:
            problems.append(Problem(f"sources.{name}", str(error)))
    if problems:
        raise PlanError(problems)
    return opened


def is_there(source: TokensSource) -> bool:
    """Whether anything of the source is on disk; a pattern may match nothing yet."""
    return any(Path(path).exists() or glob(path, recursive=True) for path in source.path or ())


def open_tokens(name: str, source: TokensSource, vocab: int | None = None) -> OpenSource:
    """Open and check the token files of a source."""
    files = open_token_files(source)
    manifest = manifest_of(files, manifest_folder(source))
    if vocab is not None:
        check_vocab(manifest, files, vocab)
    return as_blocks(name, source, files, manifest)


def open_token_files(source: TokensSource) -> tuple[TokenFile, ...]:
    """Find and map a source's files."""
    assert source.path is not None, "a checked source has a path"
    return open_source(source.path, Layout(source.dtype, source.eos, source.bos))


def manifest_folder(source: TokensSource) -> Path | None:
    """Where a manifest may lie: in the source's folder, where that is all of it."""
    paths = [Path(path) for path in source.path or ()]
    return paths[0] if len(paths) == 1 and paths[0].is_dir() else None


def as_blocks(name: str, source: BaseSource, files: tuple[TokenFile, ...], manifest: Manifest) -> OpenSource:
    """Token files as blocks, with what the source holds out set apart."""
    sizes = source.block_tokens, source.window_blocks
    if source.validation is None:
        blocks = FileBlocks(name, files, manifest.fingerprint, *sizes)
        only = source.validation_only
        return OpenSource(blocks, *_readable(blocks), validation_only=only, **_known(manifest))
    share = source.validation if isinstance(source.validation, float) else source.validation / max(1, manifest.tokens)
    train = FileBlocks(name, files, manifest.fingerprint, *sizes, HoldOut(share, wanted=False))
    held = FileBlocks(name, files, manifest.fingerprint, *sizes, HoldOut(share, wanted=True))
    _, tokens = held.count()
    if not tokens:
        raise SourceError(
            f"validation = {source.validation} holds out none of the {manifest.documents:,} documents. "
            "Hold out more, or give a source of its own with validation_only = true."
        )
    return OpenSource(train, *_readable(train), held, tokens, **_known(manifest))


def _known(manifest: Manifest) -> dict[str, Any]:
    return {"largest_id": manifest.largest_id, "content": manifest.fingerprint}


def _readable(blocks: FileBlocks) -> tuple[int, int]:
    documents, tokens = blocks.count()
    if not tokens:
        raise SourceError("no token of it can be read: all documents are empty or held out. Lower validation.")
    return documents, tokens
