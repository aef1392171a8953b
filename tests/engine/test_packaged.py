"""Optimizers of installed packages, on both engines; the working folder is never one of them."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.batches import TINY, make_batch, settings_at
from trivium.engine import packaged as module
from trivium.engine.base import EngineSettings, OptimizerSettings
from trivium.engine.make import make_engine
from trivium.engine.packaged import packaged, unknown_package
from trivium.errors import ConfigError, UsageError

CODE = """
import optax, torch

class Sgd(torch.optim.SGD):
    pass

def sgd(learning_rate, momentum=0.0):
    return optax.sgd(learning_rate, momentum=momentum)

number = 3
"""
ENTRIES = """[trivium.optimizers]
torch-sgd = their_optimizers:Sgd
jax-sgd = their_optimizers:sgd
number = their_optimizers:number
gone = their_optimizers:gone
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package in a folder of packages, and a file of the same name in the working folder."""
    site, here = tmp_path / "site", tmp_path / "here"
    info = site / "their_package-1.0.dist-info"
    info.mkdir(parents=True)
    here.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRIES)
    (site / "their_optimizers.py").write_text(CODE)
    (here / "their_optimizers.py").write_text("raise SystemExit('code of the working folder')")
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys, "path", ["", *sys.path, str(site)])
    monkeypatch.setattr(module, "_folders", lambda: [str(site)])
    packaged.cache_clear()
    yield here
    packaged.cache_clear()
    sys.modules.pop("their_optimizers", None)


@pytest.mark.parametrize("engine", ["torch", "jax"])
def test_a_packages_optimizer_updates_by_our_groups_and_resumes(engine: str, installed: Path, tmp_path: Path) -> None:
    optimizer = OptimizerSettings(f"their-package:{engine}-sgd", options=(("momentum", 0.9),))
    settings = EngineSettings(TINY, optimizer, device="cpu")
    whole, first, second = (make_engine(settings, engine) for _ in range(3))
    losses = [whole.step(make_batch(), settings_at(step, lr=0.1)).loss for step in range(6)]
    assert losses[-1] < losses[0]
    for step in range(3):
        first.step(make_batch(), settings_at(step, lr=0.1))
    first.save(tmp_path / "saved").wait()
    second.load(tmp_path / "saved")
    assert [second.step(make_batch(), settings_at(step, lr=0.1)).loss for step in range(3, 6)] == losses[3:]
    still = whole.step(make_batch(), settings_at(6, lr=0.0)).loss
    assert whole.step(make_batch(), settings_at(7, lr=0.0)).loss == still


@pytest.mark.parametrize("engine", ["torch", "jax"])
def test_options_that_it_does_not_take_are_refused_by_name(engine: str, installed: Path) -> None:
    optimizer = OptimizerSettings(f"their-package:{engine}-sgd", options=(("rho", 0.9),))
    with pytest.raises(UsageError, match=rf'optimizer.name = "their-package:{engine}-sgd".*rho'):
        make_engine(EngineSettings(TINY, optimizer, device="cpu"), engine)


def test_what_is_not_installed_is_refused_with_what_is(installed: Path) -> None:
    assert unknown_package("adamw") is unknown_package("their-package:torch-sgd") is None
    told = unknown_package("their-package:soap")
    assert told is not None
    assert told.endswith(
        'registers as an entry point of "trivium.optimizers". Installed are their-package:gone, '
        "their-package:jax-sgd, their-package:number, their-package:torch-sgd."
    )
    for name, why in (("soap", "registers"), ("number", "is a int"), ("gone", "cannot be imported")):
        with pytest.raises(ConfigError, match=why):
            packaged(f"their-package:{name}")
