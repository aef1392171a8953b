"""A Hugging Face dataset read as a stream, in lanes: which lane reads what, and from where on.

The dataset comes in files (its shards). With at least one file for each lane, lane i reads files i, i + lanes,
and so on. With fewer, lane i reads file i mod files, and of that every nth example, where n lanes share it: the
file is then fetched n times. A lane's position is one of its files and the number of an example in it, two integers;
to resume there, the file is read from its start and the examples before the position are skipped.
"""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from trivium.config.schema import Tokenizer as TokenizerConfig
from trivium.config.sources import StreamSource
from trivium.errors import SourceError, StoppedError
from trivium.sources.stream.prefetch import Retries, described
from trivium.text.fim import find_fim
from trivium.text.tokenizer import Tokenizer, added_tokens

CHUNK_EXAMPLES = 256  # fetched and tokenised at a time
BUILDERS = {".jsonl": "json", ".json": "json", ".parquet": "parquet", ".txt": "text", ".csv": "csv", ".arrow": "arrow"}
COMPRESSED = (".gz", ".zst", ".bz2", ".xz")
LOOK_SECONDS = 0.5  # between two looks at the notes of threads, and at whether to stop
WEB = ("http://", "https://")
REFUSALS = (401, 403, 404, 410)  # what a server answers where a second try would get the same


@dataclass(frozen=True, slots=True, order=True)
class LanePosition:
    """Where a lane resumes: a file of the lane, and an example of the file."""

    file: int = 0  # among those of the lane
    example: int = 0


START = LanePosition()


@dataclass(frozen=True, slots=True)
class LanePart:
    """What a lane reads: files, and of each every nth example."""

    files: tuple[int, ...]
    every: int
    first: int


@dataclass(frozen=True, slots=True)
class TextChunk:
    """Some texts of one file, those that are not empty; none where all examples were skipped."""

    texts: list[str]
    examples: list[int]
    file: int  # among those of the lane
    after: LanePosition


class StreamDataset:
    """A streaming dataset; opened when it is first asked for."""

    def __init__(
        self,
        name: str,
        source: StreamSource,
        tokenizer: Tokenizer,
        retries: Retries | None = None,
        config: TokenizerConfig | None = None,
    ) -> None:
        if find_spec("datasets") is None:  # asked here, before a run has a folder
            raise SourceError("the package datasets is not installed: pip install 'trivium[hf]'.")
        self.name = name
        self.source = source
        self.tokenizer = tokenizer
        self.retries = Retries() if retries is None else retries
        self.stopping: Callable[[], bool] = lambda: False  # whether to stop waiting
        self._builder_and_files()  # refuses a file that nothing reads
        self._around = added_tokens(tokenizer, source.add)
        self._fim = find_fim(source.fim, tokenizer, config)
        self._dtype = np.uint16 if tokenizer.vocab <= 2**16 else np.uint32
        self._dataset: Any = None
        self._lock = threading.Lock()

    @property
    def dataset(self) -> Any:
        """The `datasets` dataset; needs the remote."""
        with self._lock:  # every lane asks for it, in a thread of its own
            if self._dataset is None:
                self._dataset = self._opened()
            return self._dataset

    @property
    def num_files(self) -> int:
        """Files of the dataset, as `datasets` counts them."""
        return int(self.dataset.num_shards)

    def refuse_to_wait(self) -> None:
        """StoppedError where the run is told to stop: called while the remote is waited for."""
        if self.stopping():
            raise StoppedError(f"stopped while waiting for {self.source.where}. Start the run again.")

    def part(self, lane: int) -> LanePart:
        """What a lane reads."""
        files, lanes = self.num_files, self.source.lanes
        if files >= lanes:
            return LanePart(tuple(range(lane, files, lanes)), 1, 0)
        file = lane % files
        return LanePart((file,), len(range(file, lanes, files)), lane // files)

    def read(self, part: LanePart, start: LanePosition) -> Iterator[TextChunk]:
        """The texts of a part from a position on."""
        for file in range(start.file, len(part.files)):
            yield from self._read_file(part, file, start.example if file == start.file else 0)

    def _read_file(self, part: LanePart, file: int, start: int) -> Iterator[TextChunk]:
        shard = self.dataset.shard(self.num_files, part.files[file], contiguous=False).with_format("arrow")
        example = 0
        for table in shard.iter(batch_size=CHUNK_EXAMPLES):
            first, example = example, example + table.num_rows
            # Of examples 100 to 199, from 130 on and every 8th from 3 on: 131, 139, ...
            begin = max(start, first)
            wanted = range(begin + (part.first - begin) % part.every, example, part.every)
            texts = self._texts(table, [number - first for number in wanted])
            found = [(text, number) for text, number in zip(texts, wanted, strict=True) if text]
            after = LanePosition(file, example)
            yield TextChunk([text for text, _ in found], [number for _, number in found], file, after)

    def _texts(self, table: Any, wanted: list[int]) -> list[str | None]:
        """The column of some examples; None where an example has no text."""
        column = self.source.column
        if column not in table.column_names:
            has = ", ".join(table.column_names)
            raise SourceError(f'column: there is no column "{column}" in {self.source.where}. It has: {has}.')
        values: list[Any] = table.column(column).take(wanted).to_pylist() if wanted else []
        for value in values:
            if value is not None and not isinstance(value, str):
                kind = table.schema.field(column).type
                raise SourceError(f'column: "{column}" of {self.source.where} holds {kind}, not text. Name another.')
        return values

    def encode(self, texts: list[str]) -> list[NDArray[Any]]:
        """The tokens of each text, and the tokens added to it."""
        encode = self.tokenizer.encode
        tokens = encode(texts) if self._fim is None else self._fim.encode(texts, encode)
        before, after = self._around.before, self._around.after
        return [np.concatenate((before, each, after)).astype(self._dtype) for each in tokens]

    def _opened(self) -> Any:
        import datasets

        # The library asks again twenty times, five seconds apart, whatever the server answers: we do, and look at it.
        datasets.config.STREAMING_READ_MAX_RETRIES = 1
        datasets.config.STREAMING_READ_RETRY_INTERVAL = 0
        path, files = self._builder_and_files()
        options = {"name": self.source.subset, "split": self.source.split, "data_files": files}
        return self._tried(lambda: datasets.load_dataset(path, streaming=True, **options))

    def _builder_and_files(self) -> tuple[str, dict[str, str] | None]:
        """A name on the Hub or a folder; or, for data files, what reads them, and the files."""
        address = self.source.dataset or ""
        if "://" not in address and not Path(address).is_file():
            return address, None
        path = urlsplit(address).path if "://" in address else address
        suffixes = [suffix for suffix in Path(path).suffixes if suffix not in COMPRESSED]
        builder = BUILDERS.get(suffixes[-1] if suffixes else "")
        if builder is None:
            known = ", ".join(BUILDERS)
            raise SourceError(f"dataset: {self.source.where} is not a file that can be read. Give one of {known}.")
        return builder, {self.source.split: address}

    def _tried(self, open_it: Callable[[], Any]) -> Any:
        """What `open_it` returns; after each pause it is called again where the remote does not answer."""
        where, pauses = self.source.where, self.retries.pauses
        for failures in range(len(pauses) + 1):
            try:
                return open_it()
            except Exception as error:
                if not self._may_answer(error):
                    raise SourceError(f"dataset: {where} cannot be opened: {described(error)}") from error
                if failures == len(pauses):
                    tries = f"did not answer {failures + 1} times"
                    raise SourceError(f"dataset: {where} {tries}, the last time with {described(error)}") from error
            self._pause(pauses[failures])
        raise AssertionError("the last try returns or raises")

    def _may_answer(self, error: Exception) -> bool:
        """Whether a second try may succeed where the library failed with this."""
        address = self.source.dataset or ""
        if not address.startswith(WEB):
            return isinstance(error, OSError if "://" in address else (ConnectionError, TimeoutError))
        status = self._status("opened", error)
        return status is None or status >= 400 or isinstance(error, OSError)

    def refuse_hopeless(self, error: Exception) -> None:
        """SourceError where reading failed with this, and the file is not there any more or may not be read."""
        if (self.source.dataset or "").startswith(WEB):
            self._status("read on", error)
        elif isinstance(error, FileNotFoundError | PermissionError):
            raise SourceError(f"dataset: {self.source.where} cannot be read on: {described(error)}") from error

    def _status(self, what: str, error: Exception) -> int | None:
        """What the server answers now, None where nobody does; SourceError where it refuses.

        The library says the same of a file that does not exist and of a server that is away: the server is asked.
        """
        status = http_status(self.source.dataset or "")
        if status in REFUSALS:
            raise SourceError(f"dataset: {self.source.where} cannot be {what}: the server answers {status}.") from error
        return status

    def _pause(self, seconds: float) -> None:
        """Sleep, unless the run is told to stop."""
        while seconds > 0:
            self.refuse_to_wait()
            self.retries.sleep(min(seconds, LOOK_SECONDS))
            seconds -= LOOK_SECONDS
        self.refuse_to_wait()


def http_status(address: str) -> int | None:
    """What a server answers to a request for the first byte; None where nobody answers."""
    import fsspec
    from aiohttp import ClientError, ClientResponseError

    try:
        fsspec.filesystem("http", client_kwargs={"trust_env": True}).cat_file(address, start=0, end=1)
    except ClientResponseError as error:
        return error.status
    except FileNotFoundError:
        return 404
    except (ClientError, OSError):
        return None
    return 200
