"""An environment with torchtitan 0.3 beside ours: a venv whose packages come before those of the one that runs this.

torchtitan 0.3 asks for an older `datasets`, and for Triton, which our own environment does without; its older versions
read the TOML that ours is tested with. So it has a folder of its own, made once and again when the list below changes:

    python -m tests.support.titan_env
"""

import fcntl
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".venv-torchtitan"
PACKAGES = (  # without what they depend on, which our own environment has
    "datasets==4.7.0",
    "spmd-types==0.2.3",
    "torch-checkpointing==0.1.1",
    "torchtitan==0.3.0",
    "triton==3.6.0",
)


def stamp() -> str:
    """What the environment was made of: another Python or list makes it again."""
    return "\n".join([sys.version, sysconfig.get_paths()["purelib"], *PACKAGES])


def make() -> str | None:
    """The environment, where it is not there yet; gives what went wrong."""
    FOLDER.mkdir(exist_ok=True)
    ready = FOLDER / ".ready"
    with open(FOLDER / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if ready.exists() and ready.read_text() == stamp():
            return None
        ready.unlink(missing_ok=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", FOLDER / "venv"], check=True)
        own = next((FOLDER / "venv" / "lib").glob("python*/site-packages"))
        # Packages of its own are found first; then those of this environment, with what is installed as editable.
        line = f"import site; site.addsitedir({sysconfig.get_paths()['purelib']!r})\n"
        (own / "zz_ours.pth").write_text(line)
        pip = [sys.executable, "-m", "pip", "--python", str(FOLDER / "venv" / "bin" / "python"), "install", "--quiet"]
        done = subprocess.run(
            [*pip, "--disable-pip-version-check", "--no-deps", *PACKAGES], capture_output=True, text=True, check=False
        )
        if done.returncode:
            return done.stderr.strip().splitlines()[-1]
        ready.write_text(stamp())
    return None


def titan_python() -> Path:
    """Its Python; where it cannot be made the tests are skipped, but for CI, where they fail."""
    problem = make()
    if problem is not None:
        what = f"no torchtitan 0.3 is here: {problem}"
        if os.environ.get("TRIVIUM_NEEDS_TORCHTITAN"):
            pytest.fail(what)
        pytest.skip(what)
    return FOLDER / "venv" / "bin" / "python"


def main() -> None:
    """For `make torchtitan`: says what it does, and never fails."""
    if not (FOLDER / ".ready").exists():
        print("== torchtitan 0.3, for the tests of its adapter", flush=True)  # noqa: T201
    if problem := make():
        print(f"== no torchtitan 0.3: the tests of its adapter are skipped. {problem}")  # noqa: T201


if __name__ == "__main__":
    main()
