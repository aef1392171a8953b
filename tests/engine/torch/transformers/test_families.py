"""Families of transformers in our engine, against transformers itself: logits, documents, files, greedy tokens."""

from pathlib import Path

import pytest

from tests.engine.torch.transformers.checks import check
from tests.engine.torch.transformers.families import FAMILIES, tiny


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
