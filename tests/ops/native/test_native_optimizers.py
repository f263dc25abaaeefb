"""The native polynomials of matrices against float64, form by form, and where an orthogonalization uses them."""

from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from native_forms import forms, threads

from hornbook.ops.native.kernels import Kernels, using
from hornbook.ops.native.optimizers import apply_by_pytorch, apply_polynomials
from hornbook.optim.muon import _COEFFICIENTS, orthogonalize

GENTLE = ((1.875, -1.25, 0.375), (1.5, -0.5, 0.25))
"""Polynomials that make no singular value, and no rounding, much larger."""


@settings(max_examples=40, deadline=None)
@given(
    count=st.integers(0, 4),
    rows=st.integers(1, 140),
    further=st.integers(0, 70),
    num_threads=st.integers(1, 3),
)
def test_they_are_the_formula(count, rows, further, num_threads):
    x = torch.randn(count, rows, rows + further, generator=torch.Generator().manual_seed(rows))
    x = (x / (1.01 * torch.linalg.matrix_norm(x, keepdim=True))).bfloat16()
    right = apply_by_pytorch(x.double(), GENTLE)
    for form in forms():
        with threads(num_threads):
            ours = apply_polynomials(form, x, GENTLE)
        assert ours.dtype == torch.bfloat16
        torch.testing.assert_close(ours.double(), right, rtol=0, atol=0.02)


def test_the_number_of_threads_and_other_matrices_change_no_bit():
    x = torch.randn(5, 70, 90, generator=torch.Generator().manual_seed(0)).div(80).bfloat16()
    for form in forms():
        found = []
        for num_threads in (1, 3):
            with threads(num_threads):
                found.append(apply_polynomials(form, x, _COEFFICIENTS["polar_express"]))
        found.append(torch.cat([apply_polynomials(form, one[None], _COEFFICIENTS["polar_express"]) for one in x]))
        assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


@pytest.mark.parametrize("shape", [(24, 40), (40, 24)])
def test_bf16_matrices_are_orthogonalized_natively_where_that_is_chosen(shape):
    matrix, chosen = torch.randn(shape, generator=torch.Generator().manual_seed(0)), forms()[0].isa
    (expected,) = orthogonalize([matrix.bfloat16()], "polar_express")
    with (
        patch("hornbook.optim.muon.apply_polynomials", wraps=apply_polynomials) as native,
        using(Kernels(why="test", forms={"orthogonalize_bf16": chosen})),
    ):
        orthogonalize([matrix], "polar_express")
        assert not native.called
        (found,) = orthogonalize([matrix.bfloat16()], "polar_express")
        assert native.called
    torch.testing.assert_close(found, expected, rtol=0, atol=0.04)
