"""A model's shape, left beside its weights and read again."""

from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from tests.support.batches import TINY
from trivium.errors import ResumeError
from trivium.model.folder import SPEC_FILE, read_spec, write_spec
from trivium.model.spec import RopeSpec, Scaling


@pytest.mark.parametrize("scaling", [None, *get_args(Scaling)])
def test_every_kind_of_rotary_positions_is_read_as_it_was_written(scaling: Scaling | None, tmp_path: Path) -> None:
    spec = replace(TINY, rope=RopeSpec(5e5, scaling, 4.0, 16, dropped=(0, 1)))
    write_spec(tmp_path, spec)
    assert read_spec(tmp_path) == spec


@pytest.mark.parametrize("dropped", ["[-1]", '["a"]', "[1.5]", "7"])
def test_layers_that_no_model_has_are_refused(dropped: str, tmp_path: Path) -> None:
    write_spec(tmp_path, TINY)
    path = tmp_path / SPEC_FILE
    path.write_text(path.read_text().replace('"dropped": []', f'"dropped": {dropped}'))
    with pytest.raises(ResumeError, match="is corrupt"):
        read_spec(tmp_path)


def test_the_first_form_names_every_nth_layer(tmp_path: Path) -> None:
    write_spec(tmp_path, replace(TINY, layers=4))
    path = tmp_path / SPEC_FILE
    path.write_text(path.read_text().replace('"layers": 4', '"layers": 4, "no_rope_every": 2'))
    assert read_spec(tmp_path).rope.dropped == (1, 3)
