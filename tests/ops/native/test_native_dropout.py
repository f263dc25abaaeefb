"""The native dropout against the mask of `hornbook.ops.dropout`, form by form, with and without a residual."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from native_forms import NativeCalls, all_native, forms, threads

from hornbook.model.layers import Dropout
from hornbook.ops.dropout import keep_mask
from hornbook.ops.native.dropout import dropout
from hornbook.ops.native.kernels import Kernels, using

TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 8e-3}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@settings(max_examples=40, deadline=None)
@given(
    tokens=st.integers(0, 40),
    columns=st.integers(1, 70),
    adds=st.booleans(),
    probability=st.sampled_from([0.0, 0.1, 0.9]),
    is_strided=st.booleans(),
    num_threads=st.integers(1, 3),
)
def test_it_is_the_formula(dtype, tokens, columns, adds, probability, is_strided, num_threads):
    draws = torch.Generator().manual_seed(tokens)
    x, residual = torch.randn(2, tokens, columns, generator=draws).to(dtype)
    if is_strided:
        x = x.t().contiguous().t()
    keys = torch.randint(1 << 32, (tokens,), generator=draws)
    right = x.double() * keep_mask(keys, 3, columns, probability) / (1.0 - probability) + (residual if adds else 0.0)
    for form in forms():
        with threads(num_threads):
            ours = dropout(x, residual if adds else None, keys, 3, probability, form.isa)
        assert ours.dtype == dtype
        assert torch.allclose(ours.double(), right, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_the_layer_calls_it_and_its_gradients_are_those_of_autograd(dtype):
    draws = torch.Generator().manual_seed(0)
    x, residual, upstream = (torch.randn(2, 5, 33, generator=draws).to(dtype) for _ in range(3))
    leaves, keys = [x.requires_grad_(), residual.requires_grad_()], torch.randint(1 << 32, (2, 5), generator=draws)
    layer = Dropout(0.3, site=2).train()
    right = torch.autograd.grad(layer(x, keys, residual), leaves, upstream)
    for form in forms():
        with using(Kernels(why="test", forms=dict.fromkeys(all_native().forms, form.isa))), NativeCalls() as calls:
            ours = torch.autograd.grad(layer(x, keys, residual), leaves, upstream)
        assert calls.names == {"dropout"}
        for own, expected in zip(ours, right, strict=True):
            assert torch.allclose(own, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


def test_the_operator_passes_opcheck():
    x, residual = torch.randn(2, 3, 5, requires_grad=True), torch.randn(2, 3, 5, requires_grad=True)
    keys, isa = torch.arange(6).view(2, 3), forms()[0].isa
    tests = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    for given_residual in (residual, None):
        torch.library.opcheck(dropout, (x, given_residual, keys, 1, 0.2, isa), test_utils=tests)
