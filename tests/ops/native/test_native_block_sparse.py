"""Native products of a block-sparse matrix beside the reference, on any sizes, threads and forms."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from native_forms import threads as use_threads

from hornbook.ops.block_pattern import Pattern, from_dense, to_dense
from hornbook.ops.block_sparse import KERNELS, block_sparse_linear
from hornbook.ops.native import block_sparse
from hornbook.ops.native.library import Form, instruction_sets

pytestmark = pytest.mark.skipif(isinstance(block_sparse.form(), str), reason=f"no native form: {block_sparse.form()}")


def numbers(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@st.composite
def cases(draw: st.DrawFn) -> tuple[Pattern, int, int]:
    num_rows, num_columns = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    positions = sorted(draw(st.sets(st.integers(0, num_rows * num_columns - 1))))
    chosen = torch.tensor(positions, dtype=torch.int64)
    pattern = Pattern.of(chosen // num_columns, chosen % num_columns, num_rows, num_columns)
    return pattern, draw(st.sampled_from(block_sparse.BLOCK_SIZES)), draw(st.integers(0, 70))


@given(case=cases(), dtype=st.sampled_from([torch.float32, torch.bfloat16]))
@settings(max_examples=60, deadline=None)
def test_products_and_gradients_are_those_of_the_reference(case: tuple[Pattern, int, int], dtype: torch.dtype) -> None:
    pattern, size, num_tokens = case
    values = numbers(len(pattern.rows), size, size, seed=0)
    x, upstream = (
        numbers(num_tokens, pattern.num_columns * size, seed=1),
        numbers(num_tokens, pattern.num_rows * size, seed=2),
    )
    found = []
    for kernel, kind in (("native", dtype), ("reference", torch.float64)):
        leaves = [tensor.detach().to(dtype).to(kind).clone().requires_grad_() for tensor in (x, values)]
        y = block_sparse_linear(*leaves, pattern, kernel)
        assert y.dtype == kind
        y.backward(upstream.to(dtype).to(kind))
        found.append([y.detach(), *(leaf.grad for leaf in leaves)])
    tolerance = 1e-4 if dtype == torch.float32 else 3e-2
    for ours, exact in zip(*found, strict=True):
        torch.testing.assert_close(ours.double(), exact, rtol=tolerance, atol=tolerance * 3)


def case(num_tokens: int = 75) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, Pattern]:
    chosen = torch.tensor([0, 2, 5, 7, 8, 10, 13])
    pattern = Pattern.of(chosen // 4, chosen % 4, 4, 4)
    return numbers(num_tokens, 64, seed=1), numbers(num_tokens, 64, seed=2), numbers(7, 16, 16, seed=0), pattern


def products(pattern: Pattern, x: torch.Tensor, upstream: torch.Tensor, values: torch.Tensor) -> list[torch.Tensor]:
    kernel = KERNELS["native"]
    y, of_x = kernel.forward(x, values, pattern), kernel.input_gradient(upstream, values, pattern)
    return [y, of_x, kernel.weight_gradient(upstream, x, pattern, values.shape[-1])]


def test_the_number_of_threads_changes_no_bit() -> None:
    x, upstream, values, pattern = case()
    found = []
    for threads in (1, 2):
        with use_threads(threads):
            found.append(products(pattern, x, upstream, values))
    assert all(map(torch.equal, *found))


@pytest.mark.parametrize("isa", instruction_sets())
def test_every_form_of_this_machine_is_right(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert block_sparse.KERNEL.check(Form(isa), torch.float32)
    monkeypatch.setattr(block_sparse, "form", lambda: Form(isa))
    x, upstream, values, pattern = case()
    for ours, exact in zip(
        products(pattern, x, upstream, values),
        (
            KERNELS["reference"].forward(x, values, pattern),
            KERNELS["reference"].input_gradient(upstream, values, pattern),
            KERNELS["reference"].weight_gradient(upstream, x, pattern, 16),
        ),
        strict=True,
    ):
        torch.testing.assert_close(ours, exact, rtol=1e-4, atol=1e-4)


def test_forward_products_have_the_same_bits_in_every_form(monkeypatch: pytest.MonkeyPatch) -> None:
    x, upstream, values, pattern = case()
    found = []
    for isa in instruction_sets():
        monkeypatch.setattr(block_sparse, "form", lambda isa=isa: Form(isa))
        found.append(products(pattern, x, upstream, values)[:2])
    for other in found[1:]:
        assert all(map(torch.equal, found[0], other))


@pytest.mark.parametrize("shape", [(1088, 1024), (1024, 1088)], ids=["rows", "columns"])
@pytest.mark.parametrize("size", block_sparse.BLOCK_SIZES)
@pytest.mark.parametrize("threads", [1, 2])
def test_more_tokens_than_fit_the_cache_are_added_up(shape: tuple[int, int], size: int, threads: int) -> None:
    num_rows, num_columns = shape[0] // size, shape[1] // size
    random = torch.Generator().manual_seed(size)
    chosen = torch.randperm(num_rows * num_columns, generator=random)[:40].sort().values
    pattern = Pattern.of(chosen // num_columns, chosen % num_columns, num_rows, num_columns)
    values = numbers(40, size, size, seed=0)
    x, upstream = numbers(557, shape[1], seed=1), numbers(557, shape[0], seed=2)  # results are written past the caches
    with use_threads(threads):
        found = products(pattern, x, upstream, values)
    dense = to_dense(values, pattern).double()
    exact = (
        x.double() @ dense.t(),
        upstream.double() @ dense,
        from_dense(upstream.double().t() @ x.double(), pattern, size),
    )
    for ours, expected in zip(found, exact, strict=True):
        torch.testing.assert_close(ours.double(), expected, rtol=1e-4, atol=3e-4)


def test_any_strides_are_taken() -> None:
    x, _, values, pattern = case()
    wide = x.t().contiguous().t()
    assert torch.equal(
        block_sparse_linear(wide, values, pattern, "native"), block_sparse_linear(x, values, pattern, "native")
    )
