"""Where the events of a launch go: the file, what is shown (`screens/`), the trackers (`trackers/`)."""

from collections.abc import Callable

from trivium.run.events import Event, Sink


class Sinks:
    """All sinks of a launch; none on ranks other than the first. Whatever is written is progress."""

    def __init__(self, beat: Callable[[], None]) -> None:
        self._beat = beat
        self._sinks: list[Sink] = []

    def add(self, *sinks: Sink) -> None:
        self._sinks += sinks

    def write(self, event: Event) -> None:
        self._beat()
        for sink in self._sinks:
            sink.write(event)

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()
        self._sinks = []
