"""A launcher's environment -> a process among the others."""

import pytest

from trivium.engine.jax.ranks import LaunchedProcess

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
MASTER = {"MASTER_ADDR": "node7", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("environment", "process"),
    [
        ({}, None),
        ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"}, None),  # a batch script, not a step
        (
            {"JAX_COORDINATOR_ADDRESS": "node7:1234", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "1"},
            LaunchedProcess("node7:1234", 2, 1),
        ),
        ({**TORCHRUN, **MASTER}, LaunchedProcess("node7:29500", 4, 3, (1,))),
        ({**TORCHRUN, **MASTER, "TORCHELASTIC_USE_AGENT_STORE": "True"}, LaunchedProcess("node7:29501", 4, 3, (1,))),
        ({**TORCHRUN, **MASTER, "LOCAL_WORLD_SIZE": "1"}, LaunchedProcess("node7:29500", 4, 3)),
        ({"SLURM_STEP_NUM_TASKS": "8", "SLURM_PROCID": "5"}, LaunchedProcess(None, 8, 5)),
        ({"TPU_WORKER_HOSTNAMES": "a,b"}, LaunchedProcess()),
        ({"TPU_WORKER_HOSTNAMES": "a"}, None),
    ],
)
def test_the_environment_gives_where_a_process_is(environment: dict[str, str], process: LaunchedProcess | None) -> None:
    assert LaunchedProcess.of(environment) == process
