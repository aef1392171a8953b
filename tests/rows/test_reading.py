"""Nothing twice, nothing lost: whatever the settings, and however often they change."""

import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.corpus import document_ends, make_blocks
from trivium.rows.blocks import FileBlocks
from trivium.rows.figures import Figures, row_figures
from trivium.rows.reading import Reading, RowSettings, Unread
from trivium.rows.window import Window

FILES = st.lists(st.lists(st.integers(1, 60), min_size=1, max_size=12), min_size=1, max_size=3)
SETTINGS = st.builds(
    RowSettings,
    seq_len=st.integers(1, 40),
    packing=st.sampled_from(["concat", "bestfit", "crop", "crop-first", "pad"]),
    seed=st.integers(0, 3),
)


def start(blocks: FileBlocks, settings: RowSettings) -> Reading:
    return Reading(blocks, settings, Unread.all_of(blocks, settings.seed))


def row_tokens(blocks: FileBlocks, window: Window, row: int) -> list[int]:
    """The ids of all tokens that a row uses up: those laid in it, and those that it drops."""
    pieces = slice(window.row_starts[row], window.row_starts[row + 1])
    lengths, files = window.lengths[pieces].tolist(), window.files[pieces].tolist()
    lengths[-1] += int(window.dropped[row])
    offsets = window.pieces[pieces, 0].tolist()
    return [
        int(token)
        for file, offset, length in zip(files, offsets, lengths, strict=True)
        for token in blocks.files[file].tokens[offset : offset + length]
    ]


def read(reading: Reading, first: int, count: int) -> list[int]:
    """The ids of the tokens that some rows use up, in order."""
    tokens = []
    for position in range(first, first + count):
        number, row = reading.locate(position)
        tokens += row_tokens(reading.blocks, reading.window(number), row)  # type: ignore[arg-type]
    return tokens


@settings(max_examples=60)
@given(FILES, st.lists(st.tuples(SETTINGS, st.integers(0, 25)), min_size=1, max_size=6), st.integers(1, 5))
def test_every_token_is_read_once_before_any_is_read_again(
    files: list[list[int]], stages: list[tuple[RowSettings, int]], window_blocks: int
) -> None:
    blocks = make_blocks(files, window_blocks=window_blocks)
    reading, position, tokens = start(blocks, stages[0][0]), 0, []
    for stage, rows in stages:
        if stage != reading.settings:
            reading, position = Reading(blocks, stage, reading.after(position)), 0
        tokens += read(reading, position, rows)
        position += rows
    whole = int(document_ends(files)[-1])
    for first in range(0, len(tokens), whole):
        epoch = tokens[first : first + whole]
        assert Counter(epoch) <= Counter(range(whole))
    # And what is left of the last epoch is exactly what has not been read.
    if len(tokens) % whole:
        left = Reading(blocks, stages[0][0], reading.after(position))
        rest = read(left, 0, rows_of_first_epoch(left))
        assert Counter(tokens[len(tokens) // whole * whole :] + rest) == Counter(range(whole))


def rows_of_first_epoch(reading: Reading) -> int:
    """Rows of the epoch that a reading starts in."""
    rows = 0
    while reading.place(reading.locate(rows)[0])[0] == reading.first_epoch:
        rows += 1
    return rows


def test_settings_that_change_and_change_back_read_on() -> None:
    blocks = make_blocks([[5, 9, 4, 30, 2, 8, 16, 16, 3, 7] * 3])
    short, long = RowSettings(8, "bestfit", 0), RowSettings(32, "concat", 0)
    first = start(blocks, short)
    tokens = read(first, 0, 7)
    second = Reading(blocks, long, first.after(7))
    tokens += read(second, 0, 2)
    third = Reading(blocks, short, second.after(2))
    tokens += read(third, 0, 5)
    assert len(set(tokens)) == len(tokens)


def test_a_stage_that_reads_nothing_changes_nothing() -> None:
    blocks = make_blocks([[5, 9, 4, 30, 2, 8]])
    first = start(blocks, RowSettings(8, "bestfit", 0))
    other = Reading(blocks, RowSettings(16, "concat", 0), first.after(3))
    back = Reading(blocks, RowSettings(8, "bestfit", 0), other.after(0))
    again = Reading(blocks, RowSettings(8, "bestfit", 0), first.after(3))
    assert read(back, 0, 5) == read(again, 0, 5)


def test_each_epoch_has_an_order_of_its_own() -> None:
    files = [[4] * 400]
    blocks = make_blocks(files, 8, 4)
    reading = start(blocks, RowSettings(4, "bestfit", 0))
    first, second = read(reading, 0, 400), read(reading, 400, 400)
    assert sorted(first) == sorted(second) == list(range(1600))
    assert sum(one == other for one, other in zip(first, second, strict=True)) < 160


def test_another_seed_reorders_what_is_unread_and_nothing_is_read_twice() -> None:
    blocks = make_blocks([[4] * 400], 8, 4)
    first = start(blocks, RowSettings(4, "bestfit", 0))
    kept = read(first, 0, 200)
    same = read(first, 200, 200)
    other = read(Reading(blocks, RowSettings(4, "bestfit", 1), first.after(200)), 0, 200)
    assert sorted(same) == sorted(other)
    assert same != other
    assert not set(kept) & set(other)


def test_the_name_of_a_source_decides_its_order_and_other_sources_do_not() -> None:
    files = [[4] * 100]
    settings_now = RowSettings(4, "bestfit", 0)
    one, same, other = (start(make_blocks(files, name=name), settings_now) for name in ("web", "web", "code"))
    assert read(one, 0, 100) == read(same, 0, 100)
    assert read(one, 0, 100) != read(other, 0, 100)


def test_the_order_of_blocks_does_not_depend_on_row_length_or_packing() -> None:
    blocks = make_blocks([[8] * 200], 8, 4)
    settings_now = [RowSettings(8, "bestfit", 0), RowSettings(16, "concat", 0), RowSettings(4, "pad", 0)]
    orders = [start(blocks, each).order_of(0).take(0, 200).tolist() for each in settings_now]
    assert orders[0] == orders[1] == orders[2]


@given(FILES, SETTINGS, st.integers(0, 30), st.integers(0, 30))
def test_figures_are_those_of_the_rows(files: list[list[int]], stage: RowSettings, first: int, count: int) -> None:
    reading = start(make_blocks(files), stage)
    expected = np.zeros(7, np.int64)
    for position in range(first, first + count):
        number, row = reading.locate(position)
        expected += row_figures(reading.window(number), reading.blocks.table.loss)[row]
    assert reading.figures(first, first + count) == Figures(*expected.tolist())


@given(FILES, SETTINGS, st.integers(0, 20), st.integers(1, 300))
def test_position_after_is_the_first_with_so_many_tokens(
    files: list[list[int]], stage: RowSettings, first: int, tokens: int
) -> None:
    reading = start(make_blocks(files), stage)
    position = reading.position_after(first, tokens)
    assert reading.figures(first, position).consumed >= tokens
    assert reading.figures(first, position - 1).consumed < tokens


@given(FILES, SETTINGS, st.integers(0, 20), st.lists(st.integers(1, 300), min_size=1, max_size=4))
def test_a_position_that_was_found_before_is_read_from_the_table(
    files: list[list[int]], stage: RowSettings, first: int, tokens: list[int]
) -> None:
    blocks = make_blocks(files)
    with tempfile.TemporaryDirectory() as folder:
        readings = [Reading(blocks, stage, Unread.all_of(blocks, stage.seed), Path(folder)) for _ in range(2)]
        readings[0].figures(0, first)
        found = [readings[0].position_after(first, count) for count in tokens]
        again = Reading(blocks, stage, Unread.all_of(blocks, stage.seed), Path(folder))
        again._make_window = None  # type: ignore[assignment]
        again.window = None  # type: ignore[assignment]
        assert [again.position_after(first, count) for count in tokens] == found
        assert [readings[1].position_after(first, count) for count in reversed(tokens)] == found[::-1]


def test_one_epoch_ends_with_the_row_that_reads_the_last_token() -> None:
    files = [[5, 9, 4, 30, 2, 8, 16, 16, 3, 7] * 3]
    for packing in ("concat", "bestfit", "crop", "crop-first", "pad"):
        reading = start(make_blocks(files), RowSettings(8, packing, 0))
        whole = sum(files[0])
        position = reading.position_after(0, whole)
        assert sorted(read(reading, 0, position)) == list(range(whole))


def test_a_table_that_was_kept_gives_the_same_places(own_cache: object) -> None:
    files = [[5, 9, 4, 30, 2, 8, 16, 16, 3, 7] * 3]
    settings_now = RowSettings(8, "bestfit", 0)
    first = start(make_blocks(files), settings_now)
    places = [first.locate(position) for position in range(100)]
    again = start(make_blocks(files), settings_now)
    assert again._table.num_windows == first._table.num_windows > 0
    assert [again.locate(position) for position in range(100)] == places
