"""Steps of a plan as a Grain dataset: by number, in worker processes, resumed."""

from pathlib import Path

import grain
import pytest
from absl import flags

from tests.support.loops import hash_rows, row_hashes, three_stages
from trivium.adapters.grain import grain_dataset
from trivium.errors import PlanError


def test_a_dataset_resumes_by_grains_own_state_on_another_number_of_processes(folder: Path) -> None:
    plan = three_stages()
    batches = iter(grain_dataset(plan).to_iter_dataset())
    read = [hash_rows(next(batches)["inputs"]) for _ in range(7)]
    assert read == row_hashes(plan)[:7]
    halves = []
    for rank in range(2):
        half = iter(grain_dataset(plan, rank, 2).to_iter_dataset())
        half.set_state(batches.get_state())
        halves.append([hash_rows(each["inputs"]) for each in half])
    assert [first + second for first, second in zip(*halves, strict=True)] == row_hashes(plan)[7:]


@pytest.mark.slow
def test_a_worker_process_reads_the_same_steps(folder: Path) -> None:
    plan = three_stages()
    flags.FLAGS.mark_as_parsed()  # Grain's workers read flags, as of a program that absl.app.run starts
    options = grain.multiprocessing.MultiprocessingOptions(num_workers=1)
    batches = iter(grain_dataset(plan, form="plain").to_iter_dataset().mp_prefetch(options))
    assert [hash_rows(each["tokens"]) for each in batches] == row_hashes(plan)


def test_slices_are_datasets_of_their_steps(folder: Path) -> None:
    plan = three_stages()
    assert [hash_rows(each["inputs"]) for each in grain_dataset(plan)[5:9]] == row_hashes(plan)[5:9]


def test_what_a_loop_over_batches_cannot_do_is_refused(folder: Path) -> None:
    plan = three_stages("stages.two.rope.theta=50_000")
    with pytest.raises(PlanError, match=r"stages\[1\]\.rope: a loop over a Grain dataset cannot change"):
        grain_dataset(plan)
    assert len(grain_dataset(plan, can=("rope",))) == 13
