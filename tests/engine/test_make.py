"""Settings -> engines."""

import subprocess
import sys

import pytest

from trivium.engine.base import EngineSettings
from trivium.engine.make import join_ranks, make_engine
from trivium.errors import ConfigError
from trivium.model.spec import ModelSpec

SPEC = ModelSpec(layers=1, width=64, heads=1, kv_heads=1, head_dim=64, ffn=192, vocab=256, max_seq_len=128)


@pytest.mark.parametrize(("hidden", "what"), [(("flax",), "flax is"), (("jax", "optax"), "jax, optax are")])
def test_without_its_extra_the_jax_engine_says_how_to_get_it(
    hidden: tuple[str, ...], what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in hidden:
        monkeypatch.setitem(sys.modules, package, None)
    message = f"engine.name: is \"jax\", but {what} not installed. Get the extra: pip install 'trivium[jax]'"
    for ask in (lambda: make_engine(EngineSettings(SPEC), "jax"), lambda: join_ranks("jax")):
        with pytest.raises(ConfigError) as refusal:
            ask()
        assert str(refusal.value) == message


def test_no_framework_is_imported_before_an_engine_is_made() -> None:
    code = "import sys, trivium.engine.make; sys.exit(any(name in sys.modules for name in ('torch', 'jax')))"
    subprocess.run([sys.executable, "-c", code], check=True)
