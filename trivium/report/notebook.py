"""A run's files -> its page inside a notebook: an object that shows itself, and writes nothing unless it is asked."""

from html import escape
from pathlib import Path

from trivium.errors import UsageError
from trivium.files import draft
from trivium.report.page import page_data, page_html
from trivium.report.read import RunFiles
from trivium.report.run import shown_runs

# The page's scripts run in a frame of their own, which sees nothing of the notebook; charts may be saved.
FRAME = (
    '<iframe title="{title}" srcdoc="{page}" sandbox="allow-scripts allow-downloads" '
    'style="width: 100%; height: {height}px; border: 1px solid #ccc; border-radius: 6px"></iframe>'
)


class ShownReport:
    """The page of runs, as they were when it was made."""

    def __init__(self, page: str, title: str, height: int) -> None:
        self.page, self.title, self.height = page, title, height

    def __repr__(self) -> str:
        return f"<report of {self.title}; write(path) keeps it as a file>"

    def _repr_html_(self) -> str:
        return FRAME.format(title=escape(self.title), page=escape(self.page), height=self.height)

    def write(self, path: str | Path) -> Path:
        """Write the page to a file."""
        with draft(Path(path)) as file:
            file.write(self.page.encode())
        return Path(path)


def report(*runs: str | Path, height: int = 640) -> ShownReport:
    """The page of one or several runs, for a notebook: `trivium.report("runs/base", "runs/other")`."""
    if not runs:
        raise UsageError('report: no run is given. Write trivium.report("runs/small").')
    shown = shown_runs([RunFiles(Path(run)) for run in runs])
    return ShownReport(page_html(page_data(shown)), ", ".join(run.label for run in shown), int(height))
