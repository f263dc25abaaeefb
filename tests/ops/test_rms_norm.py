"""RMS norms, rotations and gates against PyTorch's autograd."""

import pytest
import torch
from torch.nn import functional

from hornbook.ops.attention import rotate
from hornbook.ops.layers import ACTIVATIONS, gated, norm_beside


@pytest.mark.parametrize("has_gain", [True, False])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 1e-2)])
def test_rms_norm(has_gain: bool, dtype: torch.dtype, tolerance: float) -> None:
    draws = torch.Generator().manual_seed(0)
    x = torch.randn(5, 3, 24, generator=draws).to(dtype).requires_grad_()
    gain = (1 + torch.randn(24, generator=draws)).requires_grad_() if has_gain else None
    gradient = torch.randn(5, 3, 24, generator=draws).to(dtype)
    exact = x.detach().double().requires_grad_()
    exact_gain = gain.detach().double().requires_grad_() if has_gain else None
    expected = functional.rms_norm(exact, (24,), exact_gain, 1e-5)
    expected.backward(gradient.double())
    same, found = norm_beside(x, gain, None, 1e-5, is_rms=True)
    assert same is x and found.dtype == dtype
    found.backward(gradient)
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(x.grad.double(), exact.grad, rtol=tolerance, atol=4 * tolerance)
    if has_gain:
        torch.testing.assert_close(gain.grad.double(), exact_gain.grad, rtol=tolerance, atol=4 * tolerance)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gates(activation: str) -> None:
    u = torch.randn(7, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda u: gated(u, activation), u)
    expected = ACTIVATIONS[activation](u[:, :6]) * u[:, 6:]
    torch.testing.assert_close(gated(u, activation), expected)


def test_a_rotation_is_a_complex_product() -> None:
    """Columns i and i + R/2 are the real and the imaginary part; further columns stay."""
    draws = torch.Generator().manual_seed(0)
    x, angles = torch.randn(2, 3, 4, 10, generator=draws), torch.randn(2, 3, 4, generator=draws)
    turned = rotate(x, angles.cos(), angles.sin())
    product = torch.complex(x[..., :4], x[..., 4:8]) * torch.exp(1j * angles).unsqueeze(2)
    torch.testing.assert_close(turned, torch.cat((product.real, product.imag, x[..., 8:]), -1))
