"""Scripts that users run and that are in no package, as modules."""

import importlib.util
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]


def load_script(*path: str) -> ModuleType:
    """A script of the repository, such as ("examples", "make_data.py")."""
    file = ROOT.joinpath(*path)
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make_data() -> ModuleType:
    """What writes the data of the examples."""
    return load_script("examples", "make_data.py")
