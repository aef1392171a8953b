"""A source that is open: its documents as blocks, those to train on and those held out."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from trivium.config.keys import listed
from trivium.config.schema import Config
from trivium.config.sources import BaseSource, ChatSource, PreparedSource, Source, TextSource, ViewSource
from trivium.errors import PlanError, Problem, SourceError
from trivium.rows.blocks import Blocks, FileBlocks, HoldOut
from trivium.rows.lengths import MAX_BOUNDS, LengthRange
from trivium.sources.chat import locate_chat
from trivium.sources.huggingface import locate_dataset
from trivium.sources.locate import (
    Gap,
    LocatedSource,
    LocateSettings,
    TokenizerError,
    locate_text,
    locate_tokens,
    not_prepared,
)
from trivium.sources.origins import DocumentOrigins
from trivium.text.tokenizer import AwaitedTokenizerError, open_tokenizer, tokenizer_problem
from trivium.tokenfiles.manifest import Manifest, check_vocab, manifest_of
from trivium.tokenfiles.open import TokenFile, UnopenedFile


class TaskCount(NamedTuple):
    """What a source has of one of its tasks, to train on."""

    task: str
    documents: int
    tokens: int


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
    loss_on: Literal["all", "assistant"] = "assistant"  # "all": loss bytes count only where a stage asks for it
    tasks: tuple[TaskCount, ...] = ()  # of a source that mixes several
    origins: DocumentOrigins | None = None  # of one that was prepared
    view_of: str | None = None  # of a view: the source that has its documents

    @property
    def fingerprint(self) -> str:
        """Of its content and of all that decides the order in which it is read."""
        return self.blocks.fingerprint

    def task_of(self, document: int) -> str | None:
        """The task that a document is of, where the source mixes several."""
        number = self.blocks.task_of(document) if self.tasks and isinstance(self.blocks, FileBlocks) else None
        return None if number is None else self.tasks[number].task

    def origin_of(self, document: int) -> str | None:
        """The user's file and line that a document was prepared from, where that is known."""
        if self.origins is None or not isinstance(self.blocks, FileBlocks):
            return None
        file, number = self.blocks.place_of(document)
        return self.origins.place_of(self.blocks.files[file].name, number)


class OpenSources(NamedTuple):
    """The sources of a config that have token files, and why the others have none."""

    sources: dict[str, OpenSource]
    gaps: dict[str, Gap]


# How each kind of source comes to token files; a stream has none.
LOCATE_BY_KIND: Mapping[str, Callable[[str, Any, LocateSettings], LocatedSource]] = {
    "tokens": locate_tokens,
    "text": locate_text,
    "huggingface": locate_dataset,
    "chat": locate_chat,
}


def open_sources(config: Config, *, prepare: bool = False) -> OpenSources:
    """Open every source that has token files; `prepare` makes them of the others; a broken one is a problem."""
    vocab = vocab_of(config)
    opened: dict[str, OpenSource] = {}
    gaps: dict[str, Gap] = {}
    problems: list[Problem] = []
    for name, source, located in locate_sources(config, problems, prepare=prepare):
        views = config.views_of(name)
        if located.gap is not None:
            gaps |= dict.fromkeys((name, *views), located.gap)
            continue
        try:
            manifest = manifest_of(located.files, located.folder)
            if vocab is not None:
                check_vocab(manifest, located.files, vocab)
            made = as_blocks(name, source, located.files, manifest)
            if located.folder is not None and isinstance(source, PreparedSource):
                made = replace(made, origins=DocumentOrigins(source, located.folder))
            opened[name] = _with_bounds(made, views)
        except SourceError as error:
            problems.append(Problem(f"sources.{name}", str(error)))
            continue
        for each, view in views.items():
            try:
                opened[each] = _view(each, view, source, opened[name], manifest)
            except SourceError as error:
                problems.append(Problem(f"sources.{each}", str(error)))
    if problems:
        raise PlanError(problems)
    return OpenSources(opened, gaps)


def locate_sources(
    config: Config, problems: list[Problem], *, prepare: bool = False, workers: int | None = None
) -> Iterator[tuple[str, Source, LocatedSource]]:
    """The token files of every source that is not a stream, or its gap; adds to `problems`."""
    settings = LocateSettings(config.tokenizer, prepare=prepare, workers=workers)
    without_tokenizer: dict[str, TokenizerError] = {}
    for name, source in config.sources.items():
        if source.kind in LOCATE_BY_KIND:
            try:
                yield name, source, LOCATE_BY_KIND[source.kind](name, source, settings)
            except AwaitedTokenizerError:
                yield name, source, not_prepared(source.where, getattr(source, "path", None) or ())
            except TokenizerError as error:
                without_tokenizer[name] = error
            except SourceError as error:
                problems.append(Problem(f"sources.{name}", str(error)))
    if without_tokenizer:
        problems.append(_tokenizer_problem(without_tokenizer, config))


def _tokenizer_problem(found: Mapping[str, TokenizerError], config: Config) -> Problem:
    """One problem for all sources that need the tokenizer."""
    problem = tokenizer_problem(next(iter(found.values())))
    needed_by = listed([f"sources.{name}" for name in found])
    trained_on = "CONFIG" if any(isinstance(config.sources[name], TextSource) for name in found) else "FILES"
    fix = ""
    if config.tokenizer is None or problem.where == "tokenizer.path":  # there is none, or not yet
        fix = f" trivium tokenizer train {trained_on} --out FOLDER makes one."
    return Problem(problem.where, f"{problem.what}{fix} Needed by {needed_by}.")


def vocab_of(config: Config) -> int | None:
    """The model's vocabulary at its largest: as written, else the tokenizer's; None where neither is there."""
    grown = max((stage.vocab or 0 for stage in config.stages), default=0)
    if config.model.vocab is not None or config.tokenizer is None or config.model.init is not None:
        return None if config.model.vocab is None else max(config.model.vocab, grown)
    try:
        tokenizer = open_tokenizer(config.tokenizer, fetch=False)
    except SourceError:
        return None  # a tokenizer that is not there yet is asked for when the run starts
    return None if tokenizer is None else max(tokenizer.vocab, grown)


def as_blocks(name: str, source: BaseSource, files: tuple[TokenFile, ...], manifest: Manifest) -> OpenSource:
    """Token files as blocks, with what the source holds out set apart."""
    train, held = blocks_of(name, source, files, manifest.fingerprint)
    if held is None:
        only = source.validation_only
        return OpenSource(train, *_readable(train), validation_only=only, **_known(source, manifest, train))
    _, tokens = held.count()
    if not tokens:
        raise SourceError(
            f"validation = {source.validation} holds out none of the {manifest.documents:,} documents. "
            "Hold out more, or give a source of its own with validation_only = true."
        )
    return OpenSource(train, *_readable(train), held, tokens, **_known(source, manifest, train))


def _with_bounds(source: OpenSource, views: Mapping[str, ViewSource]) -> OpenSource:
    """A source whose documents are told apart by the lengths that its views begin and end at."""
    if not views:
        return source
    limits = {limit for view in views.values() for limit in (view.min_tokens, view.max_tokens)}
    bounds = tuple(sorted(limit for limit in limits if limit is not None))
    if len(bounds) > MAX_BOUNDS:
        raise SourceError(f"its views begin and end at {len(bounds)} lengths. Write views with {MAX_BOUNDS} or fewer.")
    return within(source, LengthRange.between(bounds))


def _view(name: str, view: ViewSource, config: Source, source: OpenSource, manifest: Manifest) -> OpenSource:
    """The documents of a source whose length is in a view's range."""
    bounds = source.blocks.lengths.bounds
    found = within(source, LengthRange.between(bounds, view.min_tokens or 0, view.max_tokens))
    assert isinstance(found.blocks, FileBlocks), "only a source of files has views"
    documents, tokens = found.blocks.count()
    if not tokens:
        held = " that is not held out" if source.held_out is not None else ""
        raise SourceError(f"no document of {view.of}{held} has {view.range}. Change min_tokens or max_tokens.")
    held_out = found.held_out
    counted = held_out.count()[1] if isinstance(held_out, FileBlocks) else 0
    known = _known(config, manifest, found.blocks)
    return replace(
        found, documents=documents, tokens=tokens, held_out_tokens=counted, view_of=source.blocks.name, **known
    )


def within(source: OpenSource, lengths: LengthRange) -> OpenSource:
    """A source with the documents of a range of lengths; what it counts is to be counted again."""
    assert isinstance(source.blocks, FileBlocks), "only a source of files has views"
    held_out = source.held_out.within(lengths) if isinstance(source.held_out, FileBlocks) else None
    return replace(source, blocks=source.blocks.within(lengths), held_out=held_out)


def blocks_of(
    name: str, source: BaseSource, files: Sequence[TokenFile | UnopenedFile], content: str
) -> tuple[FileBlocks, FileBlocks | None]:
    """The blocks to train on, and those that are held out, if any are."""
    sizes = source.block_tokens, source.window_blocks
    if source.validation is None:
        return FileBlocks(name, files, content, *sizes), None
    tokens = sum(file.num_tokens for file in files)
    share = source.validation if isinstance(source.validation, float) else source.validation / max(1, tokens)
    kinds = (FileBlocks(name, files, content, *sizes, HoldOut(share, wanted=wanted)) for wanted in (False, True))
    train, held_out = kinds
    return train, held_out


def _known(source: BaseSource, manifest: Manifest, blocks: FileBlocks) -> dict[str, Any]:
    known: dict[str, Any] = {"largest_id": manifest.largest_id, "content": manifest.fingerprint}
    if isinstance(source, ChatSource):
        known |= {"loss_on": source.loss_on, "tasks": _count_tasks(source, blocks)}
    return known


def _count_tasks(source: ChatSource, blocks: FileBlocks) -> tuple[TaskCount, ...]:
    """What the blocks have of each task of a source that mixes several."""
    names = [task.name for task in source.tasks or ()]
    counts = np.zeros((2, len(names)), np.int64)
    for number in range(len(blocks.files)):
        file = blocks.opened(number)
        if file.tasks is not None:
            chosen = blocks.has_documents(number)
            tasks, lengths = file.tasks[chosen], np.diff(file.ends, prepend=0)[chosen]
            counts += [np.bincount(tasks, weights, len(names)).astype(np.int64) for weights in (None, lengths)]
    return tuple(TaskCount(*each) for each in zip(names, *counts.tolist(), strict=True))


def _readable(blocks: FileBlocks) -> tuple[int, int]:
    documents, tokens = blocks.count()
    if not tokens:
        raise SourceError("no token of it can be read: all documents are empty or held out. Lower validation.")
    return documents, tokens
