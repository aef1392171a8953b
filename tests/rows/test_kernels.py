"""numba comes with the first call of a kernel, and stays out of the way of what calls none."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.corpus import write_source
from trivium.rows.kernels import _Kernel, address_of, array_at, compiled, formula, kernel_of


@formula
def _doubled(number: int) -> int:
    return 2 * number


@compiled
def _sum_doubled(numbers: NDArray[np.int64]) -> int:
    total = 0
    for number in numbers:
        total += _doubled(number)
    return total


@compiled
def _read_back(address: int, length: int) -> NDArray[np.uint16]:
    return array_at(address, (length,), np.uint16).copy()


@compiled
def _asked_by_many_at_once(number: int) -> int:
    return number + 1


def test_the_dispatcher_takes_the_kernels_place_when_it_is_called() -> None:
    before = _sum_doubled
    assert isinstance(before, _Kernel)
    assert _sum_doubled(np.arange(4)) == 12
    assert type(_sum_doubled).__name__ == "CPUDispatcher"
    assert before(np.arange(4)) == 12  # as a module that imported it by name has it
    assert before.dispatcher is _sum_doubled


def test_a_formula_is_plain_python_outside_of_kernels() -> None:
    assert _doubled(2**70) == 2**71
    assert np.array_equal(_doubled(np.arange(3)), [0, 2, 4])  # type: ignore[arg-type]


def test_python_may_ask_for_a_formulas_kernel() -> None:
    assert kernel_of(_doubled)(21) == 42
    assert type(kernel_of(_doubled)).__name__ == "CPUDispatcher"


def test_an_address_is_the_array_again() -> None:
    numbers = np.array([3, 1, 65535], np.uint16)
    assert _read_back(address_of(numbers), 3).tolist() == [3, 1, 65535]
    with pytest.raises(AssertionError, match="contiguous"):
        address_of(numbers[::2])


def test_threads_that_call_first_at_once_share_one_dispatcher() -> None:
    kernel = _asked_by_many_at_once
    assert isinstance(kernel, _Kernel)
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: id(kernel.dispatcher), range(64)))
    assert len(found) == 1


def test_a_plan_that_was_made_before_does_not_import_numba(tmp_path: Path) -> None:
    write_source(tmp_path / "web", [[30, 50, 20] * 10])
    write_source(tmp_path / "code", [[40] * 20])
    tables = [f'sources.{name} = {{ kind = "tokens", path = "{tmp_path / name}" }}' for name in ("web", "code")]
    stages = [
        '[[stages]]\nname = "first"\nsteps = 5\nmixture = { web = 0.7, code = 0.3 }',
        '[[stages]]\nname = "second"\nepochs = 2\nmixture = { code = 1 }\nfade = { steps = 2, shape = "cosine" }',
    ]
    head = 'run.name = "light"\nmodel.size = "tiny"\ndefaults = { seq_len = 32, batch_size = 4 }'
    (tmp_path / "light.toml").write_text("\n".join([head, *tables, *stages]))
    script = (
        "import sys\nfrom trivium.config.load import load_config\nfrom trivium.plan.make import make_plan\n"
        "imported = 'numba' in sys.modules\nplan = make_plan(load_config('light.toml'))\n"
        "print(imported, 'numba' in sys.modules, plan.stages[-1].steps)"
    )
    runs = [
        subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True) for _ in range(2)
    ]
    first, again = (run.stdout.split() or [run.stderr] for run in runs)
    assert first[:2] == ["False", "True"]
    assert again == ["False", "False", first[2]]


def test_the_first_use_on_a_machine_says_that_kernels_are_compiled(tmp_path: Path) -> None:
    code = "import numpy as np; from trivium.rows.gather import _count_up; _count_up(np.zeros(3, np.int32))"
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    first, second = (
        subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        for _ in range(2)
    )
    assert "compiling kernels for this machine" in first.stderr
    assert second.stderr == ""
