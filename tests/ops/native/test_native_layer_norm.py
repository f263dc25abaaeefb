"""The native layer and RMS norm of each instruction set against PyTorch's in float64."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from native_forms import NativeCalls, all_native, forms, threads
from torch.nn import functional

from hornbook.ops import layers
from hornbook.ops.native import layer_norm as module
from hornbook.ops.native.kernels import using

DTYPES = (torch.float32, torch.bfloat16)


def exact(x, weight, bias, gradient):
    """The norm and its three gradients in float64."""
    leaves = [tensor.double().requires_grad_() for tensor in (x, weight, bias)]
    y = functional.layer_norm(leaves[0], weight.shape, leaves[1], leaves[2], 1e-5)
    return y.detach(), *torch.autograd.grad(y, leaves, gradient.double())


def assert_near(tensor, right, tolerance):
    """Largest difference at most ``tolerance`` of one more than the largest value."""
    assert tensor.shape == right.shape
    assert tensor.numel() == 0 or (tensor.double() - right).abs().max() <= tolerance * (1.0 + right.abs().max())


def compute(form, x, weight, bias, gradient, residual):
    y, *statistics = module.norm(x, weight, bias, 1e-5, form.isa)
    return y, *module.norm_backward(gradient, x, weight, bias, *statistics, residual, form.isa, False)


@settings(max_examples=60, deadline=None)
@given(
    num_rows=st.integers(0, 70),
    size=st.integers(2, 100),
    gap=st.integers(0, 5),
    dtype=st.sampled_from(DTYPES),
    has_residual=st.booleans(),
    num_threads=st.integers(1, 2),
    seed=st.integers(0, 99),
)
def test_norm_and_gradients(num_rows, size, gap, dtype, has_residual, num_threads, seed):
    draws = torch.Generator().manual_seed(seed)
    x = (torch.randn(num_rows, size + gap, generator=draws) + 3.0).to(dtype)[:, gap:]
    weight, bias = torch.randn(2, size, generator=draws)
    gradient, residual = torch.randn(2, num_rows, size, generator=draws).to(dtype)
    y, of_x, of_weight, of_bias = exact(x, weight, bias, gradient)
    if has_residual:
        of_x = of_x + residual.double()
    # what rounding the mean costs grows as the values of a row come close to each other
    spread = x.double().var(1, correction=0).add(1e-5).sqrt().min() if num_rows else 1.0
    fp32_tolerance = 1e-6 * (10.0 + 10.0 / float(spread))
    for form in forms():
        with threads(num_threads):
            ours = compute(form, x, weight, bias, gradient, residual if has_residual else None)
        tolerance = fp32_tolerance + (2**-8 if dtype == torch.bfloat16 else 0.0)
        for own, right in zip(ours[:2], (y, of_x), strict=True):
            assert_near(own, right, tolerance)
        for own, right in zip(ours[2:], (of_weight, of_bias), strict=True):  # summed in fp32, whatever the dtype
            assert_near(own, right, 10 * fp32_tolerance)


@settings(max_examples=60, deadline=None)
@given(
    num_rows=st.integers(0, 70),
    size=st.integers(1, 100),
    gap=st.integers(0, 5),
    dtype=st.sampled_from(DTYPES),
    has_gain=st.booleans(),
    has_residual=st.booleans(),
    seed=st.integers(0, 99),
)
def test_rms_norm_and_gradients(num_rows, size, gap, dtype, has_gain, has_residual, seed):
    draws = torch.Generator().manual_seed(seed)
    x = torch.randn(num_rows, size + gap, generator=draws).to(dtype)[:, gap:]
    weight = torch.randn(size, generator=draws) if has_gain else None
    gradient, residual = torch.randn(2, num_rows, size, generator=draws).to(dtype)
    leaves = [tensor.double().requires_grad_() for tensor in (x, *([weight] if has_gain else []))]
    y = functional.rms_norm(leaves[0], (size,), leaves[1] if has_gain else None, 1e-5)
    of_x, *of_weight = torch.autograd.grad(y, leaves, gradient.double())
    of_x = of_x + residual.double() if has_residual else of_x
    for form in forms():
        own_y, *statistics = module.norm(x, weight, None, 1e-5, form.isa, True)
        others = (weight, None, *statistics, residual if has_residual else None, form.isa, True)
        ours = (own_y, *module.norm_backward(gradient, x, *others))
        small = x.double().square().mean(1).add(1e-5).sqrt().min() if num_rows else 1.0
        tolerance = 3e-6 * (1.0 + 1.0 / float(small))
        for own, right in zip(ours[:2], (y.detach(), of_x), strict=True):
            assert_near(own, right, tolerance + (2**-8 if dtype == torch.bfloat16 else 0.0))
        for own, right in zip(ours[2:], of_weight, strict=False):
            assert_near(own, right, 10 * tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
def test_same_bits_from_any_number_of_threads(dtype):
    draws = torch.Generator().manual_seed(0)
    x, gradient = torch.randn(2, 75, 37, generator=draws).to(dtype)
    weight, bias = torch.randn(2, 37, generator=draws)
    for form in forms():
        results = []
        for count in (1, 2, 3):
            with threads(count):
                results.append(compute(form, x, weight, bias, gradient, None))
        for other in results[1:]:
            assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.slow
def test_operators_are_registered_properly():
    x, (weight, bias) = torch.randn(4, 5, 12), torch.randn(2, 12)
    isa = forms()[0].isa
    for parameters, is_rms in (((weight, bias), False), ((weight, None), True), ((None, None), True)):
        torch.library.opcheck(module.norm, (x, *parameters, 1e-5, isa, is_rms))
        y, *statistics = module.norm(x, *parameters, 1e-5, isa, is_rms)
        assert y._base is None, "FSDP warns of blocks that return a view"
        gradient = torch.randn(4, 5, 12)
        arguments = (gradient, x, *parameters, *statistics)
        torch.library.opcheck(module.norm_backward, (*arguments, None, isa, is_rms))
        torch.library.opcheck(module.norm_backward, (*arguments, gradient, isa, is_rms))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_residual_branch_gets_the_sum_of_both_gradients(dtype):
    draws = torch.Generator().manual_seed(0)
    x, of_norm, of_x = torch.randn(3, 2, 9, 32, generator=draws).to(dtype)
    weight, bias = torch.randn(2, 32, generator=draws)

    def gradients():
        leaves = [tensor.clone().requires_grad_() for tensor in (x, weight, bias)]
        beside, normed = layers.norm_beside(*leaves, 1e-5)
        assert torch.equal(beside, x)
        return torch.autograd.grad((beside, normed), leaves, (of_x, of_norm))

    _, right, of_weight, of_bias = exact(x.flatten(0, 1), weight, bias, of_norm.flatten(0, 1))
    with using(all_native()), NativeCalls() as calls:
        ours = gradients()
    assert calls.names == {"norm", "norm_backward"}
    right = right.view_as(x) + of_x.double()
    tolerance = 3e-5 if dtype == torch.float32 else 2**-7
    for own, expected in zip(ours, (right, of_weight, of_bias), strict=True):
        torch.testing.assert_close(own.double(), expected, rtol=tolerance, atol=tolerance)


def test_gain_and_bias_gradients_of_many_rows_do_not_stop_growing():
    x, weight, bias = torch.randn(16_384, 16).bfloat16(), torch.ones(16), torch.zeros(16)
    gradient = torch.full((16_384, 16), 0.01).bfloat16()
    _, _, _, of_bias = exact(x, weight, bias, gradient)
    for form in forms():
        *_, ours = compute(form, x, weight, bias, gradient, None)
        torch.testing.assert_close(ours.double(), of_bias, rtol=1e-5, atol=0.0)
