"""A process that measures: a rank and its steps come in, each step's peak goes out as a line of JSON."""

import json
import logging
import sys
import warnings
from typing import BinaryIO, TextIO

from trivium.engine.memory import Measured
from trivium.engine.torch.measure.fake import fake_rank
from trivium.engine.torch.measure.step import peak_parts


def serve(requests: BinaryIO, answers: TextIO) -> None:
    """Measure every step; what cannot be measured ends the process, its reason last on stderr."""
    rank, plain = json.load(requests)
    steps = [Measured.from_plain(each) for each in plain]
    with fake_rank(rank, steps[0].settings.mesh.size):
        for step in steps:
            answers.write(json.dumps(dict(peak_parts(step))) + "\n")
            answers.flush()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable()
    answers, sys.stdout = sys.stdout, sys.stderr  # nothing that torch prints gets between the answers
    serve(sys.stdin.buffer, answers)
