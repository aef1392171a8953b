"""Numbers as people write them: `2B`, `200M`, `4k` (decimal), `4Ki` (binary), `1e12` -> int, and back."""

import re
from typing import Annotated

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

DECIMAL = {"k": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
SUFFIXES = {"": 1, **DECIMAL, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
MOST_DIGITS = 40
PATTERN = re.compile(r"(\d[\d_]*)(?:\.(\d+))?\s*([A-Za-z]*)")


def parse_count(text: str) -> int:
    """`"1.5B"` -> 1,500,000,000; ValueError with the reason for anything that is not a whole number."""
    match = PATTERN.fullmatch(text.strip())
    if match is None:
        raise ValueError("is not a number")
    if len(text) > MOST_DIGITS:
        raise ValueError("has too many digits")
    whole, decimals, suffix = match.group(1).replace("_", ""), match.group(2) or "", match.group(3)
    if suffix not in SUFFIXES:
        raise ValueError(f'has the unknown ending "{suffix}" (known: {", ".join(filter(None, SUFFIXES))})')
    # In integers, so that "0.1T" is exact: 0.1 has no exact float.
    count, rest = divmod(int(whole + decimals) * SUFFIXES[suffix], int("1" + "0" * len(decimals)))
    if rest:
        raise ValueError("is not a whole number")
    return count


def show_count(count: float) -> str:
    """A count in at most four digits: 1,500,000,000 -> `1.5B`; whole numbers below 10,000 as they are."""
    if abs(count) < 10_000:
        return f"{count:,.0f}" if float(count).is_integer() else f"{count:,.1f}"
    for suffix, size in DECIMAL.items():
        scaled = count / size
        if abs(scaled) < 999.5 or suffix == "T":
            return f"{scaled:.3g}{suffix}" if abs(scaled) < 999.5 else f"{scaled:,.0f}{suffix}"
    raise AssertionError("unreachable: T takes everything")


def _read_count(value: object) -> object:
    if isinstance(value, str):
        try:
            return parse_count(value)
        except ValueError as reason:
            raise PydanticCustomError("count", "{reason}", {"reason": str(reason)}) from None
    # 1e12 is a float in TOML. Beyond 2**53 a float may not be the number that was written.
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) <= 2**53 else value


CountText = Annotated[str, Field(pattern=r"^\s*\d[\d_]*(\.\d+)?\s*(k|M|B|T|Ki|Mi|Gi|Ti)?\s*$")]

# Whole numbers that may carry an ending: from 0 on, and from 1 on.
_From0, _From1 = Field(ge=0, lt=2**63), Field(ge=1, lt=2**63)
Whole = Annotated[int, BeforeValidator(_read_count, json_schema_input_type=Annotated[int, _From0] | CountText), _From0]
Count = Annotated[int, BeforeValidator(_read_count, json_schema_input_type=Annotated[int, _From1] | CountText), _From1]
