"""A few cases of every target, always the same ones; `make fuzz` reads many more."""

import pytest

from tests.fuzz.run import run_all
from tests.fuzz.targets import TARGETS

FEW = {"checkpoints": 12, "runs": 20, "dialects": 30}
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", TARGETS)
def test_no_input_ends_in_a_traceback_a_hang_or_a_signal(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    failed = run_all([name], FEW.get(name, 60), 0)
    assert failed == 0, capfd.readouterr().out
