"""What all tests have: a cache folder of their own, one thread, Ctrl-C for what they start, no deadline in Hypothesis.

A kernel's first call compiles, which no deadline allows for. Hypothesis tries the same examples in every run, so that a
run of the tests says something about the code and not about chance: `--hypothesis-profile random` (`make fuzz`) looks
for new ones, and `fast` tries fewer, where a test does not say how many it wants.
"""

import gc
import os
import signal
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from playwright.sync_api import Browser

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell sets this for all that it starts in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)
# For the tests and all that they start: small models need no more, and `-n auto` has a process on every core.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# JAX compiles in half the time, to slower code with the same meaning.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
MOST_MAPPED_REGIONS = 20_000
settings.register_profile("trivium", deadline=None, print_blob=True, derandomize=True)
settings.register_profile("random", settings.get_profile("trivium"), derandomize=False)
settings.register_profile("fast", settings.get_profile("trivium"), max_examples=20)
settings.load_profile("trivium")


@pytest.fixture(scope="session", autouse=True)
def session_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Fixtures of a module or a session share a cache folder that goes away, never the user's own."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TRIVIUM_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="session", autouse=True)
def no_lines_of_progress() -> Iterator[None]:
    """What takes long on a busy machine prints no line about it among those that a test expects."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("trivium.screen._OnItsOwn.LINE_SECONDS", 1e6)
        yield


@pytest.fixture(scope="session")
def all_caches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """New folders within one; pytest's own would look at all that there are, for every test."""
    folder = tmp_path_factory.mktemp("caches")
    return (folder / str(number) for number in count())


@pytest.fixture(autouse=True)
def own_cache(all_caches: Iterator[Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """What is computed from files goes to a folder that goes away."""
    folder = next(all_caches)
    folder.mkdir()
    monkeypatch.setenv("TRIVIUM_CACHE", str(folder))
    return folder


@pytest.fixture(autouse=True)
def few_compiled_programs() -> Iterator[None]:
    """Let go of what JAX has compiled before the process has as many mapped regions as Linux allows (65,530).

    Every compiled program has some, and a compilation that gets no more of them ends the process.
    """
    yield
    if "trivium.engine.jax.step" in sys.modules and _mapped_regions() > MOST_MAPPED_REGIONS:
        import jax

        from trivium.engine.jax.step import program

        program.cache_clear()
        jax.clear_caches()  # type: ignore[no-untyped-call]
        gc.collect()


def _mapped_regions() -> int:
    maps = Path("/proc/self/maps")
    return maps.read_bytes().count(b"\n") if maps.exists() else 0


@pytest.fixture(scope="session")
def browser() -> "Iterator[Browser]":
    """One for all tests of a process: Playwright allows no second."""
    from tests.support.browser import system_browser

    with system_browser() as browser:
        yield browser
