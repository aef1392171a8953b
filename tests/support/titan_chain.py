"""Several launches of torchtitan in one process of each rank, as if each had its own: its imports take seconds."""

import json
import os
import sys

from trivium.adapters.torchtitan.__main__ import main


def launch(folder: str, port: int, arguments: list[str]) -> None:
    """By our entry point, or by torchtitan's own where no config comes first."""
    os.chdir(folder)
    os.environ["MASTER_PORT"] = str(port)
    if not arguments[0].startswith("-"):
        main(arguments)
        return
    from torchtitan import train

    sys.argv[1:] = arguments
    train.main()


if __name__ == "__main__":
    for each in json.loads(sys.argv[1]):  # lists of a folder, a port, and the arguments
        launch(*each)
