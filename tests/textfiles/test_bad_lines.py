"""Lines that hold no document, by reason."""

from trivium.textfiles.bad_lines import BadLines
from trivium.textfiles.read import InputLine


def test_reasons_do_not_grow_with_the_number_of_lines() -> None:
    bad, joined = BadLines(), BadLines()
    for number in range(1000):
        bad.add(f"reason {number}", InputLine("a.jsonl", number, "", "jsonl", 0))
    joined.join(bad)
    joined.join(bad)
    assert len(bad.counts) == len(joined.counts) == 51
    assert (bad.counts["wrong in another way"], joined.counts["wrong in another way"]) == (950, 1900)
    assert bad.harmful == 1000
