"""What JAX compiles -> its number and seconds: a step that compiles each time is a mistake, and slow."""

from dataclasses import dataclass
from functools import cache
from typing import Any

from jax import monitoring

COMPILED = "/jax/core/compile/backend_compile_duration"


@dataclass(slots=True)
class Compilations:
    """Of this process, so far; what a cache on disk gives counts too."""

    count: int = 0
    seconds: float = 0.0

    def took(self, event: str, duration_secs: float, **_: Any) -> None:
        """Called by JAX for everything that it times."""
        if event == COMPILED:
            self.count += 1
            self.seconds += duration_secs


@cache
def compilations() -> Compilations:
    """The one count of this process, from its first call on."""
    found = Compilations()
    monitoring.register_event_duration_secs_listener(found.took)
    return found
