"""Devices by number and name, by numbers alone, or both."""

import pytest

from trivium.engine.devices import GIB, Device, device_named
from trivium.errors import UsageError
from trivium.forecast.machine import Machine, make_machine


def test_a_number_and_a_name() -> None:
    assert make_machine("64xH100", None, None, None) == Machine(64, device_named("H100"))
    assert make_machine("8 x a100-80gb", None, None, None) == Machine(8, device_named("A100-80GB"))
    assert make_machine("H200", None, None, None) == Machine(1, device_named("H200"))
    assert make_machine(None, None, None, None) is None


def test_a_device_that_is_described() -> None:
    found = make_machine("16", "80GB", "989T", 2.5)
    assert found == Machine(16, Device("device", 80 * 10**9, 989e12, 2.5))
    assert make_machine(None, "24GiB", "0.5 PFLOP/s", None) == Machine(1, Device("device", 24 * GIB, 0.5e15))


def test_what_is_given_comes_before_what_is_known() -> None:
    found = make_machine("2xH100", "60GB", None, 1.25)
    assert found is not None
    assert (found.device.memory, found.device.price, found.device.flops) == (60 * 10**9, 1.25, 989.5e12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("0xH100", None, None, None),
            '--on: "0xH100" is not a number of devices and their name. Write it as 64x',
        ),
        (("x", "1GB", "1T", None), '--on: "x" is not a device that is known here.'),
        (("64", None, None, None), "--on: names no device. Write 64xH100, or describe it: --memory 80GB --flops 989T."),
        (("64xH100", "much", None, None), '--memory: "much" is not an amount. Write it as 80GB.'),
        (("64xH100", None, "0T", None), '--flops: "0T" is not an amount. Write it as 989T.'),
        ((None, None, None, 2.0), "--price is for an hour of a device. Say which: --on 64xH100."),
    ],
)
def test_what_describes_no_device_is_refused(
    options: tuple[str | None, str | None, str | None, float | None], message: str
) -> None:
    with pytest.raises(UsageError) as error:
        make_machine(*options)
    assert str(error.value).startswith(message)
