"""What launchers say of a process' place."""

import pytest

from trivium.engine.jax.ranks import Place

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
MASTER = {"MASTER_ADDR": "node7", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ({}, None),
        ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"}, None),  # a batch script, not a step
        (
            {"JAX_COORDINATOR_ADDRESS": "node7:1234", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "1"},
            Place("node7:1234", 2, 1),
        ),
        ({**TORCHRUN, **MASTER}, Place("node7:29500", 4, 3, (1,))),
        ({**TORCHRUN, **MASTER, "TORCHELASTIC_USE_AGENT_STORE": "True"}, Place("node7:29501", 4, 3, (1,))),
        ({**TORCHRUN, **MASTER, "LOCAL_WORLD_SIZE": "1"}, Place("node7:29500", 4, 3)),
        ({"SLURM_STEP_NUM_TASKS": "8", "SLURM_PROCID": "5"}, Place(None, 8, 5)),
        ({"TPU_WORKER_HOSTNAMES": "a,b"}, Place()),
        ({"TPU_WORKER_HOSTNAMES": "a"}, None),
    ],
)
def test_a_launcher_says_where_a_process_is(environment: dict[str, str], place: Place | None) -> None:
    assert Place.of(environment) == place
