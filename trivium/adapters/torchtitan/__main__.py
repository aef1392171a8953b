"""`torchrun ... -m trivium.adapters.torchtitan run.toml [KEY=VALUE ...] --module llama3 --config llama3_8b ...`.

The config and its overrides come first, as in `trivium train`; everything from the first option on is torchtitan's own,
of which `--stages.until STAGE` or a step ends this launch before that.
"""

import os
import sys
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from trivium.adapters.torchtitan import versions
from trivium.engine.ranks import end_process
from trivium.errors import ProblemsError, ResumeError, SilentRankError, TriviumError, UsageError, exit_code
from trivium.screen import echo_line

USAGE = "torchrun --nproc_per_node 8 -m trivium.adapters.torchtitan run.toml --module llama3 --config llama3_8b"


def main(arguments: Sequence[str]) -> None:
    """Train a run with torchtitan; a user's mistake is one message of rank 0, and the exit code is 2."""
    try:
        train(arguments)
    except TriviumError as error:
        if speaks(error):
            for message in error.problems if isinstance(error, ProblemsError) else (error,):
                echo_line(message, err=True)
        end_process(exit_code(error))


def speaks(error: TriviumError) -> bool:
    """Whether this rank reports an error: rank 0, and of what a rank alone may meet, that one."""
    if isinstance(error, SilentRankError):
        return False
    is_shared = isinstance(error, ProblemsError | ResumeError | UsageError)  # all ranks find the same
    return not is_shared or os.environ.get("RANK", "0") == "0"


def train(arguments: Sequence[str]) -> None:
    """Make torchtitan's config, build its trainer and train to the end."""
    ours = list(takewhile(lambda each: not each.startswith("-"), arguments))
    theirs = list(arguments[len(ours) :])
    if not ours:
        raise UsageError(f"no config is given. Write: {USAGE}")
    versions.prepare()
    import torch
    from torchtitan.observability import structured_logger
    from torchtitan.tools.logging import init_logger

    init_logger()
    config = parsed(theirs, ours[0], ours[1:])
    structured_logger.init_structured_logger(
        source="training", output_dir=config.dump_folder, enable=config.debug.enable_structured_logging
    )
    trainer = None
    try:
        trainer = config.build()
        trainer.train()
    finally:
        if trainer is not None:
            trainer.close()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def parsed(arguments: Sequence[str], path: str, overrides: Sequence[str]) -> Any:
    """What torchtitan's `--module`, `--config` and other options give, with our stages."""
    from torchtitan.config import ConfigManager

    from trivium.adapters.torchtitan.trainer import staged

    class StagedConfigManager(ConfigManager):
        """torchtitan's, whose config function is given stages before its options are read."""

        def _load_config(self, args: list[str]) -> tuple[Any, list[str]]:
            config, rest = super()._load_config(args)
            return staged(config, path, overrides), rest

    return StagedConfigManager().parse_args(list(arguments))


if __name__ == "__main__":
    main(sys.argv[1:])
