"""The public names: all that a script, a notebook or an override needs, importable without loading a framework."""

import subprocess
import sys
from importlib.metadata import version

import pytest

import trivium
from trivium import errors

NEEDED_BY_OVERRIDES = {"StepSettings", "StepStats", "EvalStats", "OptimizerSettings", "PlannedStage", "Batch"}


def test_every_public_name_is_there() -> None:
    assert callable(trivium.report)  # a room too
    for name in set(trivium.__all__) - {"__version__", "report"}:
        assert getattr(trivium, name).__name__ == name
    assert set(trivium.__all__) >= NEEDED_BY_OVERRIDES
    assert dir(trivium) == sorted(trivium.__all__)
    assert trivium.__version__ == version("trivium")


def test_every_error_that_a_user_may_catch_is_public() -> None:
    silent = {"ProblemsError", "SilentRankError"}
    defined = {name for name, each in vars(errors).items() if isinstance(each, type) and issubclass(each, Exception)}
    assert defined - silent <= set(trivium.__all__)
    assert all(issubclass(getattr(trivium, name), trivium.TriviumError) for name in defined - silent)


def test_a_name_that_is_not_public_is_refused() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Trianer'"):
        _ = trivium.Trianer


def test_importing_the_package_loads_nothing_else() -> None:
    script = (
        "import sys, trivium; print([name for name in sys.modules if name.startswith(('trivium.', 'numpy', 'torch'))])"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"
