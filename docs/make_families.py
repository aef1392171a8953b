"""Writes the table of transformers' families into models.md, from what the tests check of a tiny model of each.

python docs/make_families.py      # takes about a minute
"""

import re
import sys
import tempfile
from pathlib import Path

PAGE = Path(__file__).parent / "models.md"
TABLE = re.compile(r"(?<=<!-- through transformers -->\n\n).*?(?=\n\n<!-- end -->)", re.DOTALL)
COLUMNS = ("family", "documents apart: error of logits", "logits: error", "context", "tensor", "export")
HEAD = f"| {' | '.join(COLUMNS)} |"


def main() -> None:
    """Check every family, and write the page anew."""
    sys.path.insert(0, str(PAGE.parent.parent))
    from tests.engine.torch.transformers.checks import check
    from tests.engine.torch.transformers.families import FAMILIES, tiny

    lines = [HEAD, "|---|---|---|---|---|---|"]
    for family in FAMILIES:
        with tempfile.TemporaryDirectory() as folder:
            found = check(tiny(family), Path(folder))
        checked = found.reads_theirs and found.names_as_theirs and found.greedy_as_theirs
        errors = f"{found.packed_error:.0e} | {found.logits_error:.0e}".replace("0e+00", "0")
        lines.append(f"| {family} | {errors} | yes | no | {'yes' if checked else 'no'} |")
    PAGE.write_text(TABLE.sub("\n".join(lines), PAGE.read_text(encoding="utf-8")), encoding="utf-8")


def families_of(page: str) -> list[str]:
    """The families that a page's table has."""
    found = TABLE.search(page)
    return [] if found is None else [line.split("|")[1].strip() for line in found.group().splitlines()[2:]]


if __name__ == "__main__":
    main()
