import pytest

from trivium.ask.generate.calculator import LONGEST, calculate


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("48/2", "24"),
        ("12/60", "0.2"),
        (" 2 + 3 * 4 ", "14"),
        ("(2+3)*4", "20"),
        ("-(2+3)*-4", "20"),
        ("10-4-3", "3"),
        ("100/10/5", "2"),
        ("0.1+0.2", "0.3"),
        (".5*4", "2"),
        ("1,200*2", "2400"),
        ("10/3", "3.333333333"),
        ("7//2", "3"),
        ("-7//2", "-4"),
        ("17%5", "2"),
        ("30*50%", "15"),
        ("20%+1", "1.2"),
        ("9" * 60 + "*10", "9" * 60 + "0"),
        ('"mississippi".count("s")', "4"),
        ("'banana'.count('an')", "2"),
        ('"don\'t".count("t")', "1"),
        ('"".count("a")', "0"),
    ],
)
def test_sums_and_letters(question: str, answer: str) -> None:
    assert calculate(question) == answer


@pytest.mark.parametrize(
    "question",
    [
        "",
        "1/0",
        "5%0",
        "2**9",
        "2+",
        "(2",
        "2)",
        "1 2",
        "one",
        "__import__('os').getcwd()",
        '"a".count("")',
        '"a".upper()',
        "9" * (LONGEST + 1),
        "(" * 100 + "1" + ")" * 99,
        "-" * 100 + "1",
        "1e9",
    ],
)
def test_what_is_no_sum_has_no_answer(question: str) -> None:
    assert calculate(question) is None
