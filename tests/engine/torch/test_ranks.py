"""How a launch's processes are joined: limits, waits, and the record of their exchanges."""

import json
import os
import resource
import subprocess
import sys

from tests.support.scripts import ROOT

JOINED = """
import json, resource, torch
from torch import distributed as dist
from trivium.engine.torch.ranks import join, saving_group
ranks = join()
of_mesh = dist.new_group([0])
cpu = torch.device("cpu")
groups = (dist.group.WORLD, saving_group(), of_mesh)
def waits():
    return [group._get_backend(cpu).options._timeout.total_seconds() / 60 for group in groups]
ranks.gather("hello")
before = waits()
ranks.limit_waits(5.0)
exchanges = json.loads(ranks.recorded())["entries"]
print(json.dumps([resource.getrlimit(resource.RLIMIT_NOFILE), before, waits(), exchanges]))
"""


def test_a_rank_may_open_what_the_system_allows_waits_long_for_messages_and_records_its_exchanges() -> None:
    launched = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "PYTHONPATH": str(ROOT)}
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    ran = subprocess.run(
        [sys.executable, "-c", JOINED],
        env={**os.environ, **launched},
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (256, most)),
    )
    assert ran.returncode == 0, ran.stderr
    descriptors, before, limited, exchanges = json.loads(ran.stdout)
    assert descriptors == [most, most]
    assert before[:2] == [2 * 24 * 60, 2 * 60]
    assert limited == [*before[:2], 5]  # messages and saves wait as long as before
    assert {each["profiling_name"] for each in exchanges} == {"gloo:all_gather"}
