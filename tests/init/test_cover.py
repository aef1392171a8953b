"""Paths that name the files of a source and no others: the property, and the forms that they take."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trivium.init.cover import cover
from trivium.init.found import FoundFile
from trivium.paths import find_any

NAMES = st.builds(
    lambda folders, stem, ending: "/".join([*folders, stem + ending]),
    st.lists(st.sampled_from(["a", "b", "c[1]"]), max_size=2),
    st.sampled_from(["x", "y", "README"]),
    st.sampled_from([".py", ".md", ".jsonl", ".jsonl.gz", ".gz", "", ".tar.gz"]),
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(chosen=st.dictionaries(NAMES, st.sampled_from(["one", "two", None]), min_size=1, max_size=12))
def test_paths_find_exactly_the_files_of_their_source(
    chosen: dict[str, str | None], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("cover")
    for name in chosen:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
    files = {FoundFile(folder / name, name, 1): source for name, source in chosen.items()}
    for source, paths in cover(folder, files).items():
        assert {found.path for found in find_any(paths)} == {file.path for file, own in files.items() if own == source}


def test_the_shortest_form_is_taken(tmp_path: Path) -> None:
    names = {"web/a.md": "web", "web/b/c.md": "web", "code/a.py": "code", "code/b/c.py": "code", "code/logo.png": None}
    files = {FoundFile(tmp_path / name, name, 1): source for name, source in names.items()}
    assert cover(tmp_path, files) == {"web": (f"{tmp_path}/web",), "code": (f"{tmp_path}/code/**/*.py",)}
