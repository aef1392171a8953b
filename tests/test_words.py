"""Plain words: code, messages and pages have the field's names, and no phrases that only their authors understand."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILES = [
    *sorted((ROOT / "trivium").rglob("*.py")),
    *sorted((ROOT / "trivium").rglob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
]
# A phrase, and what to write instead.
BANNED = {
    r"\bso (many|often|long) (?!as\b)": "the number",
    r"(?<!there )(?<!There )\bis no (?!longer\b|more\b)": "is not a",
    r"\bmend(s|ed|ing)?\b": "fix",
    r"\blearnt\b": "counts in the loss, loss_mask, loss_tokens",
    r"\bgradient_norm\b": "grad_norm",
    r"\blast_matrix\b": "lm_head",
    r"\bis told of\b|\btells of\b": "is reported",
    r"\bpast is another\b": "earlier steps differ",
    r"\bis torn\b": "is corrupt: truncated, or changed",
    r"\banew\b": "again",
    r"\bwhat is there\b": "name it: the files, the keys, the config",
}
FIELD_WORDS = ("grad_norm", "loss_mask", "lm_head", "apply_rotary", "init_weights", "is_main", "skipped")


@pytest.mark.parametrize("phrase", BANNED)
def test_no_riddles(phrase: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in FILES
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if re.search(phrase, line)
    ]
    assert found == [], f"write instead: {BANNED[phrase]}"


@pytest.mark.parametrize("word", FIELD_WORDS)
def test_a_newcomer_finds_the_fields_words(word: str) -> None:
    code = (ROOT / "trivium").rglob("*.py")
    assert any(re.search(rf"\b{word}\b", path.read_text(encoding="utf-8")) for path in code)
