"""OLMo-core beside our packages: a folder that comes before them, made once and again when the list below changes.

Its cached-path asks for an older rich and filelock, and for clients of object stores; nothing of that is used here. So
the packages stand in a folder of their own, without what they depend on, which our own environment has.
"""

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / ".venv-olmo-core"
PACKAGES = (
    "ai2-olmo-core==3.0.0",
    "bettermap==1.3.1",
    "boto3==1.44.3",
    "botocore==1.44.3",
    "cached-path==1.8.10",
    "dataclass-extensions==0.5.0",
    "google-api-core==2.44.0",
    "google-auth==2.62.2",
    "google-cloud-core==2.8.0",
    "google-cloud-storage==3.17.1",
    "google-crc32c==1.9.0",
    "google-resumable-media==2.11.0",
    "importlib-resources==7.1.0",
    "jmespath==1.1.0",
    "proto-plus==1.29.0",
    "s3transfer==0.19.3",
)


def make() -> str | None:
    """The folder, where it is not there yet; gives what went wrong."""
    FOLDER.mkdir(exist_ok=True)
    stamp, ready = "\n".join([sys.version, *PACKAGES]), FOLDER / ".ready"
    with open(FOLDER / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if ready.exists() and ready.read_text() == stamp:
            return None
        shutil.rmtree(FOLDER / "packages", ignore_errors=True)
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command = [*pip, "--target", str(FOLDER / "packages"), *PACKAGES]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            return done.stderr.strip().splitlines()[-1]
        ready.write_text(stamp)
    return None


def olmo_packages() -> Path:
    """The folder, for PYTHONPATH; where it cannot be made tests are skipped, with TRIVIUM_NEEDS_OLMO_CORE they fail."""
    problem = make()
    if problem is not None:
        what = f"OLMo-core cannot be installed here: {problem}"
        if os.environ.get("TRIVIUM_NEEDS_OLMO_CORE"):
            pytest.fail(what)
        pytest.skip(what)
    return FOLDER / "packages"
