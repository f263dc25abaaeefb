"""Orthogonalization against the singular value decomposition and PyTorch's Newton-Schulz iteration."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.optim._muon import _zeropower_via_newtonschulz

from hornbook.optim.muon import _COEFFICIENTS, _MARGINS, orthogonalize

POLYNOMIALS = ("polar_express", "newton_schulz", "polar_express_4")
SHAPES = [(24, 24), (40, 16), (16, 40), (1, 9), (9, 1), (20, 24)]


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def mapped(values: Tensor, polynomials: str) -> Tensor:
    """What the polynomials make of singular values, each of which they change alone."""
    for a, b, c in _COEFFICIENTS[polynomials]:
        values = a * values + b * values**3 + c * values**5
    return values


@pytest.mark.parametrize("polynomials", POLYNOMIALS)
@pytest.mark.parametrize("shape", SHAPES)
def test_singular_values_follow_the_polynomials_and_vectors_stay(shape, polynomials) -> None:
    matrix = drawn(*shape)
    (found,) = orthogonalize([matrix], polynomials)
    u, values, vt = torch.linalg.svd(matrix.double(), full_matrices=False)
    values = values / values.norm() / _MARGINS[polynomials]
    expected = u @ mapped(values, polynomials).diag() @ vt
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("polynomials", "smallest", "bounds"),
    [*zip(POLYNOMIALS, (1e-3, 1e-2, 5e-3), ((0.85, 1.15), (0.68, 1.21), (0.89, 1.09)), strict=True)],
)
def test_singular_values_come_out_within_the_documented_bounds(polynomials, smallest, bounds) -> None:
    values = mapped(torch.linspace(smallest, 1.0, 100_000, dtype=torch.float64) / _MARGINS[polynomials], polynomials)
    assert bounds[0] <= float(values.min()) and float(values.max()) <= bounds[1]


@pytest.mark.parametrize("shape", SHAPES)
def test_bf16_products_equal_those_of_pytorch(shape) -> None:
    matrix = drawn(*shape)
    expected = _zeropower_via_newtonschulz(matrix, (3.4445, -4.7750, 2.0315), 5, 1e-7)
    (found,) = orthogonalize([matrix.bfloat16()], "newton_schulz")
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, expected, rtol=0, atol=0.02)


@pytest.mark.parametrize("polynomials", POLYNOMIALS)
def test_zero_stays_zero_and_size_does_not_matter(polynomials) -> None:
    zero, small, large = orthogonalize([torch.zeros(4, 6), 1e-4 * drawn(4, 6), 1e4 * drawn(4, 6)], polynomials)
    assert not zero.any()
    torch.testing.assert_close(small, large, rtol=1e-4, atol=1e-4)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from([(3, 5), (5, 3), (4, 4), (2, 12)])), max_size=6))
def test_batching_by_shape_changes_neither_order_nor_shape(chosen) -> None:
    """Stacks and single matrices of several shapes, each the same as by itself."""
    matrices = [drawn(*(stack,) * bool(stack), *shape, seed=number) for number, (stack, shape) in enumerate(chosen)]
    together = orthogonalize(matrices, "polar_express")
    for matrix, found in zip(matrices, together, strict=True):
        (alone,) = orthogonalize([matrix], "polar_express")
        assert found.shape == matrix.shape
        torch.testing.assert_close(found, alone, rtol=1e-5, atol=1e-5)
