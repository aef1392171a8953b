"""Sound input -> input as an accident or a stranger would leave it: bytes that are flipped, values that are odd."""

import copy
import json
import random
from pathlib import Path
from typing import Any

ODD_BYTES = [b"\0", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\xef\xbb\xbf", b"\n", b'"', b"{", b"[" * 200, b"9" * 50]
ODD_VALUES: list[Any] = [
    None,
    True,
    0,
    -1,
    1,
    2**31,
    2**63,
    -(2**63),
    10**30,
    0.5,
    -0.0,
    1e308,
    float("inf"),
    float("nan"),
    "",
    "x",
    "1B",
    "../x",
    "/dev/null",
    "~",
    "a\0b",
    "\x1b[2J",
    "\ud800",
    "é" * 300,
    "[/bold]",
    [],
    [[]],
    [1, "a", None],
    {},
    {"a": 1},
    {"kind": "stream"},
]


def flip_bytes(content: bytes, rng: random.Random) -> bytes:
    """Truncated, doubled, or with some bytes changed."""
    out = bytearray(content)
    for _ in range(rng.choice([1, 1, 1, 2, 5, 20])):
        at = rng.randrange(len(out) + 1)
        match rng.randrange(7):
            case 0:
                del out[at:]
            case 1:
                out[at:at] = rng.choice(ODD_BYTES)
            case 2:
                del out[at : at + rng.choice([1, 2, 8, 100])]
            case 3:
                out[at:at] = out[max(0, at - rng.choice([1, 8, 64])) : at]
            case 4:
                out[at : at + 8] = rng.randbytes(8)
            case _:
                if at < len(out):
                    out[at] ^= 1 << rng.randrange(8)
    return bytes(out)


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    below: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        below = list(value.items())
    elif isinstance(value, list):
        below = list(enumerate(value[:50]))
    return [path, *(place for key, inner in below for place in _places(inner, (*path, key)))]


def change_values(value: Any, rng: random.Random) -> Any:
    """Plain values of which some are odd, missing, renamed or in the place of others."""
    out = copy.deepcopy(value)
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        places = [place for place in _places(out) if place]
        if not places:
            return rng.choice(ODD_VALUES)
        *above, last = rng.choice(places)
        owner = out
        for key in above:
            owner = owner[key]
        match rng.randrange(6):
            case 0:
                del owner[last]
            case 1 if isinstance(owner, dict):
                owner[rng.choice(["", "x", "é", "a.b", "__class__"])] = owner.pop(last)
            case 2:
                other = out
                for key in rng.choice(places):
                    other = other[key]
                owner[last] = copy.deepcopy(other)
            case 3:
                for _ in range(rng.choice([3, 70])):
                    owner[last] = [owner[last]]
            case _:
                owner[last] = copy.deepcopy(rng.choice(ODD_VALUES))
    return out


def change_file(path: Path, rng: random.Random) -> None:
    """Change one file: JSON by its values, half of the time, and anything by its bytes; or it is gone, or a pipe."""
    content = path.read_bytes()
    if rng.random() < 0.03:
        path.unlink()
        return
    if path.suffix in (".json", ".jsonl") and rng.random() < 0.6:
        lines = [line for line in content.splitlines() if line.startswith((b"{", b"[")) and line.endswith((b"}", b"]"))]
        lines = lines if len(lines) > 1 or path.suffix == ".jsonl" else [content]  # lines, or one value over many
        at = rng.randrange(len(lines))
        changed = json.dumps(change_values(json.loads(lines[at]), rng), ensure_ascii=rng.random() < 0.9)
        lines[at] = changed.encode(errors="surrogatepass")
        path.write_bytes(b"\n".join(lines))
        return
    path.write_bytes(flip_bytes(content, rng))
