"""A recipe, and a shard's records -> its token file, in batches of about a megabyte of text; what a worker does.

The encoder is opened once for all shards of a process. Nothing in here looks at single tokens.
"""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from trivium.config.schema import Tokenizer as TokenizerConfig
from trivium.errors import SourceError
from trivium.paths import Found
from trivium.prepare.origins import ENDING as ORIGINS
from trivium.prepare.origins import Origins
from trivium.prepare.shards import QueuedShard, Shard
from trivium.text.fast_bpe import FastTokenizer
from trivium.text.file_tokenizer import FileTokenizer
from trivium.text.fim import Fim
from trivium.text.roles import Role
from trivium.text.tokenizer import AddedTokens, Tokenizer, added_roles, added_tokens, open_tokenizer
from trivium.textfiles.bad_lines import BadLines
from trivium.textfiles.read import InputLine, InputPart, InputRecords, read_part, read_sent_lines, texts_of
from trivium.textfiles.score import ScoreRange
from trivium.tokenfiles.manifest import TokenFileFacts, measure_file
from trivium.tokenfiles.open import open_files
from trivium.tokenfiles.write import (
    ENDINGS,
    DsWriter,
    Labels,
    Lengths,
    MegatronWriter,
    TokenWriter,
    WrittenFormat,
    dtype_for,
)

VERSION = 1  # of the tokens that a recipe gives
NO_NAME = "Unknown Tokenizer"  # as datatrove writes it
REPORT_SECONDS = 0.2
ANY_MESSAGE = re.compile(r"message \d+")
COMPARED_CHARACTERS = 8192  # of each shard, encoded twice
Form = Literal["text", "chat", "tasks", "tokenised"]  # tasks: conversations with the numbers of their tasks
Report = Callable[[int, int, int], None]  # bytes of input, bytes of text and tokens since the last report


@dataclass(frozen=True, slots=True)
class Job:
    """How every shard of an input is encoded; plain values, for it is sent to other processes."""

    folder: str
    form: Form
    dtype: str
    name: str  # of the tokenizer, in metadata
    tokenizer: dict[str, Any] | None = None  # as the config has it
    column: str = "text"
    before: tuple[int, ...] = ()  # ids that are added to each document
    after: tuple[int, ...] = ()
    dataset: dict[str, Any] | None = None  # where rows come from
    fast: str | None = None  # by which pattern tiktoken gives the same ids
    format: WrittenFormat = "ds"
    fim: Fim | None = None
    score: ScoreRange | None = None

    def writer(self, shard: Shard) -> TokenWriter:
        """The token file of a shard, to be written."""
        prefix = Path(self.folder) / shard.name
        if self.format == "megatron":
            return MegatronWriter(prefix, self.dtype)
        with_loss, with_tasks = self.form != "text", self.form == "tasks"
        return DsWriter(prefix, self.dtype, self.name, with_loss=with_loss, with_tasks=with_tasks)


@dataclass(frozen=True, slots=True)
class Recipe:
    """How documents become tokens."""

    form: Form
    tokenizer: Tokenizer | None = None
    config: TokenizerConfig | None = None  # from which other processes open it
    column: str = "text"
    add: tuple[Role, ...] | None = None  # added to each document; None: see `added_roles`
    dataset: dict[str, Any] | None = None  # where rows come from
    format: WrittenFormat = "ds"
    fim: Fim | None = None  # how texts are cut for fill-in-the-middle
    score: ScoreRange | None = None  # which documents stay, by a number beside their text

    def __post_init__(self) -> None:
        if self.format == "megatron" and self.form != "text":
            raise SourceError(
                "has tokens that do not count in the loss, and Megatron's files cannot hold loss masks. "
                "Prepare it as datatrove's files, which is the default."
            )

    @property
    def added(self) -> tuple[Role, ...]:
        """The roles of what is added; a conversation has its own marks."""
        return () if self.form != "text" or self.tokenizer is None else added_roles(self.tokenizer, self.add)

    @property
    def content(self) -> Any:
        """Plain values that change with the tokens of any document."""
        fingerprint = None if self.tokenizer is None else self.tokenizer.fingerprint
        as_written = [] if self.format == "ds" else [self.format]
        cut = [] if self.fim is None else [self.fim.content]
        kept = [] if self.score is None else [self.score.content]
        return [VERSION, self.form, fingerprint, self.column, sorted(self.added), *as_written, *cut, *kept]

    def job(self, folder: Path) -> Job:
        """The same as plain values, for the workers."""
        marks = AddedTokens() if self.tokenizer is None else added_tokens(self.tokenizer, self.added)
        return Job(
            folder=str(folder),
            form=self.form,
            dtype="uint32" if self.tokenizer is None else dtype_for(self.tokenizer.vocab, self.format),
            name=NO_NAME if self.tokenizer is None else self.tokenizer.fingerprint,
            tokenizer=None if self.config is None else self.config.model_dump(mode="json", exclude_none=True),
            column=self.column,
            before=marks.before,
            after=marks.after,
            dataset=self.dataset,
            format=self.format,
            fim=self.fim,
            score=self.score,
        )


@dataclass(slots=True)
class Encoded:
    """Some documents: tokens one after the other, how many each has, which count in the loss, and each one's task."""

    tokens: NDArray[Any]
    lengths: Lengths
    loss: Labels | None = None
    bad: list[tuple[int, str]] = field(default_factory=list)
    lines: int = 0
    text_bytes: int = 0
    input_bytes: int = 0
    tasks: Labels | None = None
    numbers: Sequence[int] = ()  # of the documents' lines in their part; of rows that may hold several, none


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a shard; `facts` is None where it has no document, and then no file."""

    facts: TokenFileFacts | None
    lines: int
    text_bytes: int
    bad: BadLines

    @staticmethod
    def from_json(plain: dict[str, Any]) -> "Outcome":
        """An outcome of which `asdict` was written as JSON."""
        facts = None if plain["facts"] is None else TokenFileFacts(**plain["facts"])
        return Outcome(facts, plain["lines"], plain["text_bytes"], BadLines.from_json(plain["bad"]))


class ShardEncoder:
    """Encodes shards of one job, one after the other."""

    def __init__(self, job: Job) -> None:
        self.job = job

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Opened when the first document comes."""
        assert self.job.tokenizer is not None, "a job with text has a tokenizer"
        opened = open_tokenizer(TokenizerConfig.model_validate(self.job.tokenizer))
        assert opened is not None, "the config names one"
        return opened

    @cached_property
    def encoder(self) -> Tokenizer:
        """The tokenizer, or a faster form of it."""
        if self.job.fast is None:
            return self.tokenizer
        assert isinstance(self.tokenizer, FileTokenizer), "only these have one"
        return FastTokenizer(self.tokenizer, self.job.fast)

    def encode(self, queued: QueuedShard, report: Report) -> Outcome:
        """Write a shard's token file."""
        shard = queued.shard
        bad, lines, text_bytes = BadLines(), 0, 0
        self._compared = False
        meter, came_from = ReportMeter(report), Origins()
        *written, origins_at = shard_files(Path(self.job.folder), shard.name, self.job.format)
        with self.job.writer(shard) as writer:
            for part, encoded in self._batches(queued):
                if len(encoded.tokens):
                    writer.add(encoded.tokens, encoded.lengths, encoded.loss, encoded.tasks)
                    came_from.add(_line(shard, part, 1), encoded.numbers)
                for number, reason in encoded.bad:
                    bad.add(reason, _line(shard, part, number))
                lines += encoded.lines
                text_bytes += encoded.text_bytes
                meter.add(encoded.input_bytes, encoded.text_bytes, len(encoded.tokens))
            num_tokens = writer.num_tokens
            came_from.write(origins_at)
        meter.flush()
        if not num_tokens:
            for path in (*written, origins_at):
                path.unlink(missing_ok=True)
            return Outcome(None, lines, text_bytes, bad)
        (file,) = open_files([Found(written[0], written[0].name)])
        return Outcome(measure_file(file), lines, text_bytes, bad)

    def _batches(self, queued: QueuedShard) -> Iterator[tuple[InputPart, Encoded]]:
        for part in queued.shard.parts:
            if part.reader == "rows":
                for encoded in self._rows(part):
                    yield part, encoded
                continue
            sent, column, score = queued.lines, self.job.column, self.job.score
            for found in read_part(part, column, score) if sent is None else read_sent_lines(sent):
                yield part, self._encode(found)

    def _rows(self, part: InputPart) -> Iterator[Encoded]:
        """Rows of a dataset: texts, or tokens that are there already."""
        from trivium.prepare.dataset_rows import open_rows, text_rows, token_rows

        assert self.job.dataset is not None, "rows come from a dataset"
        rows = open_rows(self.job.dataset)
        if self.job.form == "tokenised":
            yield from token_rows(rows, part.start, part.stop)
            return
        for found in text_rows(rows, part.start, part.stop, self.job.column, self.job.score):
            yield self._encode(found)

    def _encode(self, found: InputRecords) -> Encoded:
        return self._encode_texts(found) if self.job.form == "text" else self._encode_chats(found)

    def _encode_texts(self, found: InputRecords) -> Encoded:
        lines = len(found.records) + len(found.bad)
        numbered = texts_of(found, self.job.column, self.job.score)
        texts = list(numbered.values())
        encode = self._compared_encode if self.job.fast is not None else self.encoder.encode
        ids = [] if not texts else encode(texts) if self.job.fim is None else self.job.fim.encode(texts, encode)
        around = len(self.job.before) + len(self.job.after)
        lengths = np.fromiter((len(each) + around for each in ids), np.int64, len(ids))
        tokens = _joined(ids, self.job.before, self.job.after) if around else _concatenated(ids)
        sizes = lines, found.text_bytes, found.input_bytes
        return Encoded(tokens, lengths, None, found.bad, *sizes, numbers=list(numbered))

    def _compared_encode(self, texts: Sequence[str]) -> list[NDArray[np.uint32]]:
        """The fast library's ids; the first texts of each shard are encoded by the slow one too."""
        ids = self.encoder.encode(texts)
        if not self._compared:
            self._compare(texts, ids)
        return ids

    def _compare(self, texts: Sequence[str], ids: Sequence[NDArray[Any]]) -> None:
        """The ids of both libraries must be the same."""
        few = max(1, int(np.searchsorted(np.cumsum([len(text) for text in texts]), COMPARED_CHARACTERS)))
        for text, slow, fast in zip(texts, self.tokenizer.encode(texts[:few]), ids, strict=False):
            if not np.array_equal(slow, fast):
                shown = text[:80]
                raise SourceError(f"tiktoken and tokenizers give other ids for {shown!r}. Set TRIVIUM_SLOW_ENCODER=1.")
        self._compared = bool(texts)

    def _encode_chats(self, found: InputRecords) -> Encoded:
        """Conversations: tokens, and which of them are the assistant's."""
        from trivium.text.chat import MalformedConversation, RenderedConversation, render

        bad, lines = found.bad, len(found.records) + len(found.bad)
        rendered: list[RenderedConversation] = []
        tasks: list[int] = []
        numbers: list[int] = []
        for number, record in zip(found.numbers, found.records, strict=True):
            task = record.pop("task") if self.job.form == "tasks" else 0
            try:
                rendered.append(render(record, self.encoder))
                tasks.append(task)
                numbers.append(number)
            except MalformedConversation as error:
                # Counted together, whichever message it is.
                bad.append((number, f"a conversation that {ANY_MESSAGE.sub('has a message which', str(error))}"))
        tokens = _concatenated([each.tokens for each in rendered])
        lengths = np.fromiter((len(each.tokens) for each in rendered), np.int64, len(rendered))
        loss = np.concatenate([np.empty(0, np.uint8), *(each.loss_mask for each in rendered)])
        of_tasks = np.array(tasks, np.uint8) if self.job.form == "tasks" else None
        return Encoded(tokens, lengths, loss, bad, lines, found.text_bytes, found.input_bytes, of_tasks, numbers)


def shard_files(folder: Path, name: str, written: WrittenFormat) -> list[Path]:
    """The files that a shard may have, the token file first, and last where its documents came from."""
    return [folder / f"{name}{ending}" for ending in (*ENDINGS[written], ORIGINS)]


def _line(shard: Shard, part: InputPart, number: int) -> InputLine:
    """Where a line is; of lines that were sent, it is known how many came before."""
    if shard.sent:
        return InputLine(part.name, shard.lines_before + number, part.path, part.reader, 0)
    return InputLine(part.name, number, part.path, part.reader, part.start)


def _joined(ids: Sequence[NDArray[Any]], before: tuple[int, ...], after: tuple[int, ...]) -> NDArray[Any]:
    """All documents in one array, each with what is added to it."""
    first, last = np.array(before, np.uint32), np.array(after, np.uint32)
    return _concatenated([part for each in ids for part in (first, each, last) if len(part)])


def _concatenated(ids: Sequence[NDArray[Any]]) -> NDArray[Any]:
    return np.concatenate(ids) if ids else np.empty(0, np.uint32)


class ReportMeter:
    """Gathers what was done, and reports it a few times a second."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._last = time.monotonic()
        self._sums = [0, 0, 0]

    def add(self, *counts: int) -> None:
        """Bytes of input, bytes of text, tokens."""
        self._sums = [total + count for total, count in zip(self._sums, counts, strict=True)]
        if time.monotonic() - self._last > REPORT_SECONDS:
            self.flush()

    def flush(self) -> None:
        self._report(*self._sums)
        self._sums = [0, 0, 0]
        self._last = time.monotonic()
