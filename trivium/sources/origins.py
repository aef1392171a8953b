"""A prepared document -> where it came from, as the user knows it: `data/web.jsonl line 17`."""

from dataclasses import dataclass, field
from pathlib import Path

from trivium.config.sources import ChatSource, Source
from trivium.prepare.origins import ENDING, Origins, read_origins
from trivium.textfiles.inputs import InputFile, list_inputs
from trivium.textfiles.read import InputLine, lines_before, read_raw_lines


@dataclass(slots=True)
class DocumentOrigins:
    """Finds the files and lines of a source's documents; looks at nothing before it is asked.

    A line of a large file is counted from the start of the file, once for every place at which the file was cut.
    """

    source: Source
    folder: Path  # of the token files
    _kept: dict[str, Origins | None] = field(default_factory=dict)
    _files: dict[str, InputFile] | None = None
    _before: dict[tuple[str, int], int] = field(default_factory=dict)

    def place_of(self, token_file: str, number: int) -> str | None:
        """The place of a token file's document; None where prepare has not kept it."""
        if token_file not in self._kept:
            self._kept[token_file] = read_origins(self.folder / f"{Path(token_file).stem}{ENDING}")
        origins = self._kept[token_file]
        if origins is None or number >= origins.documents:
            return None
        line = origins.line_of(number)
        if line.reader == "rows":
            return str(line)
        if self._files is None:
            paths = getattr(self.source, "path", None)
            self._files = {file.name: file for file in (list_inputs(paths) if paths else ())}
        if line.name in self._files:
            return str(self._in_file(line, self._files[line.name]))
        if isinstance(self.source, ChatSource) and self.source.task is None and self.source.tasks is None:
            return self._in_all_files(line.line, list(self._files.values()))
        return f"{line.name}, conversation {line.line:,}"

    def _in_file(self, line: InputLine, file: InputFile) -> InputLine:
        cut = (line.name, line.start)
        if cut not in self._before:
            self._before[cut] = lines_before(file.path, line.reader, line.start)
        return line._replace(name=str(file.path), line=self._before[cut] + line.line, start=0)

    def _in_all_files(self, number: int, files: list[InputFile]) -> str | None:
        """The place of a line that is counted over all files, as `start` and `stop` count them."""
        for file in files:
            if number <= (count := self._count(file)):
                return f"{file.path} line {number:,}"
            number -= count
        return None

    def _count(self, file: InputFile) -> int:
        cut = (file.name, -1)  # the end
        if cut not in self._before:
            self._before[cut] = sum(1 for _ in read_raw_lines(file.path))
        return self._before[cut]
