"""The command line's own help -> docs/commands.md: every command with its usage, options and example.

    python docs/make_commands.py

A test fails when the page is older than the commands.
"""

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from trivium.cli.main import GROUPS, TOKENIZER, app

PAGE = Path(__file__).parent / "commands.md"
BEGIN = "<!-- the commands begin; python docs/make_commands.py writes them -->\n"
END = "<!-- the commands end -->\n"

# Where a command is explained: every command has a page.
PAGES = {
    "quickstart": "quickstart.md",
    "init": "quickstart.md#what-init-finds-and-chooses",
    "examples": "install.md#without-the-checkout",
    "inspect-model": "models.md",
    "tokenizer train": "tokenizers.md#train-one",
    "prepare": "prepare.md",
    "verify": "token-files.md#what-is-checked-and-when",
    "convert": "torchtitan.md#as-a-config-of-trivium",
    "schema": "editor.md",
    "plan": "plan.md",
    "check": "many-machines.md#layouts",
    "rehearse": "training.md#before-it-costs-anything",
    "prove": "many-machines.md#proven-here-and-on-your-gpus",
    "demo": "first-run.md",
    "train": "training.md",
    "fork": "resume.md#fork",
    "runs": "training.md#another-future",
    "watch": "report.md#while-it-runs",
    "report": "report.md",
    "compare": "midtraining.md#what-was-gained-and-forgotten",
    "inspect": "inspect.md",
    "why": "why.md",
    "rerun": "why.md#take-the-steps-again",
    "sample": "sampling.md",
    "chat": "sampling.md#chatting",
    "eval": "midtraining.md#scores",
    "export": "publish.md",
    "push": "publish.md#on-the-hub",
    "average": "averages.md#average-models",
}


def with_commands(page: str) -> str:
    """The page with the part between the two marks written again."""
    before, rest = page.split(BEGIN)
    return before + BEGIN + "\n" + "\n".join(commands()) + "\n" + END + rest.split(END)[1]


def commands() -> Iterator[str]:
    """A table of all commands, then each of them, by group."""
    found = {title: list(names(title)) for title in GROUPS}
    for title, group in found.items():
        yield from (f"**{title}**", "", "| command | what it does |", "|---|---|")
        yield from (f"| [`trivium {name}`](#{anchor(name)}) | {summary(command)} |" for name, command in group)
        yield ""
    for title, group in found.items():
        yield from (f"## {title}", "")
        for name, command in group:
            yield from section(name, command)


def names(title: str) -> Iterator[tuple[str, Any]]:
    """The commands of a group by their whole names; those of `tokenizer` come first among data's."""
    group = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    if title == "Data":
        yield from ((f"{TOKENIZER} {name}", command) for name, command in group[TOKENIZER].commands.items())
    yield from ((name, group[name]) for name in GROUPS[title])


def section(name: str, command: Any) -> Iterator[str]:
    """A command's sentence, usage, arguments, options and example."""
    context = typer.Context(command, info_name=f"trivium {name}")
    with context:
        yield from (f"### `trivium {name}`", "", one_line(command.help), "")
        usage = " ".join(command.collect_usage_pieces(context))
        yield from ("```text", f"trivium {name} {usage}", "```", "")
        found = [param.get_help_record(context) for param in command.get_params(context) if param.name != "help"]
        shown = [f"| `{cell(left)}` | {cell(right)} |" for left, right in filter(None, found)]
        yield from (("| argument, option | what it means |", "|---|---|", *shown) if shown else ())
    if command.epilog:
        example = command.epilog.partition("Example:")[2].strip()
        yield from ("", f"Example: `{example}`.")
    yield from ("", f"Page: [{title_of(PAGES[name].partition('#')[0])}]({PAGES[name]}).", "")


def title_of(page: str) -> str:
    """A page's heading."""
    return (PAGE.parent / page).read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


def summary(command: Any) -> str:
    """The first sentence of a command's help."""
    return one_line(command.help).partition(". ")[0].rstrip(".") + "."


def one_line(text: str) -> str:
    return " ".join(inspect.cleandoc(text).split())


def cell(text: str) -> str:
    """A text within a table."""
    return one_line(text).replace("|", "\\|").replace("  ", " ")


def anchor(name: str) -> str:
    """The name of a command's heading, as GitHub makes it."""
    return f"trivium-{name}".replace(" ", "-")


if __name__ == "__main__":
    PAGE.write_text(with_commands(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
