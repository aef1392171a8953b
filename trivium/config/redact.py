"""Credentials in addresses -> `***`: they are used, and neither kept, shown nor sent to trackers."""

import re
from typing import Any

HIDDEN = "***"
USER = re.compile(r"(?<=://)[^/@\s]+(?=@)")
SECRET = re.compile(
    r"(?P<key>[?&;][\w.-]*(?:token|key|secret|signature|sig|password|passwd|credential|auth)[\w.-]*=)[^&#\s\"']+", re.I
)


def redact(text: str) -> str:
    """`https://me:secret@host/a?token=x` -> `https://***@host/a?token=***`, wherever in a text it is."""
    return SECRET.sub(rf"\g<key>{HIDDEN}", USER.sub(HIDDEN, text))


def redacted(value: Any) -> Any:
    """Plain values with every address redacted."""
    if isinstance(value, str):
        return redact(value) if "://" in value else value
    if isinstance(value, dict):
        return {key: redacted(inner) for key, inner in value.items()}
    return [redacted(inner) for inner in value] if isinstance(value, list | tuple) else value


def is_redacted(text: str) -> bool:
    """Whether an address is one that was kept without its credentials."""
    return f"://{HIDDEN}@" in text or re.search(rf"[?&;][\w.-]+={re.escape(HIDDEN)}", text) is not None
