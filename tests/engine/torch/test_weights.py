"""Initial weights come from the seed and from names."""

from dataclasses import replace

import torch

from tests.support.batches import TINY
from trivium.engine.torch.model import Decoder
from trivium.engine.torch.weights import init_weight, init_weights


def model(**changes: int) -> dict[str, torch.Tensor]:
    decoder = Decoder(replace(TINY, **changes), torch.float32)  # type: ignore[arg-type]
    init_weights(decoder, seed=1)
    return {name: parameter.detach() for name, parameter in decoder.named_parameters()}


def test_parameters_are_counted_as_the_spec_says() -> None:
    for spec in (TINY, replace(TINY, qk_norm=True, tied_embeddings=True)):
        decoder = Decoder(spec, torch.float32)
        padding = (spec.padded_vocab - spec.vocab) * spec.width * (1 if spec.tied_embeddings else 2)
        assert sum(parameter.numel() for parameter in decoder.parameters()) == spec.parameters + padding


def test_more_layers_change_nothing_in_those_before() -> None:
    two, three = model(), model(layers=3)
    same = {name for name in two if torch.equal(two[name], three[name])}
    assert two.keys() - same == {
        f"layers.{layer}.{part}.weight" for layer in (0, 1) for part in ("attention.output", "feed_forward.down")
    }  # these are scaled by the number of layers


def test_weights_have_the_spread_that_was_asked_for() -> None:
    shape = torch.Size((512, 512))
    wide = init_weight("layers.0.attention.query.weight", shape, TINY, seed=1)
    narrow = init_weight("layers.0.attention.output.weight", shape, TINY, seed=1)
    torch.testing.assert_close(wide.std(), torch.tensor(TINY.init_std), rtol=0.01, atol=0)
    torch.testing.assert_close(narrow.std(), torch.tensor(TINY.init_std / 2), rtol=0.01, atol=0)
    assert abs(wide.mean()) < 0.002
    assert not torch.equal(wide, init_weight("layers.1.attention.query.weight", shape, TINY, seed=1))


def test_the_padded_vocabulary_does_not_change_the_weights() -> None:
    small = init_weight("embedding.weight", torch.Size((128, 32)), TINY, seed=1)
    large = init_weight("embedding.weight", torch.Size((256, 32)), TINY, seed=1)
    assert torch.equal(small[: TINY.vocab], large[: TINY.vocab])
    assert not small[TINY.vocab :].any()
