"""OLMo-core's Trainer by a plan, in an environment of its own: rows, losses, learning rates, resume, two ranks."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.loops import own_losses, row_hashes, three_stages, write_tiny_llama
from tests.support.olmo_env import olmo_packages

ROOT = Path(__file__).parents[2]
JOINED = tuple(f"stages.{stage}.document_mask=false" for stage in ("one", "two"))


@pytest.mark.slow
def test_olmo_cores_trainer_reads_and_learns_what_ours_does_and_resumes_exactly(folder: Path) -> None:
    write_tiny_llama(folder / "base")
    path = os.pathsep.join([str(olmo_packages()), str(ROOT)])
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.adapters.olmo_run"],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    found = json.loads(ran.stdout.splitlines()[-1])
    plan = three_stages(*JOINED)
    assert list(found["rows"].values()) == row_hashes(plan)
    assert list(found["losses"].values()) == pytest.approx(own_losses(*JOINED), abs=1e-5)
    assert list(found["rates"].values()) == pytest.approx([plan.settings_at(step).lr["rest"] for step in range(13)])
    assert found["again"] == {step: loss for step, loss in found["losses"].items() if int(step) > 7}
    assert found["two_ranks"] == row_hashes(plan)[7:]
    lengths, longest, mock = found["documents"]
    assert lengths == [16] * 8
    assert max(longest) <= 16
    assert mock == [8, 16]
    epochs, sizes, past, z_loss = found["refusals"]
    assert epochs == "the plan ends after 13 steps. Write max_duration = Duration.steps(13)."
    assert sizes.startswith("global_batch_size: cannot become 64 tokens: the plan has the size of every step.")
    assert past.startswith("cannot resume at step 7: ")
    assert z_loss.startswith("stages[1].z_loss: OLMo-core's Trainer computes its own loss.")
