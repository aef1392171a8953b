"""The fewest items behind something, whatever they are, in no more trials than were promised."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from trivium.why.bisect import behind, reruns_needed


@given(st.integers(1, 200), st.data())
def test_those_behind_it_are_found_in_as_many_trials_as_promised(size: int, data: st.DataObject) -> None:
    guilty = data.draw(st.sets(st.integers(0, size - 1), min_size=1, max_size=4))
    trials: list[Sequence[int]] = []

    def is_gone(chosen: Sequence[int]) -> bool:
        trials.append(chosen)
        return guilty <= set(chosen)

    found = behind(range(size), is_gone)
    assert found is not None
    assert sorted(found) == sorted(guilty)
    one, more = reruns_needed(size)
    assert len(trials) <= one + more * (len(guilty) - 1)


def test_what_stays_without_all_of_them_has_none_behind_it() -> None:
    assert behind([1, 2, 3], lambda chosen: False) is None


def test_any_one_of_several_that_do_is_enough() -> None:
    assert behind(range(8), lambda chosen: bool({2, 5} & set(chosen))) == [2]
