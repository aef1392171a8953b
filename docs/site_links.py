"""Links to folders and out of docs/ lead nowhere on the site: what they name stays, as text."""

import re
from typing import Any

NOWHERE = re.compile(r"\[([^\]]+)\]\((?:\.\./[^)]*|[\w/]+)\)")


def on_page_markdown(markdown: str, page: Any, **_others: Any) -> str:
    """What mkdocs calls with each page; those of a folder link to their neighbours by `../`."""
    return markdown if "/" in page.file.src_uri else NOWHERE.sub(r"\1", markdown)
