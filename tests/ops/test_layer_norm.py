"""Layer norm: PyTorch's own numbers, but for gain and bias gradients of bf16, which add up in fp32 on every device."""

import pytest
import torch
from torch.nn import functional

from hornbook.ops.layers import affine_dtype, norm_beside

DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))


def example(*shape, dtype=torch.bfloat16, device="cpu", center=0.0):
    """Inputs, a gain, a bias, and gradients whose sum over tokens grows with their number."""
    draws = torch.Generator().manual_seed(0)
    x, gradient = (torch.randn(shape, generator=draws) for _ in range(2))
    weight, bias = (torch.randn(shape[-1], generator=draws).to(device).requires_grad_() for _ in range(2))
    x = (x + center).to(dtype).to(device).requires_grad_()
    return x, weight, bias, (1e-4 * gradient + 3e-5 * (1 + x.detach().cpu())).to(dtype).to(device)


def exact_gradients(x, weight, bias, gradient):
    """In fp64, of the same values."""
    inputs = [tensor.detach().double().requires_grad_() for tensor in (x, weight, bias)]
    y = functional.layer_norm(inputs[0], weight.shape, *inputs[1:], 1e-5)
    return torch.autograd.grad(y, inputs, gradient.double())


def relative_error(found, expected):
    return float((found.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", [(16384, 48), (64, 256, 48), (300, 33), (1, 16)], ids=str)
def test_bf16_gradients_are_near_the_truth_however_many_tokens(shape, device):
    example_ = example(*shape, device=device)
    x, weight, bias, gradient = example_
    y = norm_beside(x, weight, bias, 1e-5)[1]
    assert y.dtype == torch.bfloat16
    found = torch.autograd.grad(y, (x, weight, bias), gradient)
    assert [tensor.dtype for tensor in found] == [torch.bfloat16, torch.float32, torch.float32]
    for ours, expected in zip(found, exact_gradients(*example_), strict=True):
        assert ours.shape == expected.shape
        assert relative_error(ours, expected) < 4e-3


def test_tokens_far_from_zero_lose_no_accuracy():
    """A mean that is rounded to bf16 would be 1 % of the standard deviation off."""
    example_ = example(4096, 48, center=5.0)
    x, weight, bias, gradient = example_
    found = torch.autograd.grad(norm_beside(x, weight, bias, 1e-5)[1], (x, weight, bias), gradient)
    for ours, expected in zip(found, exact_gradients(*example_), strict=True):
        assert relative_error(ours, expected) < 4e-3


def test_gradients_that_are_not_contiguous():
    x, weight, bias, gradient = example(8, 16, 32)
    strided = gradient.transpose(0, 1).contiguous().transpose(0, 1)
    assert not strided.is_contiguous()
    y = norm_beside(x, weight, bias, 1e-5)[1]
    expected = torch.autograd.grad(y, (x, weight, bias), gradient, retain_graph=True)
    for ours, theirs in zip(torch.autograd.grad(y, (x, weight, bias), strided), expected, strict=True):
        assert torch.equal(ours, theirs)
    across = x.transpose(0, 1)
    found = torch.autograd.grad(norm_beside(across, weight, bias, 1e-5)[1], (x, weight, bias), gradient.transpose(0, 1))
    assert torch.equal(found[0], expected[0])
    torch.testing.assert_close(found[1:], expected[1:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_tokens_have_no_gradient(dtype):
    x, weight, bias, gradient = example(0, 16, dtype=dtype)
    found = torch.autograd.grad(norm_beside(x, weight, bias, 1e-5)[1], (x, weight, bias), gradient)
    assert [list(tensor.shape) for tensor in found] == [[0, 16], [16], [16]]
    assert not found[1].any() and not found[2].any()


def test_fp32_is_pytorchs_to_the_bit():
    x, weight, bias, gradient = example(4096, 48, dtype=torch.float32)
    results = []
    for y in (norm_beside(x, weight, bias, 1e-5)[1], functional.layer_norm(x, weight.shape, weight, bias, 1e-5)):
        results.append((y, *torch.autograd.grad(y, (x, weight, bias), gradient)))
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(*results, strict=True))


def test_evaluation_computes_what_training_does():
    x, weight, bias, _ = example(64, 48)
    trained = norm_beside(x, weight, bias, 1e-5)[1]
    with torch.no_grad():
        assert torch.equal(norm_beside(x, weight, bias, 1e-5)[1], trained)


def test_other_devices_get_gain_and_bias_in_the_dtype_of_the_activations():
    """CUDA takes no other; the meta device stands for it where there is none."""
    assert affine_dtype(torch.bfloat16, torch.device("cuda")) == torch.bfloat16
    assert affine_dtype(torch.bfloat16, torch.device("cpu")) == torch.float32
    assert {affine_dtype(torch.float32, torch.device(name)) for name in ("cpu", "cuda")} == {torch.float32}
    x, weight, bias = (torch.ones(4, device="meta", dtype=dtype) for dtype in (torch.bfloat16, *[torch.float32] * 2))
    assert norm_beside(x, weight, bias, 1e-5)[1].dtype == torch.bfloat16
