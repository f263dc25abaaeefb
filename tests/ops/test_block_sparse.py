"""The products of a block-sparse matrix, in every kernel, beside the dense matrix of the same blocks."""

from functools import partial

import pytest
import torch
from cases import mostly_slow
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

from hornbook.errors import UserError
from hornbook.ops import block_pattern, block_sparse
from hornbook.ops.block_pattern import Pattern, from_dense, to_dense
from hornbook.ops.block_sparse import (
    Scores,
    block_sparse_linear,
    choose_kernel,
)
from hornbook.ops.native import block_sparse as native
from hornbook.ops.native.kernels import Form

CPU = torch.device("cpu")
kernels = pytest.mark.parametrize("kernel", ["reference", "torch"])


def pattern_of(num_rows: int, num_columns: int, positions: list[int]) -> Pattern:
    chosen = torch.tensor(sorted(positions), dtype=torch.int32)
    return Pattern.of(chosen // num_columns, chosen % num_columns, num_rows, num_columns)


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


@st.composite
def cases(draw: st.DrawFn) -> tuple[int, int, list[int], int, int]:
    num_rows, num_columns = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    positions = draw(st.lists(st.integers(0, num_rows * num_columns - 1), unique=True))
    return num_rows, num_columns, positions, draw(st.sampled_from([1, 2, 4])), draw(st.integers(0, 5))


@kernels
@given(case=cases())
@settings(max_examples=60, deadline=None)
def test_products_and_gradients_are_those_of_the_dense_matrix(
    kernel: str, case: tuple[int, int, list[int], int, int]
) -> None:
    num_rows, num_columns, positions, size, num_tokens = case
    pattern = pattern_of(num_rows, num_columns, positions)
    values = numbers(len(positions), size, size).requires_grad_()
    x = numbers(num_tokens, num_columns * size, seed=1).requires_grad_()
    upstream = numbers(num_tokens, num_rows * size, seed=2)
    y = block_sparse_linear(x, values, pattern, kernel)
    found = torch.autograd.grad(y, (x, values), upstream)

    dense = torch.zeros(num_rows * size, num_columns * size, dtype=torch.float64)
    for number, position in enumerate(sorted(positions)):
        row, column = divmod(position, num_columns)
        block = values[number].detach()
        dense[row * size : (row + 1) * size, column * size : (column + 1) * size] = block
    assert torch.equal(to_dense(values.detach(), pattern), dense)
    torch.testing.assert_close(y.detach(), x.detach() @ dense.t())
    torch.testing.assert_close(found[0], upstream @ dense)
    torch.testing.assert_close(found[1], from_dense(upstream.t() @ x.detach(), pattern, size))


@kernels
def test_gradients_agree_with_finite_differences_with_empty_rows_and_columns(kernel: str) -> None:
    pattern = pattern_of(4, 3, [0, 1, 7, 10])  # row 1 and column 2 are empty
    x, values = numbers(5, 6).requires_grad_(), numbers(4, 2, 2, seed=1).requires_grad_()
    assert gradcheck(lambda x, values: block_sparse_linear(x, values, pattern, kernel), (x, values))


@kernels
def test_any_leading_dimensions_and_strides_are_taken(kernel: str) -> None:
    pattern = pattern_of(2, 3, [0, 2, 4])
    values, wide = numbers(3, 4, 4), numbers(12, 3, 7).transpose(0, 2)
    y = block_sparse_linear(wide, values, pattern, kernel)
    assert y.shape == (7, 3, 8)
    torch.testing.assert_close(y, wide @ to_dense(values, pattern).t())
    assert block_sparse_linear(wide[:0], values, pattern, kernel).shape == (0, 3, 8)


@kernels
def test_without_blocks_all_is_zero(kernel: str) -> None:
    x, values = numbers(3, 4).requires_grad_(), torch.zeros(0, 2, 2, dtype=torch.float64, requires_grad=True)
    y = block_sparse_linear(x, values, pattern_of(3, 2, []), kernel)
    y.sum().backward()
    assert y.shape == (3, 6) and not y.any()
    assert x.grad is not None and not x.grad.any()


@kernels
def test_fp32_blocks_get_fp32_gradients_from_bf16_activations(kernel: str) -> None:
    pattern = pattern_of(2, 2, [0, 3])
    values, x = numbers(2, 16, 16, dtype=torch.float32).requires_grad_(), numbers(9, 32, dtype=torch.bfloat16)
    y = block_sparse_linear(x, values, pattern, kernel)
    y.float().square().sum().backward()
    assert y.dtype == torch.bfloat16 and values.grad is not None and values.grad.dtype == torch.float32
    dense = to_dense(values.detach(), pattern)
    torch.testing.assert_close(y.float(), x.float() @ dense.t(), rtol=2e-2, atol=5e-2)


@kernels
@pytest.mark.parametrize("pooling", ["sum", "avg", "max"])
def test_scores_pool_the_dense_gradient_of_each_micro_batch(kernel: str, pooling: str) -> None:
    pattern = pattern_of(3, 2, [1, 4])
    scores = Scores(pattern, pooling)
    values, expected = numbers(2, 4, 4).requires_grad_(), torch.zeros(3, 2, dtype=torch.float64)
    for seed in (1, 2):
        x, upstream = numbers(6, 8, seed=seed), numbers(6, 12, seed=seed + 5)
        block_sparse_linear(x, values, pattern, kernel, scores).backward(upstream)
        absolute = (upstream.t() @ x).float().abs()
        for row in range(3):
            for column in range(2):
                block = absolute[row * 4 : row * 4 + 4, column * 4 : column * 4 + 4]
                expected[row, column] += {"sum": block.sum(), "avg": block.mean(), "max": block.max()}[pooling]
    torch.testing.assert_close(scores.total, expected, rtol=1e-6, atol=0)


def test_scores_are_not_made_for_blocks_that_do_not_learn() -> None:
    pattern = pattern_of(2, 2, [0])
    scores = Scores(pattern, "sum")
    x = numbers(3, 4).requires_grad_()
    block_sparse_linear(x, numbers(1, 2, 2), pattern, "reference", scores).sum().backward()
    assert not scores.total.any()


def test_auto_takes_the_faster_kernel_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    choose = partial(choose_kernel, device=CPU, dtype=torch.float32)
    monkeypatch.setattr(native, "form", lambda: "no compiler")
    assert choose("auto", 32, 0.1).kernel == choose("auto", 128, 0.1).kernel == "torch"
    reason = "dense products are faster for blocks of 32 at a density of 0.5 in fp32"
    assert choose("auto", 32, 0.5) == ("reference", reason)
    assert choose("auto", 4, 0.1).kernel == "reference"
    assert choose("torch", 4, 0.9) == ("torch", "as asked")
    with pytest.raises(UserError, match='cannot compute here: no compiler; set it to "auto"'):
        choose("native", 4, 0.1)
    monkeypatch.setattr(native, "form", lambda: Form("avx2"))
    with pytest.raises(UserError, match="needs blocks of 4, 8, 16, 32, 64, not of 128; set another kernel"):
        choose("native", 128, 0.1)
    assert choose("auto", 4, 0.1).kernel == "native"
    assert choose("auto", 1, 0.1).kernel == choose("auto", 4, 0.5).kernel == "reference"


def test_the_choice_of_a_kernel_depends_on_the_dtype_of_the_activations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "form", lambda: Form("avx2"))
    monkeypatch.setattr(block_sparse, "cpu_flags", lambda: {"avx2"})
    choose = partial(choose_kernel, device=CPU)
    assert choose("auto", 16, 0.3, dtype=torch.bfloat16).kernel == "native"
    assert choose("auto", 16, 0.1, dtype=torch.float16).kernel == "torch"  # native has fp32 and bf16 alone
    reason = "the native kernel does not compute fp16"
    assert choose("native", 16, 0.1, dtype=torch.float16) == ("reference", reason)
    monkeypatch.setattr(block_sparse, "cpu_flags", lambda: {"avx2", "amx_bf16"})  # whose dense bf16 products are fast
    assert choose("auto", 16, 0.3, dtype=torch.bfloat16).kernel == "reference"
    assert choose("auto", 16, 0.3, dtype=torch.float32).kernel == "native"
    assert choose("auto", 16, 0.25, dtype=torch.bfloat16).kernel == "reference"  # which vectors are slower than
    monkeypatch.setattr(native, "form", lambda: Form("amx"))  # as fast where blocks are as large as tiles
    reason = "blocks of 16 at a density of at most 0.25 in bf16"
    assert choose("auto", 16, 0.25, dtype=torch.bfloat16) == ("native", reason)
    assert choose("auto", 8, 0.25, dtype=torch.bfloat16).kernel == "reference"
    assert choose("auto", 32, 0.3, dtype=torch.bfloat16).kernel == "reference"
    assert choose("auto", 16, 0.3, dtype=torch.float32).kernel == "native"


@pytest.mark.parametrize("kernel", mostly_slow(["native", "reference", "torch"]))
@pytest.mark.parametrize("positions", [[], [0, 4, 5]])
def test_the_operators_pass_opcheck(kernel: str, positions: list[int]) -> None:
    if kernel == "native" and isinstance(native.newest_form(), str):
        pytest.skip(f"no native form: {native.newest_form()}")
    pattern = [*pattern_of(2, 3, positions)]
    x, values = (numbers(*shape, dtype=torch.float32) for shape in ((5, 12), (len(positions), 4, 4)))
    gradient = numbers(5, 8, dtype=torch.float32)
    learned = [tensor.clone().requires_grad_() for tensor in (x, values, numbers(8, dtype=torch.float32))]
    torch.library.opcheck(block_sparse.block_sparse_product, (*learned, pattern, kernel))
    torch.library.opcheck(block_sparse.block_sparse_input_gradient, (gradient, values, pattern, kernel))
    torch.library.opcheck(block_sparse.block_sparse_weight_gradient, (gradient, x, pattern, 4, kernel))


def test_lines_are_found_once_and_go_with_the_pattern() -> None:
    before, pattern = len(block_pattern._LINES), pattern_of(2, 3, [0, 4, 5])
    assert pattern.by_row() is pattern.by_row() and pattern.by_column() is pattern.by_column()
    assert len(block_pattern._LINES) == before + 2
    del pattern
    assert len(block_pattern._LINES) == before
