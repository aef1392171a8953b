"""Writes the table of transformers' families into models.md, from what the tests check of a tiny model of each.

python docs/make_families.py      # takes two minutes
"""

import re
import sys
import tempfile
from pathlib import Path

PAGE = Path(__file__).parent / "models.md"
TABLE = re.compile(r"(?<=<!-- through transformers -->\n\n).*?(?=\n\n<!-- end -->)", re.DOTALL)
COLUMNS = ("family", "code", "engines", "documents masked", "context", "tensor", "logits error", "export checked")
HEAD = f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}"


def main() -> None:
    """Check every family, and write the page anew."""
    sys.path.insert(0, str(PAGE.parent.parent))
    from tests.engine.torch.transformers.checks import check
    from tests.engine.torch.transformers.families import FAMILIES, tiny
    from tests.support.shared_families import shared_families

    lines, shared = [HEAD], shared_families("transformers")
    for family in FAMILIES:
        with tempfile.TemporaryDirectory() as folder:
            found = check(tiny(family), Path(folder))
        checked = found.reads_theirs and found.names_as_theirs and found.greedy_as_theirs
        errors = [found.packed_error, shared[family]["context"], shared[family]["tensor"], found.logits_error]
        cells = [family, "transformers", "torch", *map(show, errors), "yes" if checked else "no"]
        lines.append(f"| {' | '.join(cells)} |")
    PAGE.write_text(TABLE.sub("\n".join(lines), PAGE.read_text(encoding="utf-8")), encoding="utf-8")


def show(error: float | None) -> str:
    """An error with one digit; \"no\" where there is none, since it was refused."""
    return "no" if error is None else f"{error:.0e}" if error else "0"


def families_of(page: str) -> list[str]:
    """The families that a page's table has."""
    found = TABLE.search(page)
    return [] if found is None else [line.split("|")[1].strip() for line in found.group().splitlines()[2:]]


if __name__ == "__main__":
    main()
