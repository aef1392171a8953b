"""Files of text -> their documents, one after the other, in this process; what holds none is counted.

They are read as `prepare` reads them, for what needs the text itself: training a tokenizer.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from trivium.textfiles.bad_lines import MOST_BAD, BadLines, too_many
from trivium.textfiles.inputs import InputFile, whole_part
from trivium.textfiles.read import InputLine, read_part, texts_of


@dataclass(slots=True)
class TextDocuments:
    """The documents of some files; once they are read, which lines were skipped."""

    title: str
    files: tuple[InputFile, ...]
    column: str = "text"
    most_bad: float = MOST_BAD
    lines: int = 0
    bad: BadLines = field(default_factory=BadLines)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    def read(self, report: Callable[[int], None]) -> Iterator[str]:
        """Every document, reporting the bytes read; SourceError at the end where too many lines hold none."""
        for file in self.files:
            part, unread = whole_part(file), file.size
            for found in read_part(part, self.column):
                texts = texts_of(found, self.column)
                self.lines += len(texts) + len(found.bad)
                for number, reason in found.bad:
                    self.bad.add(reason, InputLine(part.name, number, part.path, part.reader, part.start))
                read = min(unread, found.input_bytes)  # Parquet counts bytes in memory
                unread -= read
                report(read)
                yield from texts.values()
            report(unread)
        if self.bad.harmful > self.most_bad * self.lines:
            raise too_many(self.bad, self.lines, self.most_bad, self.title)
