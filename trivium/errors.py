"""What trivium raises when something cannot work.

    TriviumError
      ConfigError    what the user wrote; carries every problem at once
      SourceError    what is on disk
      PlanError      what cannot be planned, or a question that a plan cannot answer
      UsageError     what was asked of a command
      ResumeError    a run that cannot continue with this config
      GuardError     a run that was ended because its steps go wrong
      SaveError      a checkpoint that had to be written and could not be
      StoppedError   a signal, while a stream was waited for
      RankError      what went wrong on another rank, or that it was stopped
        SilentRankError    the same, on a rank that leaves the message to rank 0

A message is one line: where, what is wrong with the value, the limit or reason, what to write instead.
"""

from collections.abc import Sequence
from dataclasses import dataclass

FAILED = 2  # exit codes: what a user can fix
STOPPED = 3  # a run that was asked to stop: start it again


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong: the key or file, and a sentence that ends in what to write instead."""

    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}" if self.where else self.what


class TriviumError(Exception):
    """Anything a user can fix; the command line prints it without a traceback and exits with 2."""


class ProblemsError(TriviumError):
    """An error made of problems, all of those that were found."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        assert problems, "an error needs at least one problem"
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class ConfigError(ProblemsError):
    """The config asks for something that cannot be."""


class SourceError(TriviumError):
    """A file of a source cannot be read as what it should be."""


class PlanError(ProblemsError):
    """The config is sound, but what is on disk does not allow it."""


class UsageError(TriviumError):
    """A command was asked for something that makes no sense."""


class ResumeError(TriviumError):
    """The run cannot continue with this config."""


class GuardError(TriviumError):
    """Too many steps in a row went wrong."""


class SaveError(TriviumError):
    """A checkpoint without which the run cannot continue could not be written."""


class StoppedError(TriviumError):
    """A signal asked to stop while a stream was waited for; the command line exits with 3."""


class RankError(TriviumError):
    """Another rank of this launch failed; or it stopped, where `stopped`, and the command line exits with 3."""

    def __init__(self, message: str, *, stopped: bool = False) -> None:
        super().__init__(message)
        self.stopped = stopped


class SilentRankError(RankError):
    """Ends a rank whose failure rank 0 reports: the command line prints nothing."""


def exit_code(error: TriviumError) -> int:
    """The code that a process ends with."""
    is_stop = error.stopped if isinstance(error, RankError) else isinstance(error, StoppedError)
    return STOPPED if is_stop else FAILED
