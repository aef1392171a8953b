"""Lanes in turn: every token once an epoch, a small exact state, and nothing that depends on how it is read."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.streams import make_stream, write_jsonl
from trivium.errors import ResumeError, SourceError
from trivium.rows.piece import file_of, length_of
from trivium.rows.reading import RowSettings
from trivium.sources.stream.lanes import LaneRows, Lanes, Stretch

FILES = [[12, 30, 5, 0, 44, 9, 17], [8, 8, 25], [60, 7, 13, 21, 5, 5, 40, 11, 0, 6]]
PLAIN = RowSettings(16, "bestfit", 1)
Row = tuple[int, tuple[tuple[int, int, int, int], ...]]  # epoch; file, example, start and stop of each piece


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_jsonl(tmp_path_factory.mktemp("web"), FILES)


def make_lanes(dataset: Path, *stretches: Stretch, logged: list[str] | None = None, **source: Any) -> Lanes:
    heard: list[str] = [] if logged is None else logged
    stream = make_stream(dataset, **({"lanes": 2, "shuffle_buffer": 3} | source))
    return Lanes(stream, stretches or (Stretch(0, PLAIN),), heard.append)


def addresses(rows: LaneRows) -> list[Row]:
    found = []
    for number, epoch in enumerate(rows.epochs):
        pieces = []
        for offset, word in rows.window.row_pieces(number).tolist():
            documents = rows.documents[file_of(word)]
            index = int((documents.ends <= offset).sum())
            start = offset - (int(documents.ends[index - 1]) if index else 0)
            length = length_of(word)
            pieces.append((int(documents.files[index]), int(documents.examples[index]), start, start + length))
        found.append((epoch, tuple(pieces)))
    return found


def read(lanes: Lanes, count: int) -> list[Row]:
    return addresses(lanes.at(lanes.position, lanes.position + count))


def tokens_of(rows: list[Row], epoch: int) -> Counter[tuple[int, int, int]]:
    return Counter(
        (file, example, token)
        for found, pieces in rows
        if found == epoch
        for file, example, start, stop in pieces
        for token in range(start, stop)
    )


def all_tokens(files: list[list[int]]) -> Counter[tuple[int, int, int]]:
    return Counter(
        (file, example, token)
        for file, lengths in enumerate(files)
        for example, length in enumerate(lengths)
        if length
        for token in range(length + 1)  # and its end
    )


@pytest.mark.slow
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_every_token_is_read_once_an_epoch_whatever_changes(folder: Path, data: st.DataObject) -> None:
    starts = sorted(data.draw(st.sets(st.integers(1, 60), max_size=4)))
    kinds = st.builds(RowSettings, st.integers(2, 40), st.sampled_from(["bestfit", "concat", "pad"]), st.integers(1, 2))
    stretches = [Stretch(start, data.draw(kinds)) for start in (0, *starts)]
    source: dict[str, Any] = {"lanes": data.draw(st.integers(1, 7)), "shuffle_buffer": data.draw(st.integers(1, 12))}
    lanes = make_lanes(folder, *stretches, **source)
    rows: list[Row] = []
    while not rows or rows[-1][0] < 2:
        rows += read(lanes, 1)
    assert [epoch for epoch, _ in rows] == sorted(epoch for epoch, _ in rows)
    for epoch in (0, 1):
        assert tokens_of(rows, epoch) == all_tokens(FILES)
    lanes.close()


@pytest.mark.slow
def test_a_state_at_any_position_gives_the_rows_that_follow(folder: Path) -> None:
    stretches = Stretch(0, PLAIN), Stretch(9, RowSettings(24, "concat", 1)), Stretch(14, RowSettings(24, "crop", 2))
    lanes = make_lanes(folder, *stretches)
    states = [lanes.state_at(position) for position in range(60)]
    rows = read(make_lanes(folder, *stretches), 64)
    assert rows[-1][0] > 2, "epochs end in between"
    for position, state in enumerate(states):
        again = make_lanes(folder, *stretches)
        again.load(json.loads(json.dumps(state)))
        assert read(again, 4) == rows[position : position + 4]
        assert again.state_at(position + 3) == (states + [lanes.state_at(p) for p in range(60, 64)])[position + 3]
        again.close()
    assert max(len(json.dumps(lane)) for state in states for lane in state["lanes"]) < 200
    assert max(len(json.dumps(state)) for state in states) < 2 * 200 + 80


def test_the_state_does_not_grow_with_the_run(folder: Path) -> None:
    lanes = make_lanes(folder, logged=[])
    sizes = [len(json.dumps(lanes.state_at(position))) for position in range(0, 600, 100)]
    assert max(sizes) < min(sizes) + 60, "but for a digit more, and rows that were taken"


def test_epochs_are_shuffled_in_other_orders_and_logged(folder: Path) -> None:
    logged: list[str] = []
    rows: list[Row] = []
    lanes = make_lanes(folder, logged=logged)
    while not rows or rows[-1][0] < 2:
        rows += read(lanes, 1)
    orders = [[pieces for found, pieces in rows if found == epoch] for epoch in (0, 1)]
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1])
    assert logged == [f"stream web: all lanes have ended: starts over, epoch {epoch}" for epoch in (2, 3)]


def test_uneven_lanes_are_all_read_to_their_end_first(tmp_path: Path) -> None:
    files = [[20] * 30, [20]]
    lanes = make_lanes(write_jsonl(tmp_path / "web", files), Stretch(0, RowSettings(32, "bestfit", 1)))
    rows = read(lanes, 31)
    assert tokens_of(rows, 0) == all_tokens(files)
    assert read(lanes, 1)[0][0] == 1


def test_a_lane_without_documents_is_skipped(tmp_path: Path) -> None:
    lanes = make_lanes(write_jsonl(tmp_path / "web", [[10, 10]]), lanes=5)
    assert tokens_of(read(lanes, 2), 0) == all_tokens([[10, 10]])
    assert read(lanes, 1)[0][0] == 1


def test_a_stream_without_any_document_is_an_error(tmp_path: Path) -> None:
    folder = write_jsonl(tmp_path / "web", [[0, 0], [0]])
    with pytest.raises(SourceError) as error:
        read(make_lanes(folder), 1)
    assert str(error.value) == (f"{folder} holds no document with any text, in no lane. Name another split or column.")


def test_a_window_ends_with_its_number_of_documents_or_tokens(tmp_path: Path) -> None:
    folder = write_jsonl(tmp_path / "web", [[9] * 20])
    by_documents = make_lanes(folder, lanes=1, shuffle_buffer=4).at(0, 20)
    by_tokens = make_lanes(folder, lanes=1, shuffle_buffer=10, block_tokens=10, window_blocks=2).at(0, 20)
    assert {len(documents.ends) for documents in by_documents.documents} == {4}
    assert {len(documents.ends) for documents in by_tokens.documents} == {2}


def test_rows_are_shuffled_within_a_window_alone(tmp_path: Path) -> None:
    lanes = make_lanes(write_jsonl(tmp_path / "web", [[15] * 20]), lanes=1, shuffle_buffer=5)
    examples = [pieces[0][1] for _, pieces in read(lanes, 20)]
    assert examples != sorted(examples)
    for first in range(0, 20, 5):
        assert sorted(examples[first : first + 5]) == list(range(first, first + 5))


def test_it_goes_back_to_what_is_kept_and_no_further(folder: Path) -> None:
    lanes = make_lanes(folder)
    rows = read(lanes, 20)
    assert addresses(lanes.at(3, 20)) == rows[3:]
    lanes = make_lanes(folder)
    lanes.keep_rows = 10
    read(lanes, 20)
    assert addresses(lanes.at(10, 20)) == rows[10:]
    with pytest.raises(SourceError) as error:
        lanes.at(9, 10)
    assert str(error.value) == (
        "a stream is read forward: it is at row 20 and can go back to row 10, not to 9. "
        "Load a state of that step, or start with a new loader."
    )
    with pytest.raises(SourceError, match="can go back to row 10, not to 2"):
        lanes.state_at(2)


def test_what_lies_between_is_skipped(folder: Path) -> None:
    assert addresses(make_lanes(folder).at(50, 55)) == read(make_lanes(folder), 55)[50:]


def test_a_state_of_other_lanes_files_or_none_is_refused(folder: Path, tmp_path: Path) -> None:
    lanes = make_lanes(folder)
    state = lanes.state_at(5)
    more = write_jsonl(tmp_path / "more", [*FILES, [3]])
    for other, found, message in (
        (make_lanes(folder, lanes=3), state, "stream web had 2 lanes, has 3. Put sources.web.lanes back."),
        (
            make_lanes(more),
            state,
            f"stream web: {more} had 3 files, has 4. What a lane reads depends on it: put the files back.",
        ),
        (make_lanes(folder), {}, "the state of stream web is damaged. Give what state_dict returned."),
    ):
        with pytest.raises(ResumeError) as error:
            other.load(found)
        assert str(error.value) == message


def test_order_is_pinned(folder: Path) -> None:
    """Golden: whoever changes the order of rows changes every run that is to be continued."""
    lanes = make_lanes(folder, Stretch(0, PLAIN), Stretch(5, RowSettings(24, "concat", 1)))
    assert [pieces[0] for _, pieces in read(lanes, 10)] == [
        (0, 2, 0, 6),
        (1, 2, 16, 26),
        (0, 0, 0, 13),
        (1, 2, 0, 16),
        (0, 1, 0, 16),
        (1, 0, 0, 9),
        (0, 1, 16, 31),
        (0, 4, 0, 24),
        (0, 5, 3, 10),
        (0, 4, 24, 45),
    ]
