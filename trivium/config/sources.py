"""The kinds of source a config may name; each tells where its documents are, and opens nothing."""

from collections.abc import Mapping
from pathlib import PurePath
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from trivium.config.fields import (
    Fraction,
    Name,
    OpenFraction,
    Paths,
    PathText,
    Positive,
    Table,
    frozen_dict,
    short_form,
)
from trivium.config.numbers import Count, Whole, parse_count
from trivium.config.redact import redact

MOST_WITHOUT = 1000  # documents of a source; more are better left out of its files


def _read_holdout(value: object) -> object:
    """`0.001` is a fraction of the documents, `"500k"` a number of tokens."""
    if isinstance(value, str):
        try:
            count = parse_count(value)
            if count >= 1:
                return count
        except ValueError as reason:
            raise PydanticCustomError("count", "{reason}", {"reason": str(reason)}) from None
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    if isinstance(value, float) and 0 < value < 1:
        return value
    raise PydanticCustomError("holdout", "is neither a fraction below 1 nor a number of tokens", {})


Added = Annotated[tuple[Literal["bos", "eos"], ...], Field(strict=False)]
Documents = Annotated[tuple[Whole, ...], Field(strict=False, max_length=MOST_WITHOUT)]
HoldOut = Annotated[float | int, BeforeValidator(_read_holdout, json_schema_input_type=OpenFraction | Count)]


class BaseSource(Table):
    """Keys of every kind of source."""

    repeat: Count = Field(1, examples=[2])
    """Count the source's tokens this many times in proportional shares."""
    max_epochs: Positive | None = Field(None, examples=[4])
    """Refuse a plan in which the run reads it for more epochs than this; absent: no limit, a warning over 4."""
    expected_tokens: Count | None = Field(None, examples=["1.3T"])
    """Tokens that it will have: a plan counts epochs, and shares by size, by them until it is on disk."""
    validation: HoldOut | None = Field(None, examples=[0.001])
    """Hold out a fraction of its documents, or a number of tokens, for validation."""
    validation_only: bool = False
    """A test split, which is never trained on."""
    block_tokens: Annotated[Count, Field(le=2**29)] = Field(262_144, examples=["256Ki"])
    """Tokens in a block, the unit of order."""
    window_blocks: Count = Field(64, examples=[64])
    """Blocks that are packed and shuffled together."""
    without: Documents | None = Field(None, examples=[[1234]])
    """Documents by their numbers that are read in their places and do not count in the loss; absent: all count."""

    @property
    def holds_out(self) -> bool:
        """Whether it has documents for validation."""
        return self.validation is not None or self.validation_only

    @property
    def is_read_by_default(self) -> bool:
        """Whether a stage that names no sources reads it."""
        return not self.validation_only

    @property
    def where(self) -> str:
        """Where its documents are, for people: paths, a dataset, or a task."""
        places = [getattr(self, key, None) for key in ("path", "dataset", "task")]
        found = next((place for place in places if place), "")
        return redact(found if isinstance(found, str) else " ".join(found))


class TokensSource(BaseSource):
    """Token files: .ds, .npy, .bin, or Megatron's .bin with .idx."""

    kind: Literal["tokens"] = "tokens"
    """Token files on disk."""
    path: Paths | None = Field(None, examples=["data/web"])
    """A file, a folder, a pattern, or a list of them."""
    dtype: Literal["uint8", "uint16", "uint32", "int32", "int64"] | None = Field(None, examples=["uint16"])
    """Type of the tokens in files that do not record it; never guessed."""
    eos: Whole | None = Field(None, examples=[0])
    """In flat files: the token that ends a document."""
    bos: Whole | None = Field(None, examples=[1])
    """In flat files: the token that begins a document."""
    padding: Literal["left", "right"] | None = Field(None, examples=["left"])
    """In rows with a mask: the side of their padding; absent: found from the mask."""


class PreparedSource(BaseSource):
    """Keys of sources that are turned into token files on first use."""

    bad_lines: Fraction = Field(0.001, examples=[0.01])
    """The largest fraction of lines without a document; more is an error."""


class Fim(Table):
    """Fill-in-the-middle: documents are cut in three, and the model learns to write the middle from the other two."""

    rate: Annotated[float, Field(gt=0, le=1)] = Field(0.5, examples=[0.5])
    """The part of the documents that is cut."""
    spm: Fraction = Field(0.5, examples=[0.5])
    """Of these, the part with the suffix first (SPM); the others begin with the prefix (PSM)."""


class Score(Table):
    """Documents by a number that is stored beside their text, such as a classifier's; the others are left out."""

    column: Name = Field("score", examples=["score"])
    """The column of the number."""
    at_least: float | None = Field(None, examples=[3])
    """The lowest number that stays."""
    below: float | None = Field(None, examples=[4])
    """Numbers below this stay."""


class TextSource(PreparedSource):
    """Local text: JSONL, Parquet, plain text (also .gz, .zst); tokenised once and cached."""

    kind: Literal["text"] = "text"
    """Local text files."""
    path: Paths | None = Field(None, examples=["data/web.jsonl"])
    """A file, a folder, a pattern, or a list of them."""
    column: Name = Field("text", examples=["text"])
    """The column of the text, in JSONL and Parquet."""
    add: Added | None = Field(None, examples=[["bos", "eos"]])
    """Tokens around each document; absent: eos at its end where the tokenizer has one, else bos at its start."""
    fim: Fim | None = Field(None, examples=[{"rate": 0.5, "spm": 0.5}])
    """Cut some documents for fill-in-the-middle, as they are tokenised; absent: none."""
    score: Score | None = Field(None, examples=[{"column": "score", "at_least": 3}])
    """Take the documents of a range of stored scores, as they are tokenised; absent: all."""


class HubSource(BaseSource):
    """Keys of both kinds of Hugging Face source."""

    dataset: PathText | None = Field(None, examples=["HuggingFaceFW/fineweb-edu"])
    """A name on the Hub or a folder on disk; a stream also reads a data file, or its URL."""
    subset: Name | None = Field(None, examples=["sample-10BT"])
    """The dataset's configuration, as `datasets` calls it."""
    split: Name = Field("train", examples=["train"])
    """Which split of the dataset."""
    column: Name = Field("text", examples=["text"])
    """The column of the text."""


class HuggingFaceSource(HubSource, PreparedSource):
    """A Hugging Face dataset, eager: tokenised once and cached."""

    kind: Literal["huggingface"] = "huggingface"
    """A `datasets` dataset."""
    tokenised: bool = False
    """The dataset has tokens already: input_ids (or inputs), perhaps with labels and position_ids."""
    add: Added | None = Field(None, examples=[["bos", "eos"]])
    """Tokens around each document; absent: eos at its end where the tokenizer has one, else bos at its start."""
    fim: Fim | None = Field(None, examples=[{"rate": 0.5, "spm": 0.5}])
    """Cut some documents for fill-in-the-middle, as they are tokenised; absent: none."""
    score: Score | None = Field(None, examples=[{"column": "score", "at_least": 3}])
    """Take the documents of a range of stored scores, as they are tokenised; absent: all."""


class StreamSource(HubSource):
    """A Hugging Face dataset read as a stream, tokenised on the fly."""

    kind: Literal["stream"] = "stream"
    """A streaming `datasets` dataset; not finite, so it has no epochs."""
    add: Added | None = Field(None, examples=[["bos", "eos"]])
    """Tokens around each document; absent: eos at its end where the tokenizer has one, else bos at its start."""
    fim: Fim | None = Field(None, examples=[{"rate": 0.5, "spm": 0.5}])
    """Cut some documents for fill-in-the-middle, as they are tokenised; absent: none."""
    lanes: Count = Field(8, examples=[8])
    """Readers side by side, whatever the number of ranks."""
    shuffle_buffer: Count = Field(10_000, examples=["10k"])
    """Documents of a lane that are packed and shuffled together."""


Columns = Annotated[Mapping[Literal["question", "choices", "answer"], Name], frozen_dict]


class TaskKeys(Table):
    """Which conversations: keys of a source of conversations, and of each of its tasks where it has several."""

    path: Paths | None = Field(None, examples=["data/chat.jsonl"])
    """A JSONL file, a folder, a pattern, or a list of them."""
    task: Name | None = Field(None, examples=["gsm8k"])
    """A task by name, instead of a path or reading from it."""
    split: Literal["train", "test"] = "train"
    """Which split of the task."""
    subset: Name | None = Field(None, examples=["ARC-Easy"])
    """Which subset of the task."""
    size: Count | None = Field(None, examples=[1000])
    """Number of conversations of a generated task."""
    split_by: Literal["words", "rows"] = "words"
    """Splits of a generated task: no word is in both, or both draw from all words and differ by their rows."""
    start: Whole | None = Field(None, examples=[0])
    """Read from this conversation on; absent: from the first."""
    stop: Count | None = Field(None, examples=[1000])
    """Stop before this conversation; absent: at the end."""
    columns: Columns | None = Field(None, examples=[{"question": "prompt"}])
    """With task = "choices" or "answers": the names that question, choices and answer have in the files."""


class MixedTask(TaskKeys):
    """One of the tasks that a source mixes."""

    repeat: Count = Field(1, examples=[2])
    """Have each of its conversations this many times in the source."""

    @property
    def name(self) -> str:
        """What it is called in plans: `gsm8k`, `arc ARC-Challenge`, `identity.jsonl`."""
        if self.task in FILES and self.path is not None:
            return PurePath(self.path[0]).name
        return " ".join(filter(None, (self.task, self.subset)))


MixedTasks = Annotated[
    tuple[Annotated[MixedTask, short_form("task", Name | MixedTask)], ...],
    Field(strict=False, max_length=255),
]


class ChatSource(PreparedSource, TaskKeys):
    """Conversations: a JSONL file of messages, a task by name, or several tasks mixed."""

    kind: Literal["chat"] = "chat"
    """Conversations."""
    tasks: MixedTasks | None = Field(None, examples=[["smoltalk", {"task": "gsm8k", "repeat": 2}]])
    """Several tasks instead of one, by name or as tables with the keys of a task and repeat; in one shuffled order."""
    loss_on: Literal["all", "assistant"] = "assistant"
    """Which tokens count in the loss: all, or the assistant's."""

    @property
    def where(self) -> str:
        """Where its conversations are: paths, a task, or its tasks."""
        return " + ".join(task.name for task in self.tasks) if self.tasks else super().where


class ViewSource(BaseSource):
    """The documents of another source whose length is in a range; both share one ledger."""

    kind: Literal["view"] = "view"
    """A view of another source; may be left out beside `from`."""
    of: Name | None = Field(None, alias="from", examples=["web"])
    """The source whose documents it has; what is read through the view counts as read there too."""
    min_tokens: Count | None = Field(None, examples=["16Ki"])
    """Only documents of at least this many tokens; absent: no lower limit."""
    max_tokens: Count | None = Field(None, examples=["32Ki"])
    """Only documents of fewer tokens than this; absent: no upper limit."""

    @property
    def is_read_by_default(self) -> bool:
        """No: the stage reads the documents as those of the source itself."""
        return False

    @property
    def range(self) -> str:
        """Its lengths, for people: `at least 16,384 tokens and fewer than 32,768`."""
        least = None if self.min_tokens is None else f"at least {self.min_tokens:,}"
        fewer = None if self.max_tokens is None else f"fewer than {self.max_tokens:,}"
        return " tokens and ".join(filter(None, (least, fewer))) + ("" if least and fewer else " tokens")

    @property
    def where(self) -> str:
        """The source that has its documents, and their lengths."""
        return f"{self.of}, {self.range}"


def kind_of(table: object) -> object:
    """The kind of a source as it was written; a table with `from` is a view."""
    if not isinstance(table, Mapping):
        return None
    return table.get("kind", "view" if "from" in table else None)


def _with_kind(table: object) -> object:
    kind = kind_of(table)
    return {**table, "kind": kind} if isinstance(table, Mapping) and kind is not None else table


Source = Annotated[
    Annotated[
        TokensSource | TextSource | HuggingFaceSource | StreamSource | ChatSource | ViewSource,
        Field(discriminator="kind"),
    ],
    BeforeValidator(_with_kind),
]
KINDS = ("tokens", "text", "huggingface", "stream", "chat", "view")


def base_of(sources: Mapping[str, BaseSource], name: str) -> BaseSource | None:
    """The source that has a source's documents: itself, or of a view the other one; None where that is not there."""
    source = sources.get(name)
    return sources.get(source.of or "") if isinstance(source, ViewSource) else source


def fim_of(source: BaseSource) -> Fim | None:
    """How a source's texts are cut; None where they are not, or it has no text."""
    return source.fim if isinstance(source, TextSource | HuggingFaceSource | StreamSource) else None


def score_of(source: BaseSource) -> Score | None:
    """Which of a source's documents stay, by their scores; None where all do."""
    return source.score if isinstance(source, TextSource | HuggingFaceSource) else None


def score_words(source: BaseSource) -> str:
    """` (score from 3, below 4)`; nothing where all documents stay."""
    score = score_of(source)
    if score is None:
        return ""
    ends = {"from": score.at_least, "below": score.below}
    return f" ({score.column} {', '.join(f'{word} {end:g}' for word, end in ends.items() if end is not None)})"


QUIZZES = ("choices", "answers")  # questions of one's own, in files
FILES = ("jsonl", *QUIZZES)  # that are called by their file
TASKS = ("smoltalk", "mmlu", "gsm8k", "arc", "jsonl", "spelling", "counting", *QUIZZES)
SCORED = ("mmlu", "gsm8k", "arc", "spelling", "counting", "needle", *QUIZZES)  # that have right answers
GENERATED = ("spelling", "counting")  # made up from a seed and a list of words
