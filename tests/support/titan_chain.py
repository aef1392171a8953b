"""Several launches of torchtitan in one process of each rank, as if each had its own: its imports take seconds.

python -m tests.support.titan_chain '[["folder", port, ["run.toml", "--module", ...]], ...]'
"""

import json
import os
import sys

from trivium.adapters.torchtitan.__main__ import main

if __name__ == "__main__":
    for folder, port, arguments in json.loads(sys.argv[1]):
        os.chdir(folder)
        os.environ["MASTER_PORT"] = str(port)
        main(arguments)
