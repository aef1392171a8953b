"""The peak of GPUs and TPUs, against which model FLOP/s are held. A CPU has none that it keeps beside other work."""

# Dense bfloat16 (or float16) FLOP/s as the makers state them, by a part of the device's name.
ACCELERATORS = {
    "GB200": 2.5e15,
    "B200": 2.25e15,
    "H200": 989e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40": 181e12,
    "A10": 125e12,
    "V100": 125e12,
    "RTX 5090": 209e12,
    "RTX 4090": 165e12,
    "RTX 3090": 71e12,
    "MI355X": 2.5e15,
    "MI300X": 1307e12,
    "MI250X": 383e12,
    "TPU v6 lite": 918e12,
    "TPU v5 lite": 197e12,
    "TPU v5": 459e12,
    "TPU v4": 275e12,
}


def peak_of(name: str) -> float | None:
    """The peak of an accelerator by its name; None where it is not in the table."""
    return next((peak for part, peak in ACCELERATORS.items() if part in name), None)
