"""What a page of a report holds: its data, and of these the tables, charts and texts."""

import base64
import json
import re
from pathlib import Path
from typing import Any

import numpy as np


def data_in(page: Path) -> dict[str, Any]:
    """The data of a page, as its script reads it."""
    match = re.search(r'<script type="application/json"[^>]*>(.*?)</script>', page.read_text(), re.DOTALL)
    assert match is not None
    data: dict[str, Any] = json.loads(match[1])
    return data


def tables_of(data: dict[str, Any]) -> dict[str, list[list[str]]]:
    blocks = [block for section in data["sections"] for block in section["blocks"]]
    return {block["id"]: block["rows"] for block in blocks if block["type"] == "table"}


def charts_of(data: dict[str, Any]) -> dict[str, dict[str, Any]]:
    blocks = [block for section in data["sections"] for block in section["blocks"]]
    charts = [chart for block in blocks for chart in block.get("charts", [block]) if chart["type"] == "chart"]
    return {chart["id"]: chart for chart in charts}


def table(data: dict[str, Any], name: str) -> list[list[str]]:
    rows: list[list[str]] = next(
        block["rows"] for section in data["sections"] for block in section["blocks"] if block["id"] == name
    )
    return rows


def texts_of(data: dict[str, Any]) -> dict[str, str]:
    blocks = [block for section in data["sections"] for block in section["blocks"]]
    texts = {block["id"]: block["text"] for block in blocks if block["type"] == "text"}
    for block in (block for block in blocks if block["type"] == "texts"):
        texts |= {f"{block['id']}-{number}": text for number, (_, text) in enumerate(block["entries"])}
    return texts


def points(chart: dict[str, Any], label: str) -> dict[int, float]:
    found: dict[int, float] = {}
    for series in (series for series in chart["series"] if series["label"] == label):
        steps = np.frombuffer(base64.b64decode(series["steps"]), "<u4")
        values = np.frombuffer(base64.b64decode(series["values"]), "<f4")
        found.update(zip(steps.tolist(), values.tolist(), strict=True))
    return found
