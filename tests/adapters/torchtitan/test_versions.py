"""Which torchtitan is built upon, and what is said where it is another or none."""

import subprocess
import sys
from importlib.metadata import PackageNotFoundError

import pytest

from trivium.adapters.torchtitan.versions import refuse_others
from trivium.errors import UsageError


@pytest.mark.parametrize("version", ["0.2.2", "0.4.0"])
def test_another_torchtitan_is_refused(version: str) -> None:
    with pytest.raises(UsageError) as caught:
        refuse_others(lambda _: version)
    assert str(caught.value) == (
        f'torchtitan is {version}, and stages need 0.3. Write: pip install "trivium[torchtitan]"'
    )


def test_none_is_refused() -> None:
    def found(_: str) -> str:
        raise PackageNotFoundError

    with pytest.raises(UsageError) as caught:
        refuse_others(found)
    assert str(caught.value) == 'torchtitan is not installed. Write: pip install "trivium[torchtitan]"'
    refuse_others(lambda _: "0.3.0")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            [],
            (
                "no config is given. Write: torchrun --nproc_per_node 8 -m trivium.adapters.torchtitan run.toml "
                "--module llama3 --config llama3_8b"
            ),
        ),
        (
            ["run.toml", "--module", "llama3"],
            'torchtitan is 0.2.2, and stages need 0.3. Write: pip install "trivium[torchtitan]"',
        ),
    ],
)
def test_a_mistake_is_one_message_and_the_code_2(arguments: list[str], message: str) -> None:
    command = [sys.executable, "-m", "trivium.adapters.torchtitan", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"{message}\n")
