"""Packages that report what they cannot use here, and nobody asked for -> silence below errors."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def hushed(*names: str) -> Iterator[None]:
    """Inside, these loggers report errors alone."""
    loggers = [logging.getLogger(name) for name in names]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
