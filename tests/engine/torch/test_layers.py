"""Rotary positions and norms: what they compute, and their gradients."""

import torch
from torch.nn.functional import rms_norm

from trivium.engine.torch.layers import RMSNorm, Rotation
from trivium.model.spec import RopeSpec

CPU = torch.device("cpu")


def test_a_pair_of_channels_is_rotated_by_position_times_frequency() -> None:
    table = Rotation.table(RopeSpec(theta=100.0), head_dim=4, seq_len=8, device=CPU)
    heads = torch.zeros(1, 8, 1, 4)
    heads[..., 0] = 1  # channels 0 and 2 are a pair that rotates by 1 a position, 1 and 3 by 0.1
    heads[..., 1] = 1
    rotated = table.apply_rotary(heads)[0, :, 0]
    positions = torch.arange(8.0)
    expected = torch.stack((positions.cos(), (positions / 10).cos(), positions.sin(), (positions / 10).sin()), dim=-1)
    torch.testing.assert_close(rotated, expected)


def test_the_gradient_is_the_rotation_back() -> None:
    table = Rotation.table(RopeSpec(), head_dim=8, seq_len=5, device=CPU)
    rotation = Rotation(table.cos.double(), table.sin.double()).at(torch.tensor([[0, 1, 2, 0, 1], [0, 1, 2, 3, 4]]))
    heads = torch.randn(2, 5, 3, 8, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(rotation.apply_rotary, (heads,))


def test_positions_choose_their_rotations() -> None:
    table = Rotation.table(RopeSpec(), head_dim=8, seq_len=5, device=CPU)
    heads = torch.randn(1, 5, 3, 8)
    restarted = table.at(torch.tensor([[0, 1, 0, 1, 2]])).apply_rotary(heads)
    torch.testing.assert_close(
        restarted[:, 2:], Rotation(table.cos[:, :3], table.sin[:, :3]).apply_rotary(heads[:, 2:])
    )


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
