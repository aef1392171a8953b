"""`64xH100`, or a device that is described by its numbers -> the devices that a plan is held against."""

import re
from dataclasses import dataclass, replace
from math import inf

from trivium.engine.devices import Device, device_named
from trivium.errors import UsageError

MFU = 0.4  # of the peak, where nobody says otherwise
DEVICES = re.compile(r"(?:(\d{1,7})\s*[xX]?)?\s*([A-Za-z][\w-]*)?", re.ASCII)
LEAST = {"--memory": 10**8, "--flops": 10**9}  # less is a unit that was forgotten
AMOUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([kMGTP]i?)?")
SIZES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
SIZES |= {"ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}


@dataclass(frozen=True, slots=True)
class Machine:
    """Equal devices, a rank on each."""

    count: int
    device: Device


def make_machine(on: str | None, memory: str | None, flops: str | None, price: float | None) -> Machine | None:
    """What the options of a command describe: a name's figures, but for those that are given; None without any."""
    refuse_price(price)
    if on is None and memory is None and flops is None:
        if price is not None:
            raise UsageError("--price is for an hour of a device. Say which: --on 64xH100.")
        return None
    found = DEVICES.fullmatch((on or "1").strip())
    if found is None or found[1] == "0":
        raise UsageError(f'--on: "{on}" is not a number of devices and their name. Write it as 64xH100.')
    count, name = int(found[1] or 1), found[2]
    if name is None and (memory is None or flops is None):
        raise UsageError("--on: names no device. Write 64xH100, or describe it: --memory 80GB --flops 989T.")
    device = Device("device", 0, 0.0) if name is None else device_named(name)
    if memory is not None:
        device = replace(device, memory=round(_amount("--memory", memory, "B", "80GB")))
    if flops is not None:
        device = replace(device, flops=_amount("--flops", flops, "FLOP/s", "989T"))
    return Machine(count, device if price is None else replace(device, price=price))


def refuse_price(price: float | None) -> None:
    """What no device can cost."""
    if price is not None and not 0 < price < inf:
        raise UsageError(f"--price: is {price:g}. Give the dollars for an hour of a device, such as 2.5.")


def _amount(option: str, text: str, unit: str, example: str) -> float:
    """`80GB` -> 80e9, `80GiB`, `989T`, `989 TFLOP/s`."""
    found = AMOUNT.fullmatch(text.strip().removesuffix(unit))
    if found is None or not float(found[1]):
        raise UsageError(f'{option}: "{text}" is not an amount. Write it as {example}.')
    amount = float(found[1]) * SIZES[found[2] or ""]
    if amount < LEAST[option]:
        raise UsageError(f"{option}: {text} is {amount:g} {unit}, less than any device has. Write it as {example}.")
    return amount
