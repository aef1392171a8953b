"""Commands under Python's audit hooks, in a process of its own: what they start, open, write and unpickle, as JSON."""

import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
STARTS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "pty.spawn")


def _in_numba() -> bool:
    """Whether numba is reading what it has compiled, which it keeps beside the code."""
    frame = sys._getframe()
    while frame is not None and f"{os.sep}numba{os.sep}" not in frame.f_code.co_filename:
        frame = frame.f_back  # type: ignore[assignment]
    return frame is not None


def main(out: Path, commands: list[list[str]]) -> None:
    from trivium.cli.main import main as run_command

    seen: dict[str, set[str]] = {"written": set(), "started": set(), "unpickled": set()}

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str | bytes | os.PathLike) and (arguments[2] or 0) & WRITES:
            seen["written"].add(os.path.abspath(os.fsdecode(arguments[0])))
        elif event in ("os.rename", "os.link", "os.symlink"):
            seen["written"].add(os.path.abspath(os.fsdecode(arguments[1])))
        elif event in STARTS:
            seen["started"].add(f"{event} {arguments[1] if event == 'subprocess.Popen' else arguments[:2]}")
        elif event == "pickle.find_class" and not _in_numba():
            seen["unpickled"].add(f"{arguments[0]}.{arguments[1]}")

    sys.addaudithook(watch)
    for command in commands:
        sys.argv = ["trivium", *command]
        with suppress(SystemExit):
            run_command()
    loaded = [str(module.__file__) for module in list(sys.modules.values()) if getattr(module, "__file__", None)]
    found = {kind: sorted(each) for kind, each in seen.items()} | {"loaded": sorted(loaded)}
    out.write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
