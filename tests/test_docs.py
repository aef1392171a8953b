"""What the pages show is so: configs load, commands print what stands below them, code runs, links lead somewhere.

Commands and code run in a folder that looks like the repository's root after `python examples/make_data.py`.
In a shown output a line `...` stands for any lines. A config that is only a part is completed by `BASE`.
`UPDATE_DOCS=1 pytest tests/test_docs.py` puts what is printed now into the pages, where no `...` stands for it.
"""

import contextlib
import io
import os
import re
import shlex
import shutil
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import trivium
from tests.support.scripts import load_script, make_data
from trivium.cli.main import main
from trivium.config.dialects import recognised
from trivium.config.load import load, read_tables

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)(#[^)\s]*)?\)")

# What a config on a page may leave out.
BASE: dict[str, Any] = {
    "run": {"name": "base"},
    "model": {"size": "tiny"},
    "sources": {name: {"kind": "tokens", "path": f"data/{name}"} for name in ("web", "code", "math", "talk")},
    "stages": [{"name": "only", "steps": 100}],
}


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(*languages: str) -> list[Block]:
    """All blocks of these languages, in the order of the pages."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in FENCE.finditer(text):
            if match[1] in languages:
                found.append(Block(page, text[: match.start()].count("\n") + 1, match[1], match[2]))
    return found


def pages_with(language: str) -> list[Path]:
    return list(dict.fromkeys(block.page for block in blocks(language)))


def page_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository's root as a reader has it, with the examples' data."""
    folder = tmp_path_factory.mktemp("root")
    shutil.copytree(ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("data", "__pycache__"))
    for configs in ("data_stages", "dialects"):
        shutil.copytree(ROOT / "docs" / configs, folder / "docs" / configs)
    make_data().write_sources(folder / "examples" / "data")
    return folder


@pytest.fixture
def here(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand in that root, before a terminal of 80 columns without colours, with one cache for all pages."""
    monkeypatch.chdir(root)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TRIVIUM_CACHE", str(root / "cache"))
    return root


@pytest.mark.parametrize("block", blocks("toml", "yaml"), ids=str)
def test_a_config_on_a_page_loads(block: Block, tmp_path: Path) -> None:
    path = tmp_path / f"run.{block.language}"
    path.write_text(block.text, encoding="utf-8")
    tables = read_tables(path)
    dialect = recognised(tables, path.name)
    if dialect == "trivium":
        path.write_text(completed(tables), encoding="utf-8")
    overrides = ["model.size=125m"] if dialect == "theseus" else []  # its GPT is not built here
    load(path, overrides, world_size=8)


def completed(tables: dict[str, Any]) -> str:
    """A config with what it leaves out, as TOML."""
    import tomli_w

    run = {**BASE["run"], **tables.get("run", {})}
    return tomli_w.dumps({**BASE, **tables, "run": run})


def commands(block: Block) -> Iterator[tuple[str, str]]:
    """Each command of a console block, with the output shown below it."""
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        yield command, output


def run(command: str) -> str:
    """What a `trivium ...` command prints, to either stream."""
    printed = io.StringIO()
    arguments, sys.argv = sys.argv, shlex.split(command)
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed), contextlib.suppress(SystemExit):
            main()
    finally:
        sys.argv = arguments
    return printed.getvalue()


def update(page: Path, command: str, shown: str, printed: str) -> None:
    """Put what is printed in the place of what is shown."""
    now = "".join(f"{line.rstrip()}\n" for line in printed.rstrip().splitlines())
    text = page.read_text(encoding="utf-8")
    page.write_text(text.replace(f"$ {command}\n{shown}", f"$ {command}\n{now}"), encoding="utf-8")


def as_pattern(shown: str) -> str:
    """A shown output as a regular expression: `...` alone on a line stands for any lines."""
    lines = [r"(?:.*\n)*" if line.strip() == "..." else re.escape(line) + r"\s*?\n" for line in shown.splitlines()]
    return "".join(lines) + r"\s*"


@pytest.mark.slow
@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("page", pages_with("console"), ids=page_name)
def test_commands_print_what_the_page_shows(page: Path) -> None:
    for block in blocks("console"):
        for command, shown in commands(block) if block.page == page else ():
            if command.startswith("trivium "):
                printed = run(command)
                if os.environ.get("UPDATE_DOCS") and "..." not in shown.splitlines():
                    update(page, command, shown, printed)
                    continue
                assert re.fullmatch(as_pattern(shown), printed), f"{block}: $ {command}\n{printed}"


@pytest.mark.slow
@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("page", pages_with("python"), ids=page_name)
def test_code_on_a_page_runs(page: Path) -> None:
    """The blocks of a page run one after the other; one that names a file of examples/ is an excerpt of it.

    Runs that the page's commands train are there: another process may have tested those.
    """
    names: dict[str, Any] = {"__name__": page.stem}
    for command in (each for block in blocks("console") if block.page == page for each, _ in commands(block)):
        if command.startswith("trivium train "):
            run(command)
    for block in blocks("python"):
        if block.page != page:
            continue
        example = re.match(r"# (examples/\w+\.py)\n", block.text)
        if example:
            # test_examples runs it
            excerpt = block.text.partition("\n")[2].strip()
            assert excerpt in (ROOT / example[1]).read_text(encoding="utf-8"), str(block)
        else:
            exec(compile("\n" * block.line + block.text, str(page), "exec"), names)


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for match in LINK.finditer(text):
        target = (page.parent / match[1]) if match[1] else page
        assert target.exists(), f"{page_name(page)}: {match[0]}"
        if match[2]:
            assert match[2][1:] in anchors(target), f"{page_name(page)}: {match[0]}"


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_tests_that_a_page_names_exist(page: Path) -> None:
    for file, name in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page.read_text(encoding="utf-8")):
        assert re.search(rf"^ *def {name}\(", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE), (
            f"{file}::{name}"
        )


def anchors(page: Path) -> set[str]:
    """The names of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_pages_keep_to_the_words_of_the_design(page: Path) -> None:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    prose = re.sub(r"`[^`\n]*`", "", re.sub(r"^\|.*$", "", text, flags=re.MULTILINE))
    for word in ("phase", "iteration", "sample", "chunk", "blend", "job", "snapshot", "backend"):
        assert not re.search(rf"\b{word}s?\b", prose, re.IGNORECASE), word


@pytest.mark.parametrize(("page", "example"), [("README.md", "tour.toml"), ("docs/quickstart.md", "quickstart.toml")])
def test_a_page_shows_the_example_as_it_is(page: str, example: str) -> None:
    shown = [tomllib.loads(block.text) for block in blocks("toml") if block.page == ROOT / page]
    assert tomllib.loads((ROOT / "examples" / example).read_text(encoding="utf-8")) in shown


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    linked = {(ROOT / "docs" / match[1]).resolve() for match in LINK.finditer(index)}
    pages = {page for page in (ROOT / "docs").rglob("*.md") if page.name != "README.md"}
    assert pages <= linked


def test_the_config_reference_is_up_to_date() -> None:
    module = load_script("docs", "make_config_reference.py")
    page = (ROOT / "docs" / "config.md").read_text(encoding="utf-8")
    assert module.with_reference(page) == page, "run: python docs/make_config_reference.py"


def test_the_config_reference_shows_a_table_where_a_key_takes_a_table() -> None:
    page = (ROOT / "docs/config.md").read_text()
    shown = [line.split("|")[2].strip() for line in page.splitlines() if line.startswith("| `options`")]
    assert len(shown) == 3
    assert all(value.startswith("`{ ") for value in shown)


def test_the_config_reference_shows_defaults_that_a_user_may_write() -> None:
    page = (ROOT / "docs" / "config.md").read_text(encoding="utf-8")
    assert "Undefined" not in page
    assert "factory" not in page


def test_the_page_of_commands_is_up_to_date() -> None:
    module = load_script("docs", "make_commands.py")
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    assert module.with_commands(page) == page, "run: python docs/make_commands.py"


def test_the_page_of_the_api_has_every_public_name() -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    shown = re.findall(r"^::: trivium\.(\w+)$", page, re.MULTILINE)
    assert sorted(shown) == sorted(set(trivium.__all__) - {"__version__"})


@pytest.mark.parametrize("file", ["CITATION.cff", "docs/cite.md"])
def test_what_to_cite_has_the_version(file: str) -> None:
    versions = re.findall(r"version\s*[:=]\s*\{?([\w.]+)", (ROOT / file).read_text(encoding="utf-8"))
    assert versions[-1] == trivium.__version__


def test_the_design_page_names_files_that_exist() -> None:
    page = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    for name in re.findall(r"`(trivium/[\w/]+(?:\.py)?)`", page):
        assert (ROOT / name).exists(), name


def test_the_design_page_has_the_rooms_as_they_are() -> None:
    page = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    assert load_script("docs", "make_rooms.py").with_rooms(page) == page, "run: python docs/make_rooms.py"


TEST = re.compile(r"`(?:tests/)?([\w/]+\.py)::(test_\w+)`")


@pytest.mark.parametrize(
    "page", [page for page in PAGES if TEST.search(page.read_text(encoding="utf-8"))], ids=page_name
)
def test_a_page_names_tests_that_exist(page: Path) -> None:
    for file, name in TEST.findall(page.read_text(encoding="utf-8")):
        assert f"def {name}(" in (ROOT / "tests" / file).read_text(encoding="utf-8"), f"{file}::{name}"


def test_the_install_page_has_every_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    table = [line.split("|")[1] for line in (ROOT / "docs" / "install.md").read_text().splitlines() if line[:1] == "|"]
    assert set(extras) - set(re.findall(r"`([a-z0-9-]+)`", " ".join(table))) == set()
