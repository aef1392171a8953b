"""Families of transformers in our engine, against transformers itself: logits, documents, files, greedy tokens."""

from pathlib import Path

import pytest

from tests.engine.torch.transformers.checks import check
from tests.engine.torch.transformers.families import FAMILIES, tiny
from tests.support.scripts import load_script


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_is_what_transformers_makes_of_it(family: str, tmp_path: Path) -> None:
    found = check(tiny(family), tmp_path)
    assert found.logits_error < 2e-6
    assert found.packed_error < 5e-7  # experts multiply other numbers of rows at once
    assert found.packed_error == 0 or found.has_experts
    assert found.reads_theirs
    assert found.names_as_theirs
    assert found.greedy_as_theirs
    assert found.learns


def test_the_page_of_models_lists_the_families_that_are_checked() -> None:
    page = (Path(__file__).parents[4] / "docs" / "models.md").read_text(encoding="utf-8")
    assert load_script("docs", "make_families.py").families_of(page) == list(FAMILIES), "run: docs/make_families.py"
