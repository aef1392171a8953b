"""Mixtures to draw and to write: what the tests of mixtures and of fades share."""

from fractions import Fraction

from hypothesis import strategies as st

from trivium.rows.fade import MAX_FADE_ROWS, SHAPES
from trivium.rows.mixture import Fade, FadeOut, Mixture, StageMixture, normalised

BOUND = Fraction(168, 100)  # rows by which a source may be off

names = st.sampled_from(["books", "chat", "code", "math", "papers", "web", "wiki"])
weights = (st.integers(0, 10) | st.integers(0, 10**9)).map(Fraction)
some_weights = st.dictionaries(names, weights, min_size=1).filter(lambda given: any(given.values()))
shares_of_some = some_weights.map(normalised)
mixtures = shares_of_some.map(Mixture.from_shares)
row_numbers = st.integers(0, 2000) | st.integers(0, 2**50)
fade_lengths = st.integers(1, 300) | st.integers(1, MAX_FADE_ROWS)


@st.composite
def stages(draw: st.DrawFn) -> StageMixture:
    """Stages with a fade from another mixture, into the next one's, with both, and without; centred or not."""
    new = draw(mixtures)
    out = None
    fade_end = 0
    fade = None
    if draw(st.booleans()):
        half, center = draw(fade_lengths) // 2, draw(st.booleans())
        fade = Fade(2 * half, half if center else 0, draw(st.sampled_from(SHAPES)))
        fade_end = fade.rows - fade.before
    if draw(st.booleans()):
        half = draw(fade_lengths) // 2
        first = fade_end + draw(row_numbers)
        out = FadeOut(draw(mixtures), first, Fade(2 * half, half, draw(st.sampled_from(SHAPES))))
    if fade is None:
        return StageMixture(new, out=out)
    given = draw(row_numbers) if fade.before else 0
    return StageMixture(new, draw(mixtures), draw(row_numbers), fade, given, out)


def shares(**decimals: str) -> dict[str, Fraction]:
    """Exact shares: `shares(web="0.75", code="0.25")`."""
    return {name: Fraction(decimal) for name, decimal in decimals.items()}


def named(stage: StageMixture, first: int, count: int) -> list[str]:
    """The sources of rows, by name."""
    return [stage.names[source] for source in stage.deal(first, count)[0]]
