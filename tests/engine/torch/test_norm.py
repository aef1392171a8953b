"""The written-out norm is torch's, backward too."""

import torch
from torch.nn.functional import rms_norm

from trivium.engine.torch.norm import RMSNorm


def test_norm_and_gradients_are_those_of_torch() -> None:
    random = torch.Generator().manual_seed(0)
    vectors = torch.randn(3, 5, 16, generator=random, requires_grad=True)
    norm = RMSNorm(16, eps=1e-6)
    torch.nn.init.normal_(norm.weight, generator=random)
    got, wanted = norm(vectors), rms_norm(vectors, (16,), norm.weight, 1e-6)
    torch.testing.assert_close(got, wanted)
    outer = torch.randn(3, 5, 16, generator=random)
    inputs = (vectors, norm.weight)
    torch.testing.assert_close(torch.autograd.grad(got, inputs, outer), torch.autograd.grad(wanted, inputs, outer))


def test_bfloat16_comes_out_as_it_came_in() -> None:
    vectors = torch.randn(4, 16).bfloat16()
    normed = RMSNorm(16, eps=1e-6)(vectors)
    assert normed.dtype == torch.bfloat16
    torch.testing.assert_close(normed.float().square().mean(-1), torch.ones(4), rtol=2e-2, atol=0)
