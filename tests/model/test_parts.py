"""Names of parts -> parameters, and back to the fewest names."""

from dataclasses import replace

import pytest

from tests.support.batches import TINY
from trivium.model.parts import all_parts, last_layer, name_problem, part_of, parts_of, shortest_names

SPEC = replace(TINY, layers=4)


@pytest.mark.parametrize(
    ("names", "fewest"),
    [
        ([], ()),
        (["norm", "embedding"], ("embedding", "norm")),
        (["layers.0", "layers.1", "layers.3"], ("layers.0-1", "layers.3")),
        (["layers.0-3"], ("attention", "feed_forward")),
        (["attention", "layers.2-3"], ("layers.2-3", "layers.0-1.attention")),
        (["layers.1.feed_forward", "layers.1.attention"], ("layers.1",)),
        (["attention"], ("attention",)),
    ],
    ids=str,
)
def test_parts_have_one_shortest_form(names: list[str], fewest: tuple[str, ...]) -> None:
    parts = parts_of(names, SPEC)
    assert shortest_names(parts, SPEC) == fewest
    assert parts_of(fewest, SPEC) == parts


def test_all_parts_are_all_of_it() -> None:
    assert parts_of(["embedding", "unembedding", "norm", "layers.0-3"], SPEC) == all_parts(SPEC)
    tied = replace(SPEC, tied_embeddings=True)
    assert parts_of(["unembedding"], tied) == parts_of(["embedding"], tied) == {"embedding"}
    assert parts_of(["embedding", "norm", "layers.0-3"], tied) == all_parts(tied)


@pytest.mark.parametrize(
    ("parameter", "part"),
    [
        ("embedding.weight", "embedding"),
        ("norm.weight", "norm"),
        ("layers.12.attention.query_norm.weight", "layers.12.attention"),
        ("layers.0.attention_norm.weight", "layers.0.attention"),
        ("layers.0.feed_forward_norm.weight", "layers.0.feed_forward"),
        ("layers.0.feed_forward.down.weight", "layers.0.feed_forward"),
    ],
)
def test_every_parameter_has_a_part(parameter: str, part: str) -> None:
    assert part_of(parameter) == part


@pytest.mark.parametrize(
    "name", ["layers", "layers.", "layers.1-", "layers.-1", "layers.1.mlp", "head", "", "layers.1 "]
)
def test_other_names_are_none(name: str) -> None:
    assert "is not a part of the model" in (name_problem(name) or "")


def test_ranges_have_a_first_and_a_last_layer() -> None:
    assert name_problem("layers.5-2") == "ends before it begins. Write layers.2-5."
    assert name_problem("layers.2-20000") == "goes beyond 10,000 layers. Lower it."
    assert (last_layer("layers.2-5.attention"), last_layer("layers.3"), last_layer("norm")) == (5, 3, None)
