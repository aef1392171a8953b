"""The order of rooms: a module imports only from its own room and from those above it, whenever and for whatever."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "trivium"

# From the top of the house down. A room may use those before it, and none may use those after it.
ROOMS = (
    "errors",
    "screen",
    "files",
    "paths",
    "seeds",
    "cores",
    "local_page",
    "config",
    "textfiles",
    "text",
    "tokenfiles",
    "rows",
    "prepare",
    "tasks",
    "sources",
    "model",
    "engine",
    "run",
    "plan",
    "loader",
    "forecast",
    "ask",
    "train",
    "why",
    "report",
    "init",
    "publish",
    "demo",
    "prove",
    "cli",
    "adapters",
)
OUTSIDE = ("__init__", "__main__")  # the public names, and `python -m trivium`
MOST_FILES = 16  # in a room
MOST_LINES = 450  # in a module
# The modules that may import a framework, or another tool's package: an adapter's module is called like its package.
FRAMEWORKS = {
    "torch": ("engine/torch", "adapters/"),
    "jax": ("engine/jax",),
    "flax": ("engine/jax",),
    "optax": ("engine/jax",),
    **{name: (f"adapters/{name}",) for name in ("grain", "lightning", "megatron", "olmo_core", "torchtitan")},
}


def modules() -> list[Path]:
    """Every module of the package, by its path below it."""
    return sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py"))


def imports(source: str) -> Iterator[tuple[int, str]]:
    """Every module that a source imports, with its line: at the top, in a function, or for types alone."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module is not None:
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)


def room_of(module: str) -> str | None:
    """`trivium.rows.order.Permutation` -> `rows`; None for what is not ours, or the package's public names."""
    parts = module.split(".")
    return parts[1] if parts[0] == "trivium" and len(parts) > 1 and parts[1] in ROOMS else None


def wrong_imports(path: Path, source: str) -> list[str]:
    """Imports of a module that point down the house."""
    own = path.parts[0].removesuffix(".py")
    found = []
    for line, module in imports(source):
        room = room_of(module)
        if module.split(".")[0] == "trivium" and room is None:
            found.append(f"{path}:{line} imports {module}, which is in no room")
        elif room is not None and ROOMS.index(room) > ROOMS.index(own):
            found.append(f"{path}:{line} imports {module}: {room} is below {own}")
    return found


def test_every_module_is_in_a_room() -> None:
    assert {path.parts[0].removesuffix(".py") for path in modules()} == {*ROOMS, *OUTSIDE}


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_from_itself_and_the_rooms_above(room: str) -> None:
    own = [path for path in modules() if path.parts[0].removesuffix(".py") == room]
    found = [wrong for path in own for wrong in wrong_imports(path, (PACKAGE / path).read_text(encoding="utf-8"))]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        "from trivium.plan.plan import Plan",
        "import trivium.plan.plan",
        "def f() -> None:\n    from trivium.plan.plan import Plan",
        "if TYPE_CHECKING:\n    from trivium.plan.plan import Plan",
        "from trivium import plan",
        "from trivium import make_plan",
    ],
)
def test_an_import_that_points_down_is_found_in_every_form(source: str) -> None:
    assert len(wrong_imports(Path("rows/order.py"), source)) == 1
    assert wrong_imports(Path("rows/order.py"), "import numpy\nfrom trivium.files import draft") == []


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_framework_is_known_inside_its_engine_or_adapter_alone(framework: str) -> None:
    elsewhere = [
        f"{path}:{line} imports {module}"
        for path in modules()
        if not path.as_posix().startswith(FRAMEWORKS[framework])
        for line, module in imports((PACKAGE / path).read_text(encoding="utf-8"))
        if module.split(".")[0] == framework
    ]
    assert elsewhere == []


def imported_tests(source: str) -> list[str]:
    """Imports of a test module: what tests share belongs in a conftest.py or in tests/support."""
    return [
        f"{line}: {module}" for line, module in imports(source) if module.startswith("tests.") and ".test_" in module
    ]


def test_no_test_imports_from_another_test() -> None:
    found = {
        path.relative_to(TESTS).as_posix(): wrong
        for path in sorted(TESTS.rglob("*.py"))
        if (wrong := imported_tests(path.read_text(encoding="utf-8")))
    }
    assert found == {}
    for source in ("from tests.train.test_trainer import folder", "from tests.train import test_trainer"):
        assert imported_tests(source)
    assert not imported_tests("from tests.support.training import write_sources")


@pytest.mark.parametrize("room", ["model", "engine"])
def test_the_engine_and_the_models_shape_know_no_config(room: str) -> None:
    found = [
        f"{path}:{line} imports {module}"
        for path in modules()
        if path.parts[0] == room
        for line, module in imports((PACKAGE / path).read_text(encoding="utf-8"))
        if room_of(module) == "config"
    ]
    assert found == []


def test_no_room_is_crowded() -> None:
    counts: dict[str, int] = {}
    for path in modules():
        if path.name != "__init__.py":
            counts[path.parent.as_posix()] = counts.get(path.parent.as_posix(), 0) + 1
    assert {room: count for room, count in counts.items() if count > MOST_FILES} == {}


@pytest.mark.parametrize("folder", [PACKAGE, TESTS], ids=["package", "tests"])
def test_no_module_is_too_long_to_read_in_one_sitting(folder: Path) -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in folder.rglob("*.py")}
    assert {path: length for path, length in lengths.items() if length > MOST_LINES} == {}


def process_ends(source: str) -> list[int]:
    """The lines that end the process, or ask to: `sys.exit`, `exit`, `SystemExit` and `typer.Exit`."""
    names = {"sys.exit", "exit", "quit", "SystemExit", "typer.Exit", "Exit", "typer.Abort"}
    return sorted(
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Name | ast.Attribute) and ast.unparse(node) in names
    )


def test_only_the_command_line_ends_the_process() -> None:
    found = [
        f"{path}:{line}"
        for path in modules()
        if path.parts[0] != "cli"
        for line in process_ends((PACKAGE / path).read_text(encoding="utf-8"))
    ]
    assert found == []
    assert process_ends("import sys\ndef f():\n    sys.exit(2)\ndef g():\n    raise SystemExit") == [3, 5]
